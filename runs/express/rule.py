"""Compares the express rule with a shared pool and static splits, in virtual time. See runs/express-rule.sh."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from heapq import merge

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.charts import BLUE, ORANGE
from headway.core.curve import Curve
from headway.core.types import Call, ModelPolicy, Replica, TierPolicy
from headway.sim.cell import Cell
from headway.sim.loop import Job, Simulation
from runs.express.pictures import Strip, Words, light_and_heavy, over_time, save
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish

console = Console(width=120)
REPLICAS, SEATS = 50, 64
CURVE = Curve(a=0.008, c=0.0003, d=0.0)  # 120 tok/s at 1 stream, 37 tok/s at 64
FLOOR_TPS = 74.0
LIGHT_SEATS = CURVE.largest_batch(FLOOR_TPS, SEATS)
SECONDS, WARM_UP_S = 360.0, 60.0
TOKENS_MEDIAN, TOKENS_SIGMA = 220, 0.8
STANDARD_PER_S = 420.0  # more than the fleet can serve: standard calls always wait
FAST_PER_S, SWING, FAST_CV = 45.0, 5.0, 2.0  # mean rate; highest ÷ lowest over the run; burstiness of arrivals
FAST_HOLD_S = 5.0
BIN_S = 5  # bin width of the waits in the picture
MAX_WAIT_P95_S, MIN_KEPT, MIN_GAIN, GOAL_GAIN = 0.5, 0.995, 1.05, 1.10


@dataclass
class Moment:
    """The state of a run at one second."""

    at_s: int
    fast_streams: int  # aboard or held
    light_seats: int  # taken or ready, or still emptying
    standard_tps: float


@dataclass
class Outcome:
    name: str
    seed: int
    kept: float = 0.0
    refused: float = 0.0
    standard_tps: float = 0.0
    moments: list[Moment] = field(default_factory=list)  # one per second, for the picture
    waits: list[tuple[float, float]] = field(default_factory=list)  # arrival and wait of each fast call

    @property
    def waits_s(self) -> list[float]:
        """The waits after the warm-up."""
        return [waited_s for at, waited_s in self.waits if at >= WARM_UP_S]


def lengths(chance: random.Random) -> int:
    return max(20, min(4000, round(chance.lognormvariate(math.log(TOKENS_MEDIAN), TOKENS_SIGMA))))


def fast_rate(at: float) -> float:
    """Two geometric waves over the run; the highest rate is SWING times the lowest."""
    return FAST_PER_S * math.exp(0.5 * math.log(SWING) * math.sin(2 * math.pi * at / (SECONDS / 2)))


def fast_jobs(seed: int, model: str, tier: str) -> Iterator[Job]:
    chance = random.Random(f"fast {seed}")
    shape, at, number = 1 / FAST_CV**2, 0.0, 0
    while True:
        at += chance.gammavariate(shape, 1 / shape) / fast_rate(at)
        number += 1
        yield Job(at, Call(f"f{number}", model, tier), lengths(chance))  # type: ignore[arg-type]


def standard_jobs(seed: int, model: str) -> Iterator[Job]:
    chance = random.Random(f"standard {seed}")
    at, number = 0.0, 0
    while True:
        at += chance.expovariate(STANDARD_PER_S)
        number += 1
        yield Job(at, Call(f"s{number}", model, "standard"), lengths(chance))


def fleet(name: str, seed: int) -> tuple[dict[str, ModelPolicy], list[Replica], Iterator[Job]]:
    """The policies, replicas and calls of one policy. A static split serves its fast replicas as a separate model."""
    standard = TierPolicy(max_held=400, max_hold_s=1e9)
    fast = TierPolicy(max_held=10_000, max_hold_s=FAST_HOLD_S, floor_tps=FLOOR_TPS)
    if name == "express rule":
        policies = {"m": ModelPolicy({"fast": fast, "standard": standard}, standard_share=0.3)}
        replicas = [Replica(f"r{n}", "m", SEATS, CURVE) for n in range(REPLICAS)]
        jobs = merge(fast_jobs(seed, "m", "fast"), standard_jobs(seed, "m"), key=lambda job: job.at)
    elif name == "one shared pool":
        policies = {"m": ModelPolicy({"standard": standard})}
        replicas = [Replica(f"r{n}", "m", SEATS, CURVE) for n in range(REPLICAS)]
        jobs = merge(fast_jobs(seed, "m", "standard"), standard_jobs(seed, "m"), key=lambda job: job.at)
    else:
        split = split_of(name)
        only_fast = TierPolicy(max_held=10_000, max_hold_s=FAST_HOLD_S)
        policies = {"fast": ModelPolicy({"standard": only_fast}), "m": ModelPolicy({"standard": standard})}
        replicas = [
            Replica(f"r{n}", "fast" if n < split else "m", LIGHT_SEATS if n < split else SEATS, CURVE)
            for n in range(REPLICAS)
        ]
        jobs = merge(fast_jobs(seed, "fast", "standard"), standard_jobs(seed, "m"), key=lambda job: job.at)
    return policies, replicas, jobs


def split_of(name: str) -> int:
    """The number of replicas that a static split reserves for fast calls; 0 for the other policies."""
    return int(name.split()[-1]) if name.startswith("static") else 0


def look(name: str, simulation: Simulation) -> Moment:
    """The current state: streams, light seats, and the speed of standard streams at the current batches."""
    pool = simulation.cell.machines[0].pools["m"]
    standard_tps = 0.0
    for state in (pool.replica_state(f"r{n}") for n in range(split_of(name), REPLICAS)):
        assert state is not None
        if state.aboard:
            streams = sum(call.startswith("s") for call in state.aboard)
            standard_tps += streams * CURVE.speed_tps(len(state.aboard))
    return Moment(
        at_s=math.floor(simulation.now),
        fast_streams=sum(call.startswith("f") for call in simulation.trips),
        light_seats=LIGHT_SEATS * (split_of(name) or pool.light_replicas),
        standard_tps=standard_tps,
    )


def simulate(name: str, seed: int) -> Outcome:
    policies, replicas, jobs = fleet(name, seed)
    simulation = Simulation(Cell(policies), replicas)
    outcome = Outcome(name, seed)
    fast_seen = kept = refused = tokens = 0
    for trip in simulation.run(jobs, SECONDS):
        if simulation.now >= len(outcome.moments) + 1:
            outcome.moments.append(look(name, simulation))
        is_fast = trip.job.call.id.startswith("f")
        if is_fast and not trip.refused:
            outcome.waits.append((trip.job.at, trip.waited_s))
        if not is_fast:
            # Count calls that ended in the measured time, whenever they came: as many cross its start as its end.
            tokens += trip.job.tokens if simulation.now >= WARM_UP_S and not trip.refused else 0
        elif trip.job.at >= WARM_UP_S:
            fast_seen += 1
            refused += trip.refused
            kept += not trip.refused and trip.speed_tps >= FLOOR_TPS
    outcome.kept = kept / max(1, fast_seen - refused)
    outcome.refused = refused / max(1, fast_seen)
    outcome.standard_tps = tokens / (SECONDS - WARM_UP_S)
    return outcome


def longest_waits(outcome: Outcome) -> list[tuple[int, float]]:
    """The longest wait of the fast calls that arrived in each BIN_S seconds."""
    longest = dict.fromkeys(range(0, int(SECONDS) + 1, BIN_S), 0.0)
    for at, waited_s in outcome.waits:
        came = int(at) // BIN_S * BIN_S
        longest[came] = max(longest[came], waited_s)
    return list(longest.items())


def strips(rule: Outcome, split: Outcome) -> list[Strip]:
    """The strips of the picture over time, for one seed."""
    both = (("rule", rule), ("split", split))
    seats = [{"at_s": one.at_s, "who": who, "value": one.light_seats} for who, of in both for one in of.moments]
    seats += [{"at_s": one.at_s, "who": "demand", "value": one.fast_streams} for one in rule.moments]
    speed = [{"at_s": one.at_s, "who": who, "value": round(one.standard_tps)} for who, of in both for one in of.moments]
    waits = [{"at_s": at, "who": who, "value": round(s, 3)} for who, of in both for at, s in longest_waits(of)]
    ours, theirs = "express rule", f"static split, {split_of(split.name)} of {REPLICAS} replicas for fast calls"
    return [
        Strip(
            "Light seats follow the demand of fast calls; a static split keeps the same number all the time",
            "Light seats of the fleet, and the fast streams present under the rule (aboard or held)",
            "seats, streams", 210, seats,
            [Words(104, 300, ours, BLUE), Words(140, 400, theirs, ORANGE, "center"),
             Words(236, 120, "fast streams", "black", "center")],
        ),
        Strip(
            "Standard calls have the rest: less at the peak of fast demand, far more between the peaks",
            "Output of all standard streams together",
            "tok/s", 150, speed,
            [Words(116, 97_000, ours, BLUE, "right"), Words(140, 46_000, theirs, ORANGE, "center")],
        ),
        Strip(
            "Fast calls wait while demand rises faster than replicas empty; under the split, while its seats are taken",
            f"Longest wait among the fast calls that came in each {BIN_S} s",
            "seconds", 90, waits,
            [Words(182, 1.2, ours, BLUE, "right"), Words(253, 0.7, "static split", ORANGE)], ".1f",
        ),
    ]  # fmt: skip


def draw(rule: Outcome, split: Outcome) -> None:
    """Draw the pictures of docs/explanation/fast-mode.md."""
    save(over_time(strips(rule, split), SECONDS, WARM_UP_S), "express-rule")
    save(light_and_heavy(CURVE, FLOOR_TPS, SEATS), "light-and-heavy")


@dataclass(frozen=True)
class Row:
    """One policy, over all seeds."""

    kept: float  # share of fast calls that kept their floor
    wait_p95_s: float
    refused: float
    standard_tps: float


Figures = dict[str, Row]  # by policy


def best_split(figures: Figures) -> str | None:
    """The static split with the most standard output among those that serve fast calls as well as the rule."""
    rule = figures["express rule"]
    serving = [
        name
        for name, row in figures.items()
        if name.startswith("static")
        and row.kept >= MIN_KEPT
        and row.wait_p95_s <= MAX_WAIT_P95_S
        and row.refused <= max(rule.refused, 0.001)
    ]
    return max(serving, key=lambda name: figures[name].standard_tps, default=None)


def verdict(figures: Figures) -> Verdict:
    rule, split = figures["express rule"], best_split(figures)
    gain = rule.standard_tps / figures[split].standard_tps if split else math.nan
    bars = (
        at_least("floors kept", rule.kept, MIN_KEPT, ".2%"),
        at_most("wait p95", rule.wait_p95_s, MAX_WAIT_P95_S, ".3f", " s"),
        Bar("static splits that serve as well", split or "none", "one at least", split is not None),
        at_least("standard throughput ÷ that of the best of these", gain, MIN_GAIN, ".3f"),
    )
    figure = (
        f"floors kept {rule.kept:.2%} (bar {MIN_KEPT:.1%}), p95 wait {1000 * rule.wait_p95_s:.0f} ms (bar 500), "
        f"standard throughput {gain:.3f}x the best static split that serves as well (bar {MIN_GAIN}, goal {GOAL_GAIN})"
    )
    return Verdict(figure, bars)


def main(seeds: int) -> int:
    splits = list(range(18, 34))
    names = ["one shared pool", *[f"static split {k}" for k in splits], "express rule"]
    tasks = [(name, seed) for seed in range(seeds) for name in names]
    with ProcessPoolExecutor(2) as pool:
        done = pool.map(simulate, *zip(*tasks, strict=True))
        results = list(track(done, "simulating", total=len(tasks), console=console, transient=True))
    table = Table("policy", "floors kept", "wait p50, ms", "wait p95, ms", "refused", "standard tok/s", "spread")
    figures: Figures = {}
    for name in names:
        mine = [one for one in results if one.name == name]
        waits = sorted(wait for one in mine for wait in one.waits_s)
        kept, refused = (statistics.mean(getattr(one, what) for one in mine) for what in ("kept", "refused"))
        speeds = [one.standard_tps for one in mine]
        p50, p95 = (waits[int(share * len(waits))] for share in (0.5, 0.95))
        figures[name] = Row(kept, p95, refused, statistics.mean(speeds))
        table.add_row(
            name, f"{kept:.2%}", f"{1000 * p50:.0f}", f"{1000 * p95:.0f}", f"{refused:.2%}",
            f"{statistics.mean(speeds):,.0f}", f"{min(speeds):,.0f} .. {max(speeds):,.0f}",
        )  # fmt: skip
    console.print(table)
    if split := best_split(figures):
        first = {one.name: one for one in results if one.seed == 0}
        draw(first["express rule"], first[split])
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
