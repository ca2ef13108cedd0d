"""A replica in virtual time: processor sharing at the speed its curve gives for the present batch.

No event per token. All streams aboard run at one speed, so one counter of tokens given since the start serves them all:
a stream that boards when the counter stands at v and wants k tokens is done when it stands at v + k. Knows the curve;
does not know why calls come or go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from headway.core.curve import Curve


@dataclass(slots=True)
class SimReplica:
    name: str
    curve: Curve
    streams: int = 0
    version: int = 0  # of the next completion; older ones in the loop's heap are void
    _given: float = 0.0
    _at: float = 0.0
    _ends: list[tuple[float, str]] = field(default_factory=list)

    def board(self, call_id: str, tokens: int, now: float) -> None:
        self._advance(now)
        heappush(self._ends, (self._given + tokens, call_id))
        self.streams += 1
        self.version += 1

    def finish(self, now: float) -> str:
        """Take out the stream that is done now."""
        self._advance(now)
        _, call_id = heappop(self._ends)
        self.streams -= 1
        self.version += 1
        return call_id

    def next_completion(self) -> float | None:
        """When the first stream will be done if nobody boards or leaves."""
        if not self._ends:
            return None
        return self._at + max(0.0, self._ends[0][0] - self._given) * self.curve.seconds_per_token(self.streams)

    def _advance(self, now: float) -> None:
        if self.streams:
            self._given += (now - self._at) / self.curve.seconds_per_token(self.streams)
        self._at = now
