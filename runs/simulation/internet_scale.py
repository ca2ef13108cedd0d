"""Ten million daily users on ten thousand replicas, simulated. See runs/internet-scale.sh and
docs/explanation/internet-scale.md."""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.core.types import ModelPolicy, Replica, Tier, TierPolicy
from headway.plan.answers import planned_replica
from headway.plan.chips import CHIPS
from headway.plan.fleet import UNPAID, Candidate, Demand, Fleet, Promises, candidate_of, smallest_fleet
from headway.plan.models import model_shape
from headway.plan.step import Setup
from headway.sim.loop import AnyFault, Fault, GatewayFault
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, synthesize
from runs.measure.verdict import Bar, Verdict, at_least, finish
from runs.simulation.scale_pictures import draw_failure, draw_groups, draw_shares, light_share

console = Console(width=130)
USERS, CALLS_A_DAY, PEAK = 10_000_000, 80, 2.0  # calls per user and day; busiest hour ÷ mean hour
REPLICAS, GATEWAYS = 10_000, 100
CALLS_PER_S = USERS * CALLS_A_DAY * PEAK / 86_400
CONTEXT_TOKENS, READ_TOKENS, ANSWER_TOKENS = 4_096, 1_024, 2_048  # on average; the rest of a prompt is cached
STANDARD_TPS, FLOOR_TPS, FAST_SHARE = 40.0, 60.0, 0.1
SECONDS, DIES_AT_S, LEASE_S = 420.0, 240.0, 10.0
GROUPS = (10, 20, 50, 100, 200, 500)  # replicas per gateway
STALE_S = (0.1, 2.0, 10.0, 60.0)
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3)
TENTH = 1_000  # replicas of the smaller fleet on which layouts are compared
MIN_KEPT = 0.99


def replica_kind() -> Candidate:
    """Llama-70B in fp8 on two B200, as planned; 40 tok/s for standard streams."""
    setup = Setup(
        model_shape("llama-3.1-70b"), CHIPS["b200"], 2, "fp8",
        prompt_tokens=CONTEXT_TOKENS, output_tokens=ANSWER_TOKENS,
    )  # fmt: skip
    candidate = candidate_of(planned_replica(setup), STANDARD_TPS)
    assert candidate is not None
    return candidate


@dataclass(frozen=True)
class Layout:
    """A fleet of one size, with its part of the demand, split between a number of gateways."""

    replicas: int
    gateways: int = 1
    summary_s: float = 0.5
    demand: float = 1.0  # factor on its part
    faults: tuple[AnyFault, ...] = ()

    def scenario(self, kind: Candidate) -> Scenario:
        policy = ModelPolicy(
            {"fast": TierPolicy(10_000, 2.0, FLOOR_TPS), "standard": TierPolicy(100_000, 30.0)}, standard_share=0.5
        )
        part = self.replicas / REPLICAS
        recipe = Recipe(
            CALLS_PER_S * part * self.demand,
            clients=max(20, round(10_000 * part)),  # a smaller fleet has fewer tenants, so it is burstier
            zipf=0.9,
            prompts=Lengths.around(READ_TOKENS, 0.95, 128_000),
            answers=Lengths.around(ANSWER_TOKENS, 1.0, 16_000),
            tiers={"standard": 1 - FAST_SHARE, "fast": FAST_SHARE},
        )
        replicas = [Replica(f"r{n}", "m", kind.seats, kind.curve, kind.prompt_tps) for n in range(self.replicas)]
        return Scenario(
            policy, replicas, partial(synthesize, recipe), SECONDS, UNPAID, faults=self.faults, gateways=self.gateways,
            summary_s=self.summary_s,
        )  # fmt: skip


def played(layout: Layout) -> tuple[Outcome, float]:
    began = time.process_time()
    outcome = play(layout.scenario(replica_kind()), 1)
    return outcome, time.process_time() - began


def fleet_for(fast_share: float) -> Fleet | None:
    floors: dict[Tier, float] = {"fast": FLOOR_TPS} if fast_share else {}
    tiers: dict[Tier, float] = {"standard": 1 - fast_share, "fast": fast_share} if fast_share else {"standard": 1.0}
    demand = Demand(CALLS_PER_S * 48 / REPLICAS, tiers, floors, READ_TOKENS, ANSWER_TOKENS)
    kind = replica_kind()
    return smallest_fleet(replace(kind, band=replace(kind.band, nine_in_ten=None)), demand, Promises())


