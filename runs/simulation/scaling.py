"""A fleet that scales beside fixed ones, over a day in virtual time. See runs/scaling.sh."""

from __future__ import annotations

import math
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

from rich.console import Console

from headway.core.curve import Curve
from headway.core.reserve import Forecaster
from headway.core.scaling import ScalingPolicy, ScalingRules
from headway.core.types import ModelPolicy, Replica, TierPolicy
from headway.sim.workload import DAY_S, Lengths
from runs.measure.verdict import Bar, Verdict, at_most, finish
from runs.simulation.scaled_day import (
    MAX_RATIO,
    Day,
    Row,
    Scene,
    azure_shape,
    elastic_day,
    fixed_day,
    service_bars,
    smallest_fixed,
    table_of,
)
from runs.simulation.scaling_picture import draw_day

console = Console(width=120)
SEEDS = range(1, 4)  # the constants of core/scaling.py were chosen on seeds from 901
DAY = Scene(
    DAY_S,
    shape=azure_shape(),  # its hour, stretched over the day
    calls={"fast": 1.2, "standard": 9.6, "flex": 0.5},
    prompts=Lengths(1_100, 0.95, 8_000),
    answers=Lengths(880, 0.8, 8_000, least=20),
    kind=Replica("", "m", 16, Curve(a=0.010, c=0.0010, d=0.0), prompt_tps=20_000.0),  # 91 tok/s alone, 38 at 16 streams
    policy=ModelPolicy(
        {
            "fast": TierPolicy(10_000, 5.0, floor_tps=60.0),  # allows 5 streams
            "standard": TierPolicy(10_000, 30.0),
            "flex": TierPolicy(10_000, 600.0),
        }
    ),
    rules=ScalingRules(min_replicas=2, max_replicas=60, start_s=180.0),
    first=20,
    max_wait_s=5.0,
)


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


def verdict(figures: Figures) -> Verdict:
    bars: list[Bar] = []
    for seed, one in figures.seeds.items():
        bars += [
            at_most(f"seed {seed}: replica-hours ÷ the smallest fixed fleet", one.ratio, MAX_RATIO, ".3f"),
            *service_bars(DAY, f"seed {seed}", one.elastic),
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


def main(seeds: int) -> int:
    chosen = list(SEEDS)[:seeds]
    with ProcessPoolExecutor(2) as pool:
        days = {seed: pool.submit(elastic_day, DAY, seed) for seed in chosen}
        changed_days: dict[str, Future[Day]] = {
            name: pool.submit(elastic_day, DAY, chosen[0], change) for name, change in CHANGES.items()
        }
        elastic = {seed: day.result().row for seed, day in days.items()}
        smallest = {seed: pool.submit(smallest_fixed, DAY, seed, row) for seed, row in elastic.items()}
        largest = {seed: pool.submit(fixed_day, DAY, row.most, seed) for seed, row in elastic.items()}
        compared = {
            seed: Compared(elastic[seed], smallest[seed].result(), largest[seed].result().row) for seed in chosen
        }
        rows: dict[str, Row] = {}
        for seed, one in compared.items():
            rows |= {f"scales, seed {seed}": one.elastic, f"smallest fixed, seed {seed}": one.smallest}
            rows[f"fixed at its largest, seed {seed}"] = one.largest
        rows |= {f"scales {name}, seed {chosen[0]}": day.result().row for name, day in changed_days.items()}
        console.print(table_of(rows, 24.0))
        draw_day(days[chosen[0]].result().moments, compared[chosen[0]].smallest.most, chosen[0])
    return finish(console, verdict(Figures(compared)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else len(SEEDS)))
