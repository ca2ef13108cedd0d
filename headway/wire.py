"""What api/ hands to gateway/: a request on its way to an engine, the meter that reads its answer, the client.

Only shapes. api/ implements Meter and Client and never imports the gateway; gateway/ uses them and never learns which
dialect a call came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headway.core.types import Call


class Meter(Protocol):
    """Reads one answer as it passes: what billing and proof need, and nothing else.

    `feed` returns the bytes the client shall get: the same ones, less what the gateway asked the engine for and the
    client did not. Tokens are counted by the engine's own usage figures; times are stamped by the caller as it reads
    the engine, so that a slow reader does not look like a slow engine.
    """

    first_at: float | None
    last_at: float | None
    complete: bool  # the dialect's success terminator has been seen

    def feed(self, data: bytes, now: float) -> bytes: ...

    def read_whole(self, body: bytes) -> None:
        """The answer came in one piece: take the usage out of it."""

    def usage(self) -> tuple[int, int]:
        """(prompt tokens, output tokens) as far as the answer was read: exact at its end, a lower bound before."""


class Client(Protocol):
    """Where the answer goes: in one piece, or as a stream that is started, written and ended."""

    started: bool  # something has been sent: the call can no longer be given to another engine

    async def send_whole(self, content_type: bytes, body: bytes) -> None: ...

    async def start_stream(self, content_type: bytes) -> None: ...

    def write(self, data: bytes) -> None: ...

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call `pause` when unread bytes pile up towards the client and `resume` when they are gone."""

    async def end_stream(self) -> None: ...

    def abandon(self) -> None:
        """Break the connection: the client does not read."""


@dataclass(slots=True)
class Request:
    """A call together with what the engine shall be sent."""

    call: Call
    path: str
    body: bytes
    streaming: bool
    meter: Meter
