"""How many output tokens a seat gives in a second, and how many an answer has, by the calls served to their end; and
how many seats are freed in a second.

A seat is also taken while a prompt is read, and until an engine notices that a client has left. So the time that a call
was aboard says more about what it cost others than the tokens that came of it.
"""

from __future__ import annotations

from math import exp
from typing import Final

from headway.core.learnt import LearntPace, within

# Tokens per second before any call was served: a common speed of one stream on one GPU. Without it the work of a new
# replica would be free for clients that leave.
UNKNOWN_TPS: Final = 40.0
FIRST_ANSWER_TOKENS: Final = 300.0
KEPT: Final = 0.99  # of the past, with each call
FREED_WITHIN_S: Final = 2.0
LEAST_SEAT_S: Final = 1e-6  # the time aboard from which a pace is known


class Pace:
    def __init__(self) -> None:
        self._tokens = 0.0
        self._seat_s = 0.0
        self.answer_tokens = FIRST_ANSWER_TOKENS  # mean length of an answer

    def learn(self, tokens: int, choices: int, seat_s: float) -> None:
        """A call was served to its end: the output tokens of all its choices, and the time in its seats, added up."""
        self.answer_tokens = KEPT * self.answer_tokens + (1.0 - KEPT) * tokens / choices
        self._tokens = KEPT * self._tokens + tokens
        self._seat_s = KEPT * self._seat_s + seat_s

    def learnt(self) -> LearntPace:
        return LearntPace(self._tokens, self._seat_s, self.answer_tokens)

    def recall(self, learnt: LearntPace) -> None:
        self._tokens = within(learnt.tokens, 0.0)
        self._seat_s = within(learnt.seat_s, 0.0)
        self.answer_tokens = within(learnt.answer_tokens, 0.0)

    def tokens(self, seat_s: float) -> int:
        """The output tokens of this time aboard."""
        return int(seat_s * (self._tokens / self._seat_s if self._seat_s >= LEAST_SEAT_S else UNKNOWN_TPS))


class FreedSeats:
    """The seats freed in a second, over the last few seconds."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._at = 0.0

    def add(self, seats: int, now: float) -> None:
        self._per_s = self.per_s(now) + seats / FREED_WITHIN_S
        self._at = now

    def per_s(self, now: float) -> float:
        return self._per_s * exp((self._at - now) / FREED_WITHIN_S)
