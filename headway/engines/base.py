"""The interface of an engine. engines/vllm.py implements it; engines/kinds.py lists all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.wire import ChatSoFar, Request


@dataclass(slots=True)
class Pulse:
    """When an engine last sent something, on the gateway's clock. The relay sets it, the prober reads it."""

    at: float = 0.0


class Answer(Protocol):
    """An engine's answer, after its first byte has arrived."""

    status: int

    @property
    def content_type(self) -> bytes: ...

    async def read(self) -> bytes:
        """The whole body."""

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        """Pass each piece of the body to `sink` as it arrives; returns at the end of the body.

        Raises ConnectionFailed if the body is cut off, and whatever `sink` raises."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Release the answer. Before its end this aborts the connection, which tells the engine to stop generating."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request in the form that one kind of engine needs."""

    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    collects: bool = False  # the engine streams an answer that the client gets in one piece
    returns_ids: bool = False  # each event has the ids of its tokens, so that another engine can go on with the stream
    prompt_tokens: int = 0  # estimated, for an engine that does not count them
    max_cost: int = 0  # in micro-units, at a server that costs money
    so_far: ChatSoFar | None = None  # the answer is parsed as the rest of this one


class Engine(Protocol):
    name: str
    pulse: Pulse
    counts_streams: bool  # False: it never says how many it runs, and is taken to run none that are not known

    def prepare(self, request: Request) -> EngineRequest:
        """Add what only this kind of engine understands, and decide whether to collect a whole answer from a stream."""

    async def send(self, request: EngineRequest, before_write: Callable[[], None]) -> Answer:
        """Post the request; returns at the first byte of the answer's body, or at its end if it is empty.

        `before_write` is called immediately before the request is written, and may raise to prevent that. Raises
        ConnectionFailed."""

    def generation_s(self, answer: Mapping[str, Any]) -> float | None:
        """The engine's own time from the first token to the last of a whole answer; None if it does not report one."""

    async def is_healthy(self) -> bool: ...

    async def progress(self) -> tuple[float, ...]:
        """The engine's own counters. If none has changed between two reads, the engine has made no progress.

        Raises EngineLost if they cannot be read."""

    async def life(self) -> tuple[float, ...]:
        """When its process was started, 0 if it does not say, and what it has counted since then. If the first is
        another one or a count is lower than before, it was started again. Empty if there is nothing to tell it by.

        Raises EngineLost if that cannot be read."""

    async def kv_tokens(self) -> int:
        """How many tokens of prompts and answers its memory holds at a time; 0 if it does not say."""

    async def max_model_len(self) -> int | None:
        """The longest context of its model in tokens; None if it does not say."""

    async def streams(self) -> int | None:
        """How many streams it runs or has queued; None or EngineLost if that cannot be read now. With relays, a replica
        whose engine counts them takes no calls before it has said it."""

    async def mismatch(self) -> str:
        """What the engine says of itself that does not fit, such as another model; empty if there is nothing."""

    async def produces_a_token(self) -> bool:
        """Ask the engine for one token, which is the only reliable health check."""

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens, with nothing before or after it. Raises EngineLost."""

    def close(self) -> None: ...
