"""What a race runs on, as a value: scripted and real engines differ here, and nowhere else in the race."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headway.core.curve import Curve
from headway.core.types import Tier

PROMPT = "Tell me a story about a train."


@dataclass(frozen=True, slots=True)
class Stage:
    model: str
    seats: int  # of each replica
    curve: Curve  # of each replica, programmed or measured
    note: str  # under the title: what the engines are
    race_tokens: int  # of a raced answer, at most
    callers: dict[Tier, int]  # how many others call meanwhile, in the order in which they come
    call_tokens: tuple[int, int]  # of their answers, from and to
    prompt: str = PROMPT
    frame_s: float = 0.1  # between two pictures

    def call_lengths(self, caller: int) -> list[int]:
        """The lengths of a caller's answers. The first is any, or all callers would leave their seats at the same
        time."""
        chance = random.Random(caller)
        return [chance.randint(1, self.call_tokens[1]), *(chance.randint(*self.call_tokens) for _ in range(100))]


def callers_for(seats: int, light_seats: int) -> dict[Tier, int]:
    """More standard callers than there are heavy seats, so that some always wait. Fast ones for half of the light
    seats, so that the race finds one even if a busy machine makes the engines slower than their curve. They come first:
    a replica that is full would have to empty before it is light."""
    return {"fast": max(1, light_seats // 2), "standard": seats + 3}
