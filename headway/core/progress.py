"""The progress of a running stream, compared with its floor.

A stream falls behind if it is late by more than two tokens and has got fewer tokens than its floor promises since the
last look. One that is late but catching up does not: its replica is fast enough again. The drivers look at all streams
with a floor every LOOK_S, and report replicas on which one falls behind, and when none does any more.

Pure arithmetic: times and tokens are arguments.
"""

from __future__ import annotations

LOOK_S = 0.25
LATE_TOKENS = 2.0


class StreamProgress:
    def __init__(self, floor_tps: float) -> None:
        self._floor_tps = floor_tps
        self._tokens = 1.0
        self._at: float | None = None  # when it was last looked at

    def falls_behind(self, tokens: float, first_at: float, last_at: float, now: float) -> bool:
        """`tokens` have come since `first_at`, the last at `last_at`."""
        promised = self._floor_tps * ((now if self._is_silent(last_at, now) else last_at) - first_at)
        since = first_at if self._at is None else self._at
        is_slow = tokens - self._tokens < self._floor_tps * (now - since)
        self._tokens, self._at = tokens, now
        return is_slow and tokens - 1.0 < promised - LATE_TOKENS

    def _is_silent(self, last_at: float, now: float) -> bool:
        """Engines may send several tokens at once, so the time since the last ones counts only if it is long."""
        return now - last_at > max(LOOK_S, LATE_TOKENS / self._floor_tps)
