"""The seam to an engine: what the gateway may ask of one. engines/vllm.py is the implementation; engines/kinds.py lists
all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from headway.wire import Request


@dataclass(slots=True)
class Pulse:
    """When something last came out of an engine, on the gateway's clock; the relay sets it, the prober reads it."""

    at: float = 0.0


class Answer(Protocol):
    """An engine's answer, from its first byte on."""

    status: int
    content_type: bytes

    async def read(self) -> bytes:
        """The whole body."""

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        """Hand every piece of the body to `sink` as it comes; returns at the end.

        Raises ConnectionFailed if it is cut off, and what `sink` raises."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Done with it. Before its end this breaks the connection, which is how an engine is told to stop working."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as one kind of engine gets it."""

    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Engine(Protocol):
    name: str
    pulse: Pulse

    def prepare(self, request: Request) -> EngineRequest:
        """Add what only this kind of engine understands."""

    async def send(self, request: EngineRequest) -> Answer:
        """Post the request; returns when the first byte of the answer's body (or its end) is there.

        Raises ConnectionFailed."""

    def generation_s(self, answer: Mapping[str, Any]) -> float | None:
        """How long the engine says it generated a whole answer, from the first token to the last; None if it does not
        say."""

    async def is_healthy(self) -> bool: ...

    async def progress(self) -> tuple[float, ...]:
        """The engine's own counters. If no figure has changed between two looks, nothing has moved in there."""

    async def produces_a_token(self) -> bool:
        """Ask for one token: the only sure sign of life."""

    def close(self) -> None: ...


def with_fields(body: bytes, added: Mapping[str, object]) -> bytes:
    """A JSON object with more fields, without decoding what is there."""
    if not added:
        return body
    return body[:-1] + b"," + msgspec.json.encode(added)[1:]