def row(outcome: Outcome) -> list[str]:
    fast, standard = outcome.tallies["fast"], outcome.tallies["standard"]
    return [
        f"{fast.kept / max(1, fast.promised):.2%}",
        f"{fast.downgraded / max(1, fast.calls):.2%}",
        f"{fast.waits_s.quantile(0.99):.2f}",
        f"{standard.waits_s.quantile(0.99):.2f}",
        f"{(fast.refused + standard.refused) / outcome.calls:.2%}",
        f"{(fast.cut + standard.cut) / outcome.calls:.2%}",
        f"{light_share(outcome):.1%}",
        f"{outcome.handed_on / outcome.calls:.1%}",
    ]


COLUMNS = ("floors kept", "fast downgraded", "fast wait p99", "std wait p99", "refused", "cut", "light", "handed on")


@dataclass(frozen=True)
class Figures:
    """Results of the whole fleet, in which a gateway and a replica die."""

    calls: int
    replicas: int
    gateways: int
    cpu_s: float
    promised: int  # fast calls with a promised floor
    kept: int
    fleets: dict[float, int | None]  # replicas needed, by the share of fast calls; None if no number suffices


def verdict(figures: Figures) -> Verdict:
    kept = figures.kept / figures.promised if figures.promised else math.nan
    planned = sum(one is not None for one in figures.fleets.values())
    bars = (
        at_least("floors kept", kept, MIN_KEPT, ".2%"),
        Bar("fleets planned", f"{planned} of {len(figures.fleets)}", "all", planned == len(figures.fleets)),
    )
    figure = (
        f"{figures.calls:,} calls, {figures.replicas:,} replicas, {figures.gateways} gateways, {SECONDS:g} s: played "
        f"in {figures.cpu_s:.0f} s of CPU ({figures.calls / figures.cpu_s:,.0f} calls/s); floors kept {kept:.2%} "
        f"(bar {MIN_KEPT:.0%})"
    )
    return Verdict(figure, bars)


def main() -> int:
    small = len(sys.argv) > 1 and sys.argv[1] == "small"
    kind = replica_kind()
    whole_replicas, whole_gateways = (TENTH, 10) if small else (REPLICAS, GATEWAYS)
    dies = (GatewayFault(DIES_AT_S, 0, 120.0, LEASE_S), Fault(DIES_AT_S, "r1", 60.0))
    layouts = {"whole": Layout(whole_replicas, whole_gateways, faults=dies)}
    layouts["one gateway of 10 dies"] = Layout(TENTH, 10, faults=dies[:1])
    layouts |= {f"alone {size}": Layout(size) for size in GROUPS}
    layouts |= {f"shared {size}": Layout(TENTH, TENTH // size) for size in GROUPS}
    layouts |= {f"stale {age_s}": Layout(TENTH, 20, summary_s=age_s) for age_s in STALE_S}
    layouts |= {f"lost {lost}": Layout(TENTH, 10, demand=10 / (10 - lost)) for lost in (1, 3)}
    with ProcessPoolExecutor(2) as pool, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=len(layouts) + len(SHARES))
        plays: dict[str, Future[tuple[Outcome, float]]] = {
            name: pool.submit(played, layout) for name, layout in layouts.items()
        }
        plans = {share: pool.submit(fleet_for, share) for share in SHARES}
        futures: list[Future[Any]] = [*plays.values(), *plans.values()]
        for future in futures:
            future.add_done_callback(lambda _: progress.advance(bar))
        outcomes = {name: future.result() for name, future in plays.items()}
        found = {share: future.result() for share, future in plans.items()}
    console.print(
        f"{kind.name}, llama-3.1-70b in fp8: {kind.seats} seats at {STANDARD_TPS:g} tok/s, "
        f"{kind.curve.largest_batch(FLOOR_TPS, kind.seats)} at {FLOOR_TPS:g}; prompts {kind.prompt_tps:,.0f} tok/s"
    )
    table = Table("layout", *COLUMNS, title=f"{SECONDS:g} s of the busiest hour")
    for name, (outcome, _) in outcomes.items():
        table.add_row(name, *row(outcome))
    console.print(table)
    fleets = {share: None if fleet is None else fleet.replicas for share, fleet in found.items()}
    base = fleets[0.0] or math.nan
    multiples = {share: size / base for share, size in fleets.items() if size is not None}
    shares = Table("part of calls that are fast", "replicas", "beside none")
    for share, multiple in multiples.items():
        shares.add_row(f"{share:.0%}", str(fleets[share]), f"{multiple:.2f}")
    console.print(shares)
    draw_failure(outcomes["one gateway of 10 dies"][0].moments, DIES_AT_S, LEASE_S)
    draw_groups({n: (light_share(outcomes[f"alone {n}"][0]), light_share(outcomes[f"shared {n}"][0])) for n in GROUPS})
    draw_shares(multiples)
    whole, cpu_s = outcomes["whole"]
    fast = whole.tallies["fast"]
    figures = Figures(whole.calls, whole_replicas, whole_gateways, cpu_s, fast.promised, fast.kept, fleets)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    raise SystemExit(main())
