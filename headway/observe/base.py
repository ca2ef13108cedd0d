"""What is told of calls to whoever runs Headway: a line of the access log and a span for each.

Knows what ended and how, as values that are made anyway. Does not know prompts, answers, keys or headers. Each text in
these values is ours, the owner's, or bounded where it was read.

Invariant: nothing here blocks the event loop, fails a call, or grows without a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headway.wire import NO_TRACE, Receipt, Request, Trace


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that had a place in the gateway. A call to an auto model is one of these for each of its rungs."""

    request: Request
    receipt: Receipt
    held_s: float | None  # None if it never had a seat
    first_token_s: float | None  # None if nothing was streamed
    error: str = ""  # the kind of the error that ended it (errors.py, `kind_of`); empty if there was none


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that was refused before it had a place: its key, its body or its budget does not allow it."""

    call_id: str
    path: str  # of the endpoint
    key: str  # id of the key; empty if there is none, or it is not known
    error: str  # its kind
    status: int
    request: Request | None = None  # None if it could not be read
    trace: Trace = NO_TRACE


class Span(Protocol):
    """The span of one call, which ends once."""

    @property
    def trace(self) -> Trace:
        """What the engine is told, so that its own spans are below this one."""

    def end(self, ended: EndedCall) -> None: ...


class Tracer(Protocol):
    def begin(self, request: Request) -> Span: ...

    def refused(self, refused: RefusedCall) -> None: ...

    async def stop(self) -> None:
        """Send what is left, for a short time."""


class CallLog(Protocol):
    dropped: int  # lines that could not be written

    def write(self, ended: EndedCall | RefusedCall) -> None: ...

    async def stop(self) -> None:
        """Write what is left, for a short time."""


class Observer:
    """The access log and the tracer of a gateway, if there are any."""

    def __init__(self, log: CallLog | None = None, tracer: Tracer | None = None) -> None:
        self._log = log
        self._tracer = tracer

    @property
    def dropped_lines(self) -> int:
        return self._log.dropped if self._log is not None else 0

    def begin(self, request: Request) -> Span | None:
        return self._tracer.begin(request) if self._tracer is not None else None

    def end(self, ended: EndedCall, span: Span | None) -> None:
        if self._log is not None:
            self._log.write(ended)
        if span is not None:
            span.end(ended)

    def refused(self, refused: RefusedCall) -> None:
        if self._log is not None:
            self._log.write(refused)
        if self._tracer is not None:
            self._tracer.refused(refused)

    async def stop(self) -> None:
        if self._log is not None:
            await self._log.stop()
        if self._tracer is not None:
            await self._tracer.stop()


UNOBSERVED = Observer()
TellRefused = Callable[[RefusedCall], None]
