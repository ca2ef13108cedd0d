"""The seam to an engine: what the gateway may ask of one. engines/vllm.py is the implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


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
        """Hand every piece of the body to `sink` as it comes; returns at the end, raises EngineLost if it is cut."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, reason: str | None = None) -> None:
        """Done with it. Before its end this breaks the connection, which is how an engine is told to stop working;
        with a reason, whoever waits on the answer gets EngineLost."""


class Engine(Protocol):
    name: str
    pulse: Pulse

    async def send(self, path: str, body: bytes, request_id: str) -> Answer:
        """Post the request; returns when the first byte of the answer's body (or its end) is there."""

    async def is_healthy(self) -> bool: ...

    async def progress(self) -> tuple[float, ...]:
        """The engine's own counters. If no figure has changed between two looks, nothing has moved in there."""

    async def produces_a_token(self) -> bool:
        """Ask for one token: the only sure sign of life."""

    def close(self) -> None: ...
