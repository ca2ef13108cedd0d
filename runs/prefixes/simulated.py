"""Mooncake's conversation trace on simulated replicas: how much of the prompts is found in caches. See runs/prefix.sh.

Beside core's index: what was done before it (a call goes where the beginning of its prompt went last), consistent
hashing of that beginning, round robin, and one cache as large as all replicas' together, which finds what can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count, cycle

from headway.core.curve import Curve
from headway.core.types import MIN_TOKENS_FOR_PROMISE, ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.cache import SimCache
from headway.sim.engine import SimReplica
from headway.sim.loop import Job, SimTrip, Simulation

REPLICAS = 32
CURVE = Curve(a=0.008, c=0.0003, d=0.0)  # 120 tok/s at 1 stream, 37 tok/s at 64
KIND = Replica("", "m", 64, CURVE, prompt_tps=20_000.0, kv_tokens=400_000)
FAST = TierPolicy(max_held=10_000, max_hold_s=5.0, floor_tps=74.0)
STANDARD = TierPolicy(max_held=10_000, max_hold_s=1e9)
FASTER = 6.0  # than the trace, which one chip in five could serve


@dataclass
class Found:
    """What was found in caches for the calls that are scored, and how they were served."""

    streams_s: dict[str, float]  # by replica: for how long its streams were aboard, added up
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    fast: int = 0
    kept: int = 0
    refused: int = 0

    def read(self, job: Job, cached_tokens: int) -> None:
        self.prompt_tokens += job.call.prompt_tokens
        self.cached_tokens += cached_tokens

    def ended(self, trip: SimTrip, replica: str | None) -> None:
        assert trip.ended_at is not None
        if replica is None or trip.refused:
            self.refused += 1
            return
        assert trip.boarded_at is not None
        self.streams_s[replica] += trip.ended_at - trip.boarded_at
        self.first_token_s.append(trip.first_at - trip.job.at)
        if trip.tier == "fast" and trip.job.tokens >= MIN_TOKENS_FOR_PROMISE:
            self.fast += 1
            self.kept += trip.speed_tps >= FAST.floor_tps

    @property
    def share(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def imbalance(self) -> float:
        """The streams aboard the fullest replica, divided by the mean of all."""
        return max(self.streams_s.values()) / (sum(self.streams_s.values()) / REPLICAS)

    @property
    def median_s(self) -> float:
        return sorted(self.first_token_s)[len(self.first_token_s) // 2]


def fleet() -> list[Replica]:
    return [Replica(f"r{n}", "m", KIND.seats, CURVE, KIND.prompt_tps, KIND.kv_tokens) for n in range(REPLICAS)]


class WatchedFleet(Simulation):
    """Core, and what the replicas where it sends calls find."""

    def __init__(self, is_scored: Callable[[Job], bool]) -> None:
        super().__init__({"m": ModelPolicy({"fast": FAST, "standard": STANDARD})}, fleet())
        self.found = Found(dict.fromkeys(self.replicas, 0.0))
        self.boarded_at: dict[str, str] = {}  # by call
        self._is_scored = is_scored

    def _board(self, trip: SimTrip, name: str, tier: Tier, floor_tps: float) -> None:
        before = self.replicas[name].cached_tokens
        super()._board(trip, name, tier, floor_tps)
        self.boarded_at[trip.job.call.id] = name
        if self._is_scored(trip.job):
            self.found.read(trip.job, self.replicas[name].cached_tokens - before)


def by_core(jobs: Sequence[Job], is_scored: Callable[[Job], bool]) -> Found:
    fleet = WatchedFleet(is_scored)
    for trip in fleet.run(iter(jobs), 1e9):
        if is_scored(trip.job):
            fleet.found.ended(trip, fleet.boarded_at.get(trip.job.call.id))
    return fleet.found


# --- what it is compared with ---

Place = Callable[[Job, list[SimReplica]], SimReplica]


def beginning(job: Job) -> tuple[int, ...]:
    """Two blocks: nearly all prompts of the trace share the first one."""
    return job.blocks[:2]


def last_seen() -> Place:
    seen: dict[tuple[int, ...], SimReplica] = {}

    def place(job: Job, replicas: list[SimReplica]) -> SimReplica:
        emptiest = min(replicas, key=lambda one: one.load)
        last = seen.get(beginning(job), emptiest)
        chosen = seen[beginning(job)] = last if last.load <= emptiest.load + 2 else emptiest
        return chosen

    return place


def hashed() -> Place:
    def place(job: Job, replicas: list[SimReplica]) -> SimReplica:
        return replicas[int.from_bytes(blake2b(repr(beginning(job)).encode(), digest_size=8).digest()) % len(replicas)]

    return place


def in_turns() -> Place:
    turns = cycle(range(REPLICAS))

    def place(_job: Job, replicas: list[SimReplica]) -> SimReplica:
        return replicas[next(turns)]

    return place


def by_rule(rule: Place, jobs: Sequence[Job], is_scored: Callable[[Job], bool]) -> Found:
    """A rule that knows no seats: every call boards at once."""
    replicas = [SimReplica(one.name, CURVE, KIND.prompt_tps, kv_tokens=KIND.kv_tokens) for one in fleet()]
    found, order, waiting = Found({one.name: 0.0 for one in replicas}), count(), list(reversed(jobs))
    events: list[tuple[float, int, int, SimReplica]] = []  # time, order, version
    trips: dict[str, SimTrip] = {}
    while waiting or trips:
        if waiting and (not events or waiting[-1].at <= events[0][0]):
            job = waiting.pop()
            replica, now = rule(job, replicas), job.at
            before, call = replica.cached_tokens, job.call
            first_at = replica.board(call.id, call.prompt_tokens, job.tokens, now, blocks=job.blocks)
            trips[call.id] = SimTrip(job, call.tier, boarded_at=now, first_at=first_at)
            if is_scored(job):
                found.read(job, replica.cached_tokens - before)
        else:
            now, _, version, replica = heappop(events)
            if version != replica.version:
                continue
            if (call_id := replica.due(now)) is not None:
                trip = trips.pop(call_id)
                trip.ended_at = now
                if is_scored(trip.job):
                    found.ended(trip, replica.name)
        if (at := replica.next_event()) is not None:
            heappush(events, (at, next(order), replica.version, replica))
    return found


def of_one_cache(jobs: Sequence[Job], is_scored: Callable[[Job], bool]) -> Found:
    cache, found = SimCache(REPLICAS * KIND.kv_tokens), Found({})
    for job in jobs:
        cached = cache.read(job.blocks, job.call.prompt_tokens)
        if is_scored(job):
            found.read(job, cached)
    return found
