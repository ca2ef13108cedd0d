"""What callers of one key got, and whether its limit held, by the callers' own clock. See runs/cell-limits.sh.

Nothing is taken from Headway's own counts. What a caller has read to its end has been counted before, and what a caller
has not sent cannot be. So two bounds are certain, whatever the delays:

- All that callers have read, less all that can have been refilled, is at most what the limit's bucket has lost. While
  that is above the limit, no call that is sent is served.
- All that callers have sent, less all that must have been refilled since the bucket was last full, is at least what it
  has lost. While that is below the limit, no call is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["input", "output", "budget"]
MINUTE_S = 60.0
REFUSALS: dict[Kind, tuple[int, str]] = {
    "input": (429, "over_limit"),
    "output": (429, "over_limit"),
    "budget": (402, "over_budget"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One call, its times in seconds on the callers' clock. `reason` and `retry_after_s` are those of a refusal."""

    sent_at: float
    ended_at: float
    status: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    billed_micro: int = 0
    reason: str = ""
    retry_after_s: int = 0

    @property
    def is_served(self) -> bool:
        return self.status == 200

    def is_refusal_of(self, kind: Kind) -> bool:
        return (self.status, self.reason) == REFUSALS[kind] and self.retry_after_s >= 1


@dataclass(frozen=True, slots=True)
class Reached:
    """One time that a limit was reached: the most that was spent above it until it had refilled, and the tokens of the
    calls that were under way when it was reached."""

    over: float
    under_way: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one served call."""

    sent_at: float
    ended_at: float
    count: int


def tokens_of(kind: Kind, answers: list[Answer]) -> list[Tokens]:
    return [
        Tokens(one.sent_at, one.ended_at, one.prompt_tokens if kind == "input" else one.output_tokens)
        for one in answers
        if one.is_served
    ]


def times_reached(served: list[Tokens], per_minute: int) -> list[Reached]:
    """Each time that a limit was reached. The bucket is full before the first call. That it may be full again later,
    and does not refill then, is left out: it would only add to what was spent."""
    if not served:
        return []
    first_at = min(one.sent_at for one in served)
    found: list[Reached] = []
    spent, is_over = 0, False
    for ended in sorted(served, key=lambda one: one.ended_at):
        now = ended.ended_at
        limit = per_minute + per_minute * (now - first_at) / MINUTE_S
        is_over = is_over and spent >= limit
        spent += ended.count
        if spent < limit:
            continue
        if not is_over:
            is_over = True
            under_way = sum(one.count for one in served if one.sent_at <= now <= one.ended_at)
            found.append(Reached(spent - limit, under_way))
        elif spent - limit > found[-1].over:
            found[-1] = Reached(spent - limit, found[-1].under_way)
    return found


def refused_early(served: list[Tokens], refused: list[Answer], per_minute: int) -> int:
    """How many calls were refused although the limit cannot have been reached.

    A bucket that is full does not refill. So what it has lost since each time at which it may have been full is
    looked at, and the most of these counts."""
    latest_first = sorted(served, key=lambda one: one.ended_at, reverse=True)
    early = 0
    for one in refused:
        spent, most = 0, 0.0
        for other in latest_first:
            if other.sent_at < one.ended_at:
                spent += other.count
                most = max(most, spent - per_minute * max(0.0, one.sent_at - other.ended_at) / MINUTE_S)
        early += most <= per_minute - 1  # less than a whole token left counts as none
    return early
