"""A day of demand on a fleet that scales, and on fixed ones, in virtual time. See runs/scaling.sh."""

from __future__ import annotations

import csv
import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from headway.core.scaling import ScalingPolicy, ScalingRules
from headway.core.types import MIN_TOKENS_FOR_PROMISE, Call, ModelPolicy, Replica, Tier
from headway.sim.elastic import ElasticSimulation, FleetMoment
from headway.sim.loop import Job, SimTrip, Simulation
from headway.sim.sample import Sample
from headway.sim.workload import HOUR_S, Lengths
from runs.measure.verdict import Bar, at_least, at_most

DATA = Path(__file__).parents[2] / "data"
MIN_KEPT, MAX_REFUSED, MAX_FAST_P95_S = 0.995, 0.005, 0.5
MAX_RATIO = 0.75
# A replica that leaves and is ordered again before two starts have passed was let go too early.
MAX_REVERSALS = 12  # in a day


@dataclass(frozen=True)
class Scene:
    """The demand of a day, long or short, and what serves it."""

    seconds: float
    shape: tuple[float, ...]  # the demand in equal parts of the day, relative to its mean
    calls: Mapping[Tier, float]  # each second, on average over the day
    prompts: Lengths
    answers: Lengths
    kind: Replica
    policy: ModelPolicy
    rules: ScalingRules
    first: int  # replicas
    max_wait_s: float  # p99 of standard calls, with which a fleet serves well enough

    @property
    def floor_tps(self) -> float:
        return self.policy.tiers["fast"].floor_tps


# --- demand ---


def azure_shape() -> tuple[float, ...]:
    """The calls of each minute of Azure's conversation trace, relative to their mean."""
    with (DATA / "azure_minutes.csv").open(newline="", encoding="utf-8") as file:
        calls = [float(row["calls"]) for row in csv.DictReader(file)]
    mean = sum(calls) / len(calls)
    return tuple(one / mean for one in calls)


def factor_at(shape: tuple[float, ...], share: float) -> float:
    """After this share of the day. Between the middles of two parts the demand changes evenly."""
    place = max(0.0, share * len(shape) - 0.5)
    first = min(len(shape) - 1, int(place))
    second = min(len(shape) - 1, first + 1)
    return shape[first] + (shape[second] - shape[first]) * (place - first)


def day_jobs(scene: Scene, seed: int) -> Iterator[Job]:
    """Without an end: after the day, demand stays as it was then."""
    return merge(*(_jobs(scene, tier, seed) for tier in scene.calls), key=lambda job: job.at)


def _jobs(scene: Scene, tier: Tier, seed: int) -> Iterator[Job]:
    """Poisson arrivals."""
    chance = random.Random(f"{tier} {seed}")
    at, number = 0.0, 0
    while True:
        at += chance.expovariate(scene.calls[tier] * factor_at(scene.shape, at / scene.seconds))
        number += 1
        call = Call(f"{tier} {number}", scene.kind.pool, tier, prompt_tokens=scene.prompts.draw(chance))
        yield Job(at, call, scene.answers.draw(chance))


# --- what calls got ---


@dataclass
class Day:
    """What calls got in one day, and what it cost."""

    floor_tps: float
    replica_h: float = 0.0
    most: int = 0  # replicas at one time
    calls: int = 0
    refused: int = 0
    promised: int = 0
    kept: int = 0
    fast_waits_s: Sample = field(default_factory=lambda: Sample("fast"))
    standard_waits_s: Sample = field(default_factory=lambda: Sample("standard"))
    moments: list[FleetMoment] = field(default_factory=list)
    changes: int = 0
    reversals: int = 0

    def add(self, trip: SimTrip) -> None:
        if trip.refused:
            self.note_refusal()
        else:
            is_promised = trip.tier == "fast" and trip.job.tokens >= MIN_TOKENS_FOR_PROMISE
            self.note(trip.tier, trip.waited_s, trip.speed_tps >= self.floor_tps if is_promised else None)

    def note(self, tier: str, waited_s: float, is_kept: bool | None) -> None:
        """A call that was served. `is_kept` is None if nothing was promised to it."""
        self.calls += 1
        if tier == "fast":
            self.fast_waits_s.add(waited_s)
            self.promised += is_kept is not None
            self.kept += is_kept is True
        elif tier == "standard":
            self.standard_waits_s.add(waited_s)

    def note_refusal(self) -> None:
        self.calls += 1
        self.refused += 1

    @property
    def row(self) -> Row:
        return Row(
            self.replica_h,
            self.most,
            self.kept / max(1, self.promised),
            self.refused / max(1, self.calls),
            self.fast_waits_s.quantile(0.95),
            self.standard_waits_s.quantile(0.99),
            self.changes,
            self.reversals,
        )


