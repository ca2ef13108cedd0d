"""Counts the tokens of streams whose events do not say how many there are: `/v1/messages` and `/v1/responses`."""

from __future__ import annotations

from headway.wire import stream_speed_tps


class CountedDeltas:
    """How many deltas a stream has had, and when. Each delta is at least one token."""

    __slots__ = ("_deltas", "_first_tokens", "first_at", "last_at")

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self._deltas = 0
        self._first_tokens = 0  # of them, those that were read together with the first one

    def _count_deltas(self, count: int, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        self._deltas += count
        if now == self.first_at:
            self._first_tokens = self._deltas

    def _stream_speed_tps(self, output_tokens: int) -> float | None:
        return stream_speed_tps(output_tokens, self.first_at, self.last_at, self._first_tokens)
