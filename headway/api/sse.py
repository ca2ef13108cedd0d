"""Server-sent events, as far as a relay needs them: where one ends.

vLLM ends every line with a bare newline and every event with a blank line, and writes each event in one piece. The
network may still cut anywhere, so `EventSplitter` keeps what is not complete until the rest comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from headway.errors import EngineLost

END = b"\n\n"
MAX_EVENT_BYTES = 8 * 2**20


class EventSplitter:
    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def is_one_event(self, data: bytes) -> bool:
        """True for what nearly every piece is: exactly one whole event, nothing before it and nothing after."""
        return not self.rest and data.find(END) == len(data) - 2

    def split(self, data: bytes) -> list[bytes]:
        """The events that are complete now, each with its blank line."""
        *events, self.rest = (self.rest + data).split(END)
        if len(self.rest) > MAX_EVENT_BYTES:
            raise EngineLost("the engine sent an event without an end")
        return [event + END for event in events]


def data_of(event: bytes) -> bytes:
    """The payload of an event: its `data:` line."""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            return line[5:].strip()
    return b""


@contextmanager
def readable() -> Iterator[None]:
    """Whatever an engine sends that cannot be read is the engine's failure, in every dialect."""
    try:
        yield
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise EngineLost(f"the engine's answer cannot be read: {error!r}") from error
