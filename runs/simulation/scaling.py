"""A fleet that scales beside fixed ones, over a day in virtual time. See runs/scaling.sh."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from headway.core.curve import Curve
from headway.core.reserve import Forecaster
from headway.core.scaling import ScalingPolicy, ScalingRules
from headway.core.types import MIN_TOKENS_FOR_PROMISE, ModelPolicy, Replica, TierPolicy
from headway.sim.elastic import ElasticSimulation, FleetMoment
from headway.sim.loop import SimTrip, Simulation
from headway.sim.sample import Sample
from headway.sim.workload import DAY_S, HOUR_S
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish
from runs.simulation.scaling_day import day_jobs
from runs.simulation.scaling_picture import draw_day

console = Console(width=120)
SEEDS = range(1, 4)  # the constants of core/scaling.py were chosen on seeds from 901
KIND = Replica("", "m", 16, Curve(a=0.010, c=0.0010, d=0.0), prompt_tps=20_000.0)  # 91 tok/s alone, 38 at 16 streams
FLOOR_TPS = 60.0  # allows 5 streams
RULES = ScalingRules(min_replicas=2, max_replicas=60, start_s=180.0)
FIRST = 20
POLICY = ModelPolicy(
    {
        "fast": TierPolicy(10_000, 5.0, floor_tps=FLOOR_TPS),
        "standard": TierPolicy(10_000, 30.0),
        "flex": TierPolicy(10_000, 600.0),
    },
)
MIN_KEPT, MAX_REFUSED, MAX_FAST_P95_S, MAX_STANDARD_P99_S = 0.995, 0.005, 0.5, 5.0
MAX_RATIO = 0.75
# A replica that leaves and is ordered again before two starts have passed was let go too early.
MAX_REVERSALS = 12  # in a day: one in two hours


@dataclass
class Day:
    """What calls got in one day, and what it cost."""

    replica_h: float
    most: int = 0  # replicas at one time
    calls: int = 0
    refused: int = 0
    promised: int = 0
    kept: int = 0
    fast_waits_s: Sample = field(default_factory=lambda: Sample("fast"))
    standard_waits_s: Sample = field(default_factory=lambda: Sample("standard"))
    moments: list[FleetMoment] = field(default_factory=list)

    def add(self, trip: SimTrip) -> None:
        self.calls += 1
        if trip.refused:
            self.refused += 1
        elif trip.tier == "fast":
            self.fast_waits_s.add(trip.waited_s)
            if trip.job.tokens >= MIN_TOKENS_FOR_PROMISE:
                self.promised += 1
                self.kept += trip.speed_tps >= FLOOR_TPS
        elif trip.tier == "standard":
            self.standard_waits_s.add(trip.waited_s)

    @property
    def row(self) -> Row:
        return Row(
            self.replica_h,
            self.most,
            self.kept / max(1, self.promised),
            self.refused / max(1, self.calls),
            self.fast_waits_s.quantile(0.95),
            self.standard_waits_s.quantile(0.99),
            changes_of(self.moments),
            reversals_of(self.moments),
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

    @property
    def serves(self) -> bool:
        return (
            self.kept >= MIN_KEPT
            and self.refused <= MAX_REFUSED
            and self.fast_p95_s <= MAX_FAST_P95_S
            and self.standard_p99_s <= MAX_STANDARD_P99_S
        )


def changes_of(moments: list[FleetMoment]) -> int:
    return sum(one.wanted != after.wanted for one, after in pairwise(moments))


def reversals_of(moments: list[FleetMoment]) -> int:
    """How often more replicas were wanted within two starts after fewer were."""
    count, fell_at = 0, -math.inf
    for one, after in pairwise(moments):
        if after.wanted < one.wanted:
            fell_at = after.at_s
        elif after.wanted > one.wanted and after.at_s - fell_at <= 2 * RULES.start_s:
            count, fell_at = count + 1, -math.inf
    return count


# --- one day ---


def elastic_day(seed: int, change: Callable[[ScalingPolicy], None] | None = None) -> Day:
    """`change` gives the policy another part, or takes one away."""
    policy = ScalingPolicy(RULES)
    if change is not None:
        change(policy)
    simulation = ElasticSimulation(POLICY, KIND, FIRST, policy)
    day = _play(simulation, seed)
    day.replica_h = simulation.replica_s / HOUR_S
    day.moments = simulation.moments
    day.most = max(one.open + one.starting + one.draining for one in simulation.moments)
    return day


def fixed_day(replicas: int, seed: int) -> Day:
    fleet = [replace(KIND, name=f"r{number}") for number in range(replicas)]
    day = _play(Simulation({"m": POLICY}, fleet), seed)
    day.replica_h, day.most = replicas * DAY_S / HOUR_S, replicas
    return day


def _play(simulation: Simulation, seed: int) -> Day:
    day = Day(0.0)
    gc.disable()  # calls create no reference cycles
    try:
        for trip in simulation.run(day_jobs(seed, "m"), DAY_S):
            day.add(trip)
    finally:
        gc.enable()
    return day


def with_trend(policy: ScalingPolicy) -> None:
    policy.forecasters = [*policy.forecasters, Forecaster(1.0, 2.0)]


def without_cool_down(policy: ScalingPolicy) -> None:
    policy.cool_down_s = 0.0


CHANGES = {"with a trend": with_trend, "without a cool-down": without_cool_down}


# --- all days ---


@dataclass(frozen=True)
class Compared:
    """One seed: the fleet that scales, the smallest fixed one that serves as it must, and the largest that it was."""

    elastic: Row
    smallest: Row
    largest: Row

    @property
    def ratio(self) -> float:
        return self.elastic.replica_h / self.smallest.replica_h


@dataclass(frozen=True)
class Figures:
    seeds: dict[int, Compared]


def smallest_fixed(seed: int, elastic: Row) -> Row:
    """Found from the number that would just meet the bar, one more or one fewer at a time."""
    replicas = math.floor(elastic.replica_h / 24 / MAX_RATIO)
    row = fixed_day(replicas, seed).row
    if row.serves:
        while (smaller := fixed_day(replicas - 1, seed).row).serves:
            replicas, row = replicas - 1, smaller
        return row
    while not row.serves:
        replicas += 1
        row = fixed_day(replicas, seed).row
    return row


def verdict(figures: Figures) -> Verdict:
    bars: list[Bar] = []
    for seed, one in figures.seeds.items():
        elastic = one.elastic
        bars += [
            at_most(f"seed {seed}: replica-hours ÷ the smallest fixed fleet", one.ratio, MAX_RATIO, ".3f"),
            at_least(f"seed {seed}: floors kept", elastic.kept, MIN_KEPT, ".2%"),
            at_most(f"seed {seed}: refused", elastic.refused, MAX_REFUSED, ".3%"),
            at_most(f"seed {seed}: fast calls wait, p95", elastic.fast_p95_s, MAX_FAST_P95_S, ".2f", " s"),
            at_most(f"seed {seed}: standard calls wait, p99", elastic.standard_p99_s, MAX_STANDARD_P99_S, ".2f", " s"),
            at_most(f"seed {seed}: replicas let go too early", elastic.reversals, MAX_REVERSALS, "d"),
        ]
    rows = list(figures.seeds.values())
    ratios = ", ".join(f"{one.ratio:.3f}" for one in rows)
    worst = max(one.elastic.refused for one in rows)
    figure = (
        f"replica-hours of a day ÷ the smallest fixed fleet that serves as well: {ratios} (bar {MAX_RATIO}); "
        f"floors kept {min((one.elastic.kept for one in rows), default=math.nan):.2%}; refused {worst:.3%} at most; "
        f"{max(one.elastic.changes for one in rows) / 24:.1f} changes per hour at most"
    )
    return Verdict(figure, tuple(bars))


def show(rows: dict[str, Row]) -> None:
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
        changed = (f"{row.changes / 24:.1f}", f"{row.reversals}")
        table.add_row(name, f"{row.replica_h:,.0f}", f"{row.most}", *served, *waits, *changed)
    console.print(table)


def main(seeds: int) -> int:
    chosen = list(SEEDS)[:seeds]
    with ProcessPoolExecutor(2) as pool:
        days = {seed: pool.submit(elastic_day, seed) for seed in chosen}
        changed_days: dict[str, Future[Day]] = {
            name: pool.submit(elastic_day, chosen[0], change) for name, change in CHANGES.items()
        }
        elastic = {seed: day.result().row for seed, day in days.items()}
        smallest = {seed: pool.submit(smallest_fixed, seed, row) for seed, row in elastic.items()}
        largest = {seed: pool.submit(fixed_day, row.most, seed) for seed, row in elastic.items()}
        compared = {
            seed: Compared(elastic[seed], smallest[seed].result(), largest[seed].result().row) for seed in chosen
        }
        rows: dict[str, Row] = {}
        for seed, one in compared.items():
            rows |= {f"scales, seed {seed}": one.elastic, f"smallest fixed, seed {seed}": one.smallest}
            rows[f"fixed at its largest, seed {seed}"] = one.largest
        rows |= {f"scales {name}, seed {chosen[0]}": day.result().row for name, day in changed_days.items()}
        show(rows)
        draw_day(days[chosen[0]].result().moments, compared[chosen[0]].smallest.most, chosen[0])
    return finish(console, verdict(Figures(compared)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else len(SEEDS)))
