"""Measures the simulator's speed, including the generation of calls. See runs/sim-speed.sh."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

import headway.core.machine
from headway.core.curve import Curve
from headway.core.types import ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.loop import Job, Simulation
from headway.sim.workload import OFFICE_HOURS, Recipe, synthesize
from runs.measure.machine import require
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish

console = Console(width=120)
CHECKOUT = Path(__file__).parents[2]
CURVE = Curve(a=0.008, c=0.0003, d=0.0)
SEATS, PROMPT_TPS = 64, 50_000.0
TIERS: dict[Tier, TierPolicy] = {
    "fast": TierPolicy(1_000, 5.0, floor_tps=74.0),
    "standard": TierPolicy(10_000, 30.0),
    "flex": TierPolicy(10_000, 600.0),
}
SHARES: dict[Tier, float] = {"standard": 0.8, "fast": 0.15, "flex": 0.05}
# The rate that a replica serves without refusing calls.
CALLS_PER_S_AND_REPLICA = 5.0
DAY_CALLS_PER_S, DAY_REPLICAS, DAY_S = 45.1, 8, 86_400.0
FLEETS = {"100 replicas": 100, "10,000 replicas": 10_000}
BARS = {"100 replicas": 30_000, "10,000 replicas": 15_000}
MOST_DAY_S, MOST_GROWTH = 180.0, 0.05


@dataclass(frozen=True)
class Played:
    calls: int
    refused: int
    cpu_s: float

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.cpu_s


def simulation(replicas: int) -> Simulation:
    policy = ModelPolicy(TIERS, standard_share=0.5)
    return Simulation({"m": policy}, [Replica(f"r{n}", "m", SEATS, CURVE, PROMPT_TPS) for n in range(replicas)])


def play(sim: Simulation, jobs: Iterator[Job], until: float = 1e12) -> Played:
    before = time.process_time()
    calls = refused = 0
    for trip in sim.run(jobs, until):
        calls += 1
        refused += trip.refused
    return Played(calls, refused, time.process_time() - before)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def rate(replicas: int, calls: int) -> Played:
    recipe = Recipe(CALLS_PER_S_AND_REPLICA * replicas, clients=1_000, tiers=SHARES)
    return play(simulation(replicas), islice(synthesize(recipe, 1), calls))


def as_source() -> Played:
    """Run the same code interpreted, not compiled."""
    ask = "from runs.simulation.speed import rate; one = rate(100, 50_000); print(one.calls, one.refused, one.cpu_s)"
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    asked = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, check=True, text=True)
    calls, refused, cpu_s = asked.stdout.split()
    return Played(int(calls), int(refused), float(cpu_s))


@dataclass(frozen=True)
class Figures:
    compiled: bool
    scale: float  # of the number of calls
    fleets: dict[str, Played]
    day: Played
    memory_growth: float
    source: Played  # the first fleet, not compiled


def verdict(figures: Figures) -> Verdict:
    bars = [Bar("the simulator is compiled", str(figures.compiled), "True", figures.compiled)]
    bars += [
        at_least(f"calls/s, {name}", played.calls_per_s, BARS[name], ",.0f") for name, played in figures.fleets.items()
    ]
    most_s = MOST_DAY_S * figures.scale
    bars.append(at_most("a day of 45 calls/s, 8 replicas", figures.day.cpu_s, most_s, ",.1f", " s of CPU"))
    bars.append(at_most("memory after ten times the calls", figures.memory_growth, MOST_GROWTH, "+.1%"))
    rates = ", ".join(f"{played.calls_per_s:,.0f} with {name}" for name, played in figures.fleets.items())
    figure = (
        f"calls/s: {rates}; not compiled {figures.source.calls_per_s:,.0f}; a day of {figures.day.calls:,} calls in "
        f"{figures.day.cpu_s:.0f} s of CPU; memory after ten times the calls {figures.memory_growth:+.1%}"
    )
    return Verdict(figure, tuple(bars))


def main() -> int:
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    require(console, fast_cores=True, free_cores=True)
    fleets = {name: rate(replicas, int(scale * 1_000_000)) for name, replicas in FLEETS.items()}
    recipe = Recipe(DAY_CALLS_PER_S, clients=1_000, hours=OFFICE_HOURS, tiers=SHARES)
    day = play(simulation(DAY_REPLICAS), synthesize(recipe, 1), scale * DAY_S)
    table = Table("what", "calls", "refused", "CPU s", "calls/s")
    for name, one in {**fleets, "a day of 45 calls/s, 8 replicas": day}.items():
        row = [f"{one.calls:,}", f"{one.refused:,}", f"{one.cpu_s:.1f}", f"{one.calls_per_s:,.0f}"]
        table.add_row(f"{name}, three tiers, 1,000 tenants", *row)
    console.print(table)
    is_compiled = headway.core.machine.__file__.endswith(".so")
    return finish(console, verdict(Figures(is_compiled, scale, fleets, day, memory_growth(scale), as_source())))


def memory_growth(scale: float) -> float:
    recipe = Recipe(CALLS_PER_S_AND_REPLICA * 100, clients=1_000, tiers=SHARES)
    jobs, sim = synthesize(recipe, 2), simulation(100)
    after: list[float] = []
    for number, _ in enumerate(sim.run(jobs, 1e12)):
        if number in (int(scale * 1e6), int(scale * 1e7)):
            after.append(resident_mb())
            if len(after) == 2:
                break
    return after[1] / after[0] - 1


if __name__ == "__main__":
    raise SystemExit(main())
