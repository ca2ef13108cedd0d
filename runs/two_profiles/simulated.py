"""One fleet in virtual time: fast calls with a floor, and more standard calls than it can serve."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import log

from headway.core.types import Call, ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.loop import Job, Simulation
from runs.express.demand import TOKENS_MEDIAN, TOKENS_SIGMA
from runs.two_profiles.profiles import FLOOR_TPS, Profile

CHIPS = 96
SECONDS, WARM_UP_S = 240.0, 60.0
MEAN_TOKENS = 303.0  # of a call
OFFERED = 1.1  # standard calls per second, as a multiple of what the chips could serve at most
TIERS: dict[Tier, TierPolicy] = {
    "fast": TierPolicy(max_held=10_000, max_hold_s=5.0, floor_tps=FLOOR_TPS),
    "standard": TierPolicy(max_held=400, max_hold_s=1e9),
}
POLICY = ModelPolicy(TIERS, standard_share=0.1)
Fleet = tuple[tuple[Profile, int], ...]  # profiles, and how many replicas have them


@dataclass
class Outcome:
    """What calls got in one simulation, after the warm-up."""

    served: int = 0  # fast calls
    kept: int = 0
    refused: int = 0
    standard_tps: float = 0.0


def _jobs(tier: Tier, calls_per_s: float, seed: int) -> Iterator[Job]:
    chance = random.Random(f"{tier} {seed}")
    at, number = 0.0, 0
    while True:
        at += chance.expovariate(calls_per_s)
        number += 1
        tokens = max(20, min(4000, round(chance.lognormvariate(log(TOKENS_MEDIAN), TOKENS_SIGMA))))
        yield Job(at, Call(f"{tier[0]}{number}", "m", tier), tokens)


def simulate(fleet: Fleet, fast_tps: float, most_tps: float, seed: int) -> Outcome:
    """`fast_tps` is what fast calls ask for, `most_tps` what the chips could give at most."""
    kinds = [profile for profile, replicas in fleet for _ in range(replicas)]
    replicas = [Replica(f"r{number}", "m", kind.seats, kind.fitted) for number, kind in enumerate(kinds)]
    jobs = merge(
        _jobs("fast", fast_tps / MEAN_TOKENS, seed),
        _jobs("standard", OFFERED * most_tps / MEAN_TOKENS, seed),
        key=lambda job: job.at,
    )
    simulation = Simulation({"m": POLICY}, replicas)
    outcome, tokens = Outcome(), 0
    for trip in simulation.run(jobs, SECONDS):
        if trip.job.call.tier != "fast":
            # Calls that ended in the measured time, whenever they came: as many cross its start as its end.
            tokens += trip.job.tokens if simulation.now >= WARM_UP_S and not trip.refused else 0
        elif trip.job.at >= WARM_UP_S:
            outcome.refused += trip.refused
            outcome.served += not trip.refused
            outcome.kept += not trip.refused and trip.speed_tps >= FLOOR_TPS
    outcome.standard_tps = tokens / (SECONDS - WARM_UP_S)
    return outcome
