"""What the race measures: two lanes, the seats of each replica, and the results of the rounds so far.

Knows: what a client sees of its calls, and who sits where. Does not know: HTTP, the clock, or how it is drawn.
A time is an argument, in seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import msgspec

from headway.core.types import Tier


class OfferedTier(msgspec.Struct, frozen=True):
    """A tier as `GET /v1/models` offers it."""

    name: Tier
    floor_tokens_per_second: float | None = None
    price_multiple: float | None = None


class Proof(msgspec.Struct, frozen=True):
    """`usage.headway` at the end of an answer."""

    tier_asked: Tier
    tier_served: Tier
    tokens_per_second: float | None = None
    floor_tokens_per_second: float | None = None
    kept: bool | None = None
    seat_seconds: float | None = None
    answer_seconds: float | None = None


@dataclass(slots=True)
class Lane:
    """One tier's call in the present round."""

    offer: OfferedTier
    max_tokens: int
    call_id: str = ""
    text: str = ""
    tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    proof: Proof | None = None  # None until the answer has ended
    problem: str = ""  # why there is no answer

    def start(self) -> None:
        self.call_id = self.text = self.problem = ""
        self.tokens, self.first_at, self.last_at, self.proof = 0, None, None, None

    def add_token(self, text: str, now: float) -> None:
        self.text += text
        self.tokens += 1
        self.last_at = now
        if self.first_at is None:
            self.first_at = now

    @property
    def tokens_per_second(self) -> float | None:
        """The proof's figure once there is one, before that what the client has seen so far."""
        if self.proof is not None:
            return self.proof.tokens_per_second
        if self.first_at is None or self.last_at is None or self.last_at <= self.first_at:
            return None
        return (self.tokens - 1) / (self.last_at - self.first_at)


@dataclass(slots=True)
class ReplicaSeats:
    """One replica's seats as boarding has them."""

    url: str
    seats: list[str | None]  # who sits there, by call id
    tiers: dict[str, Tier] = field(default_factory=dict)  # the tier of each call aboard
    is_light: bool = False
    limit: int = 0  # how many streams it may carry as it is now
    stream_tps: float = 0.0  # what each stream gets among so many, by the curve

    def update(self, aboard: dict[str, Tier], *, is_light: bool, limit: int, stream_tps: float) -> None:
        """Who was aboard before keeps its seat; newcomers take the first free ones."""
        self.is_light, self.limit, self.stream_tps, self.tiers = is_light, limit, stream_tps, aboard
        self.seats = [call_id if call_id in aboard else None for call_id in self.seats]
        seated = {call_id for call_id in self.seats if call_id is not None}
        free = (number for number, call_id in enumerate(self.seats) if call_id is None)
        for call_id, number in zip((one for one in aboard if one not in seated), free, strict=False):
            self.seats[number] = call_id

    @property
    def open_seats(self) -> set[int]:
        """The free seats that may still be taken; the other free ones are closed while the replica is light."""
        free = [number for number, call_id in enumerate(self.seats) if call_id is None]
        return set(free[: max(0, self.limit - len(self.tiers))])


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One finished round."""

    standard: Proof
    fast: Proof

    @property
    def speedup(self) -> float | None:
        if not self.standard.tokens_per_second or not self.fast.tokens_per_second:
            return None
        return self.fast.tokens_per_second / self.standard.tokens_per_second


@dataclass(slots=True)
class Race:
    """All there is to show."""

    prompt: str
    note: str  # what the engines are
    url: str  # of the gateway
    standard: Lane
    fast: Lane
    replicas: list[ReplicaSeats]
    callers: dict[Tier, int]  # how many others call meanwhile
    round: int = 0
    held: int = 0  # calls that wait for a seat
    results: list[RoundResult] = field(default_factory=list)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self.standard, self.fast

    def start_round(self) -> None:
        self.round += 1
        for lane in self.lanes:
            lane.start()

    def end_round(self) -> RoundResult | None:
        """Note the result; None if a call failed."""
        if self.standard.proof is None or self.fast.proof is None:
            return None
        self.results.append(RoundResult(self.standard.proof, self.fast.proof))
        return self.results[-1]

    @property
    def median_speedup(self) -> float | None:
        speedups = [result.speedup for result in self.results if result.speedup is not None]
        return median(speedups) if speedups else None

    @property
    def floors_kept(self) -> int:
        return sum(result.fast.kept is True for result in self.results)
