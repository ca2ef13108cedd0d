"""Splits a stream of server-sent events.

vLLM ends every line with a bare newline and every event with a blank line, and writes each event in one piece. The
network may still split it anywhere, so `EventSplitter` keeps an incomplete event until the rest arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from headway.errors import AnswerTooLarge, EngineLost

END = b"\n\n"
MAX_EVENT_BYTES = 8 * 2**20
# Every event costs a call of Python code. Those of engines have a hundred bytes and more; only the last ones are short.
MIN_MEAN_EVENT_BYTES = 32
SHORT_EVENTS = 64


class EventSplitter:
    __slots__ = ("_bytes", "_events", "_max_bytes", "rest")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self.rest = bytearray()  # of an event that is not complete
        self._max_bytes = max_bytes
        self._bytes = self._events = 0  # that were split

    def is_one_event(self, data: bytes) -> bool:
        """Whether `data` is exactly one complete event."""
        return not self.rest and 0 <= data.find(END) == len(data) - 2

    def count_alike(self, data: bytes) -> int:
        """The number of events in `data` if it is nothing but complete events with the same first line, else 0. Nearly
        every piece is."""
        if self.is_one_event(data):
            return 1
        if self.rest:
            return 0
        events, begin_alike = data.count(END), data.count(END + data[: data.find(b"\n") + 1])
        return events if begin_alike == events - 1 and data.endswith(END) and b"\n\n\n" not in data else 0

    def split(self, data: bytes) -> list[bytes]:
        """Returns the events that are now complete, each with its blank line."""
        self._bytes += len(data)
        if self.rest:
            # Only what is new is searched: an event in thousands of pieces must not be copied with each of them.
            searched = len(self.rest) - 1
            self.rest += data
            if self.rest.find(END, searched) < 0:
                self._check_size()
                return []
            data = bytes(self.rest)
        self._events += data.count(END)
        if (self._events - SHORT_EVENTS) * MIN_MEAN_EVENT_BYTES > self._bytes:
            raise EngineLost("the engine sent too many events without content")
        *events, rest = data.split(END)
        self.rest = bytearray(rest)
        self._check_size()
        return [event + END for event in events]

    def _check_size(self) -> None:
        if len(self.rest) > self._max_bytes:
            raise AnswerTooLarge(f"the engine sent an event without an end, or one larger than {self._max_bytes} bytes")


def data_of(event: bytes) -> bytes:
    """The payload of an event: its `data:` line."""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            return line[5:].strip()
    return b""


@contextmanager
def readable() -> Iterator[None]:
    """Turns errors in parsing an engine's answer into EngineLost: an unreadable answer is the engine's failure."""
    try:
        yield
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise EngineLost(f"the engine's answer cannot be read: {error!r}") from error
