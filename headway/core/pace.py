"""How many output tokens a seat gives in a second, by the calls that were served to their end.

A seat is also taken while a prompt is read, and until an engine notices that a client has left. So the time that a call
was aboard says more about what it cost others than the tokens that came of it.
"""

from __future__ import annotations

# Tokens per second before any call was served: a common speed of one stream on one GPU. Without it the work of a new
# replica would be free for clients that leave.
UNKNOWN_TPS = 40.0
KEPT = 0.99  # of the past, with each call


class Pace:
    def __init__(self) -> None:
        self._tokens = 0.0
        self._seat_s = 0.0

    def learn(self, tokens: int, seat_s: float) -> None:
        """A call was served to its end: its output tokens, and the time that it took each of its seats."""
        self._tokens = KEPT * self._tokens + tokens
        self._seat_s = KEPT * self._seat_s + seat_s

    def tokens(self, seat_s: float) -> int:
        """The output tokens of this time aboard."""
        return int(seat_s * (self._tokens / self._seat_s if self._seat_s > 0 else UNKNOWN_TPS))
