"""Compares the express rule that moves streams with the same rule that does not, in virtual time. See runs/moves.sh.

The demand, the fleet and the tiers are those of runs/express-rule.sh. There prompts take no time, and a move would cost
nothing. Here every call has a prompt, lognormal with a median of 300 tokens and a mean of 413, and a replica reads
20,000 tokens per second, during which none of its streams gets a token. A stream that moves has its prompt and its
tokens read again, after the 0.1 s in which its engine stops it. Both policies get the same calls, all continuable.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from heapq import merge
from itertools import product

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.core.types import ModelPolicy, Replica
from headway.sim.loop import Job, SimTrip, Simulation
from runs.express.demand import CELLS, SECONDS, WARM_UP_S, Demand, fast_jobs, standard_jobs
from runs.express.rule import CURVE, FAST, FLOOR_TPS, REPLICAS, SEATS, STANDARD
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=140)
PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_MOST = 300, 0.8, 8_000
PROMPT_TPS = 20_000.0
SEEDS = range(1, 6)  # the constants of core were chosen on seeds from 2000
SAFE_SEATS = CURVE.largest_batch(FLOOR_TPS, SEATS, ModelPolicy({}).margin)
SWING = 5.0  # the bars are for this one
MIN_GAIN, GOAL_GAIN, MAX_WAIT_P95_S, MIN_KEPT = 1.12, 1.2, 0.2, 0.995


@dataclass
class Outcome:
    """What calls got in one simulation, after the warm-up."""

    waits_s: list[float] = field(default_factory=list)  # of the fast calls that were served
    kept: int = 0
    refused: int = 0  # fast calls
    standard_tps: float = 0.0
    standard_calls: int = 0
    moves: int = 0
    added_s: list[float] = field(default_factory=list)  # by the pauses of each stream that was moved
    lost: int = 0  # streams that ended in an error for want of a seat
    fast_streams: list[int] = field(default_factory=list)  # aboard or held, at each second


def with_prompts(jobs: Iterator[Job], name: str) -> Iterator[Job]:
    chance = random.Random(name)
    for job in jobs:
        drawn = chance.lognormvariate(math.log(PROMPT_MEDIAN), PROMPT_SIGMA)
        job.call.prompt_tokens = min(PROMPT_MOST, max(1, round(drawn)))
        job.call.is_continuable = True
        yield job


def simulate(demand: Demand, seed: int, *, moves_streams: bool) -> Outcome:
    policy = ModelPolicy({"fast": FAST, "standard": STANDARD}, standard_share=0.3, moves_streams=moves_streams)
    replicas = [Replica(f"r{number}", "m", SEATS, CURVE, PROMPT_TPS) for number in range(REPLICAS)]
    jobs = merge(
        with_prompts(fast_jobs(demand, seed, "m", "fast"), f"fast prompts {seed}"),
        with_prompts(standard_jobs(seed, "m"), f"standard prompts {seed}"),
        key=lambda job: job.at,
    )
    simulation = Simulation({"m": policy}, replicas)
    outcome, tokens = Outcome(), 0
    pool = simulation.machines[0].pools["m"]
    for trip in simulation.run(jobs, SECONDS):
        while simulation.now >= WARM_UP_S + len(outcome.fast_streams):
            outcome.fast_streams.append(pool.express_streams)
        is_measured = simulation.now >= WARM_UP_S
        if is_measured and trip.moves:
            outcome.moves += trip.moves
            outcome.lost += trip.how != "finished"
            outcome.added_s.append(trip.paused_s)
        if trip.job.call.tier == "fast":
            _count_fast(outcome, trip)
        elif is_measured and trip.how == "finished":
            # Calls that ended in the measured time, whenever they came: as many cross its start as its end.
            tokens += trip.job.tokens
            outcome.standard_calls += 1
    outcome.standard_tps = tokens / (SECONDS - WARM_UP_S)
    return outcome


def _count_fast(outcome: Outcome, trip: SimTrip) -> None:
    if trip.job.at < WARM_UP_S:
        return
    if trip.how != "finished":
        outcome.refused += 1
    else:
        outcome.waits_s.append(trip.waited_s)
        outcome.kept += trip.speed_tps >= FLOOR_TPS


def packed_tps(fast_streams: list[int], tokens_of_a_call: float) -> float:
    """Standard tokens per second if light seats followed demand without delay, reserve or gaps: the fewest light
    replicas with the light seats that the margin for prompts leaves, standard calls on their other seats and on all
    heavy seats."""
    read_s = PROMPT_MEDIAN * math.exp(PROMPT_SIGMA**2 / 2) / PROMPT_TPS  # for each call

    def tps(streams: int) -> float:
        """Of a replica with so many streams, with the time in which it reads the prompts of its calls."""
        decoding_s = CURVE.seconds_per_token(streams) / streams
        return 1.0 / (decoding_s + read_s / tokens_of_a_call)

    def at(fast: int) -> float:
        light = math.ceil(fast / SAFE_SEATS)
        riders = light * SAFE_SEATS - fast
        return (REPLICAS - light) * tps(SEATS) + riders * tps(SAFE_SEATS) / SAFE_SEATS

    return statistics.mean(map(at, fast_streams))


@dataclass(frozen=True)
class Row:
    """One policy with one demand, over all seeds."""

    standard_tps: float
    wait_p95_s: float
    kept: float
    refused: float
    moves: float  # of 1,000 standard calls
    added_mean_s: float
    added_p99_s: float
    lost: int
    packed_tps: float


def row_of(outcomes: list[Outcome]) -> Row:
    waits = sorted(wait for one in outcomes for wait in one.waits_s)
    added = sorted(one_s for one in outcomes for one_s in one.added_s)
    refused = sum(one.refused for one in outcomes)
    calls = sum(one.standard_calls for one in outcomes)
    standard_tps = statistics.mean(one.standard_tps for one in outcomes)
    tokens_of_a_call = standard_tps * (SECONDS - WARM_UP_S) * len(outcomes) / max(1, calls)
    return Row(
        standard_tps,
        waits[int(0.95 * len(waits))] if waits else math.inf,
        sum(one.kept for one in outcomes) / max(1, len(waits)),
        refused / max(1, len(waits) + refused),
        1000 * sum(one.moves for one in outcomes) / max(1, calls),
        statistics.mean(added) if added else 0.0,
        added[int(0.99 * len(added))] if added else 0.0,
        sum(one.lost for one in outcomes),
        statistics.mean(packed_tps(one.fast_streams, tokens_of_a_call) for one in outcomes),
    )


@dataclass(frozen=True)
class Compared:
    moving: Row
    staying: Row

    @property
    def gain(self) -> float:
        return self.moving.standard_tps / self.staying.standard_tps

    @property
    def bound(self) -> float:
        """The gain of light seats that follow demand exactly."""
        return self.moving.packed_tps / self.staying.standard_tps


def verdict(cells: dict[Demand, Compared]) -> Verdict:
    bars = []
    for demand, compared in cells.items():
        if demand.swing == SWING:
            bars += [
                at_least(f"{demand.name}: standard ÷ without moving", compared.gain, MIN_GAIN, ".3f"),
                at_most(f"{demand.name}: wait p95", compared.moving.wait_p95_s, MAX_WAIT_P95_S, ".3f", " s"),
                at_least(f"{demand.name}: floors kept", compared.moving.kept, MIN_KEPT, ".2%"),
                none_of(f"{demand.name}: streams lost for want of a seat", compared.moving.lost),
            ]
    gains = "; ".join(
        f"{min(one.gain for demand, one in cells.items() if demand.swing == swing):.3f} at swing {swing:g}"
        for swing in sorted({demand.swing for demand in cells})
    )
    worst = [one for demand, one in cells.items() if demand.swing == SWING]
    figure = (
        f"standard throughput with moved streams ÷ without, the worse burstiness: {gains} (bar {MIN_GAIN}, goal "
        f"{GOAL_GAIN} at swing {SWING:g}, where light seats that follow demand exactly would give "
        f"{min(one.bound for one in worst):.3f}); fast calls wait "
        f"{1000 * max(one.moving.wait_p95_s for one in worst):.0f} ms (p95) at swing {SWING:g}, "
        f"{min(one.moving.kept for one in worst):.2%} of the floors kept; "
        f"a moved stream takes {max(one.moving.added_mean_s for one in worst):.2f} s longer on average, "
        f"{max(one.moving.added_p99_s for one in worst):.2f} s p99; {sum(one.moving.lost for one in worst)} lost"
    )
    return Verdict(figure, tuple(bars))


def show(cells: dict[Demand, Compared]) -> None:
    columns = ("standard tok/s", "÷ without", "bound", "wait p95, ms", "floors kept", "refused", "moves of 1,000 calls")
    table = Table("demand", "policy", *columns, "added mean, s", "added p99, s", "lost")
    for demand, compared in cells.items():
        for name, row in (("moves", compared.moving), ("without", compared.staying)):
            is_moving = row is compared.moving
            table.add_row(
                demand.name if is_moving else "",
                name,
                f"{row.standard_tps:,.0f}",
                f"{compared.gain:.3f}" if is_moving else "",
                f"{compared.bound:.3f}" if is_moving else "",
                f"{1000 * row.wait_p95_s:.0f}",
                f"{row.kept:.2%}",
                f"{row.refused:.2%}",
                f"{row.moves:.0f}",
                f"{row.added_mean_s:.2f}",
                f"{row.added_p99_s:.2f}",
                str(row.lost),
            )
    console.print(table)


def main(seeds: int) -> int:
    chosen = list(SEEDS)[:seeds]
    with ProcessPoolExecutor(2) as pool:
        made: dict[tuple[Demand, int, bool], Future[Outcome]] = {
            (demand, seed, moves): pool.submit(simulate, demand, seed, moves_streams=moves)
            for demand, seed, moves in product(CELLS, chosen, (True, False))
        }
        for one in track(list(made.values()), "simulating", console=console, transient=True):
            one.result()
    cells = {
        demand: Compared(
            row_of([made[demand, seed, True].result() for seed in chosen]),
            row_of([made[demand, seed, False].result() for seed in chosen]),
        )
        for demand in CELLS
    }
    show(cells)
    return finish(console, verdict(cells))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else len(SEEDS)))
