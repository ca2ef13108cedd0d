"""How fast the simulator is, making up the calls included. See runs/sim-speed.sh."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

import headway.core.machine
from headway.core.curve import Curve
from headway.core.types import ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.cell import Cell
from headway.sim.loop import Job, Simulation
from headway.sim.workload import OFFICE_HOURS, Recipe, synthesize

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
# What a replica can serve without calls being refused.
CALLS_PER_S_AND_REPLICA = 5.0
DAY_CALLS_PER_S, DAY_REPLICAS, DAY_S = 45.1, 8, 86_400.0
BARS = {"100 replicas": 30_000, "10,000 replicas": 15_000}
MOST_DAY_S, MOST_GROWTH = 180.0, 0.05


def simulation(replicas: int) -> Simulation:
    policy = ModelPolicy(TIERS, standard_share=0.5)
    return Simulation(Cell({"m": policy}), [Replica(f"r{n}", "m", SEATS, CURVE, PROMPT_TPS) for n in range(replicas)])


def play(sim: Simulation, jobs: Iterator[Job], until: float = 1e12) -> tuple[int, int, float]:
    """(calls, of them refused, seconds of CPU)"""
    before = time.process_time()
    calls = refused = 0
    for trip in sim.run(jobs, until):
        calls += 1
        refused += trip.refused
    return calls, refused, time.process_time() - before


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def rate(replicas: int, calls: int) -> tuple[int, int, float]:
    recipe = Recipe(CALLS_PER_S_AND_REPLICA * replicas, clients=1_000, tiers=SHARES)
    return play(simulation(replicas), islice(synthesize(recipe, 1), calls))


def as_source() -> float:
    """Calls per second of the same code as Python runs it."""
    ask = "from runs.simulation.speed import rate; calls, _, seconds = rate(100, 50_000); print(calls / seconds)"
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    asked = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, check=True, text=True)
    return float(asked.stdout)


def main() -> int:
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    console.print(f"compiled: {headway.core.machine.__file__.endswith('.so')}")
    table = Table("what", "calls", "refused", "CPU s", "calls/s", "bar", "")
    holds = []
    for name, replicas in (("100 replicas", 100), ("10,000 replicas", 10_000)):
        calls, refused, seconds = rate(replicas, int(scale * 1_000_000))
        holds.append(calls / seconds >= BARS[name])
        row = [f"{calls:,}", f"{refused:,}", f"{seconds:.1f}", f"{calls / seconds:,.0f}", f"{BARS[name]:,}"]
        table.add_row(f"{name}, three tiers, 1,000 tenants", *row, "holds" if holds[-1] else "MISSED")
    recipe = Recipe(DAY_CALLS_PER_S, clients=1_000, hours=OFFICE_HOURS, tiers=SHARES)
    calls, refused, seconds = play(simulation(DAY_REPLICAS), synthesize(recipe, 1), scale * DAY_S)
    holds.append(seconds <= MOST_DAY_S * scale)
    row = [f"{calls:,}", f"{refused:,}", f"{seconds:.1f}", f"{calls / seconds:,.0f}", f"{MOST_DAY_S:g} s"]
    table.add_row("a day of 45 calls/s, 8 replicas", *row, "holds" if holds[-1] else "MISSED")
    growth = memory_growth(scale)
    holds.append(growth <= MOST_GROWTH)
    console.print(table)
    console.print(f"not compiled, 100 replicas: {as_source():,.0f} calls/s")
    console.print(f"memory after 10 million calls beside that after 1 million: {growth:+.1%} (bar {MOST_GROWTH:.0%})")
    return 0 if all(holds) else 1


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