@dataclass(frozen=True)
class Row:
    replica_h: float
    most: int
    kept: float
    refused: float
    fast_p95_s: float
    standard_p99_s: float
    changes: int = 0
    reversals: int = 0


def service_bars(scene: Scene, name: str, row: Row) -> list[Bar]:
    """What a fleet must give. Fixed ones must too."""
    return [
        at_least(f"{name}: floors kept", row.kept, MIN_KEPT, ".2%"),
        at_most(f"{name}: refused", row.refused, MAX_REFUSED, ".3%"),
        at_most(f"{name}: fast calls wait, p95", row.fast_p95_s, MAX_FAST_P95_S, ".2f", " s"),
        at_most(f"{name}: standard calls wait, p99", row.standard_p99_s, scene.max_wait_s, ".2f", " s"),
        at_most(f"{name}: replicas let go too early", row.reversals, MAX_REVERSALS, "d"),
    ]


def table_of(rows: Mapping[str, Row], hours: float) -> Table:
    """`hours` is the length of the day."""
    table = Table(
        "fleet",
        "replica-hours",
        "most",
        "floors kept",
        "refused",
        "fast p95, s",
        "standard p99, s",
        "changes/h",
        "early",
    )
    for name, row in rows.items():
        waits = (f"{row.fast_p95_s:.2f}", f"{row.standard_p99_s:.2f}")
        served = (f"{row.kept:.2%}", f"{row.refused:.3%}")
        changed = (f"{row.changes / hours:.1f}", f"{row.reversals}")
        table.add_row(name, f"{row.replica_h:,.4g}", f"{row.most}", *served, *waits, *changed)
    return table


def changes_of(wanted: list[tuple[float, int]]) -> int:
    """How often the number of replicas changed. `wanted` has it with its times."""
    return sum(one != after for (_, one), (_, after) in pairwise(wanted))


def reversals_of(wanted: list[tuple[float, int]], start_s: float) -> int:
    """How often more replicas were wanted within two starts after fewer were."""
    count, fell_at = 0, -math.inf
    for (_, one), (at_s, after) in pairwise(wanted):
        if after < one:
            fell_at = at_s
        elif after > one and at_s - fell_at <= 2 * start_s:
            count, fell_at = count + 1, -math.inf
    return count


# --- one day ---


def elastic_day(scene: Scene, seed: int, change: Callable[[ScalingPolicy], None] | None = None) -> Day:
    """`change` gives the policy another part, or takes one away."""
    policy = ScalingPolicy(scene.rules)
    if change is not None:
        change(policy)
    simulation = ElasticSimulation(scene.policy, scene.kind, scene.first, policy)
    day = _play(scene, simulation, seed)
    day.replica_h = simulation.replica_s / HOUR_S
    day.moments = simulation.moments
    day.most = max(one.open + one.starting + one.draining for one in day.moments)
    wanted = [(one.at_s, one.wanted) for one in day.moments]
    day.changes, day.reversals = changes_of(wanted), reversals_of(wanted, scene.rules.start_s)
    return day


def fixed_day(scene: Scene, replicas: int, seed: int) -> Day:
    fleet = [replace(scene.kind, name=f"r{number}") for number in range(replicas)]
    day = _play(scene, Simulation({scene.kind.pool: scene.policy}, fleet), seed)
    day.replica_h, day.most = replicas * scene.seconds / HOUR_S, replicas
    return day


def smallest_fixed(scene: Scene, seed: int, elastic: Row) -> Row:
    """The smallest fixed fleet that serves. Found from the number that would just meet the bar, one more or one fewer
    at a time."""
    replicas = math.floor(elastic.replica_h * HOUR_S / scene.seconds / MAX_RATIO)
    row = fixed_day(scene, replicas, seed).row
    if _serves(scene, row):
        while _serves(scene, smaller := fixed_day(scene, replicas - 1, seed).row):
            replicas, row = replicas - 1, smaller
        return row
    while not _serves(scene, row):
        replicas += 1
        row = fixed_day(scene, replicas, seed).row
    return row


def _serves(scene: Scene, row: Row) -> bool:
    return all(bar.holds for bar in service_bars(scene, "", row))


def _play(scene: Scene, simulation: Simulation, seed: int) -> Day:
    day = Day(scene.floor_tps)
    gc.disable()  # calls create no reference cycles
    try:
        for trip in simulation.run(day_jobs(scene, seed), scene.seconds):
            day.add(trip)
    finally:
        gc.enable()
    return day
