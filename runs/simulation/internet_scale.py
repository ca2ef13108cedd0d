"""Ten million daily users on ten thousand replicas in cells, simulated. See runs/internet-scale.sh and
docs/explanation/internet-scale.md."""

from __future__ import annotations

import math
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.core.types import Tier
from headway.plan.fleet import Demand, Fleet, Promises, smallest_fleet
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes
from headway.sim.loop import Fault
from headway.sim.scenario import Outcome
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish, none_of
from runs.simulation.scale_layouts import (
    ANSWER_TOKENS,
    CALLS_PER_S,
    FLOOR_TPS,
    READ_TOKENS,
    REPLICAS,
    STANDARD_TPS,
    Layout,
    played,
    replica_kind,
)
from runs.simulation.scale_pictures import (
    draw_death,
    draw_groups,
    draw_rates,
    draw_shares,
    draw_skews,
    light_share,
)

console = Console(width=130)
CELL, CELLS = 1_000, 10
DELAYS_MS = (0.4, 1.0, 5.0, 20.0)  # from a relay to the dispatcher and back
TAKEOVERS_S = (0.5, 1.5, 3.0)
LEASE_S, DIES_AT_S = 1.5, 90.0
SIZES = (100, 300, 1_000, 3_000)  # replicas of a cell whose dispatcher dies; the second with each takeover
LOADS = (0.35, 0.7, 0.85, 0.9, 0.95, 1.05)  # calls per second, as a part of what the dispatcher's core can decide
SKEWS = (0.2, 0.5, 1.0)  # by which one of five cells has more calls than its part
GROUPS = (10, 20, 50, 100, 200, 500)  # replicas that keep one reserve
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3)
MEASURED = DispatcherTimes()
MIN_KEPT, MOST_LOST, MOST_RESUMED_S, MOST_WAIT_MS, MOST_STILL_REFUSED = 0.99, 0.001, 2.0, 5.0, 0.5


def rate_of(load: float) -> float:
    return load / MEASURED.call_s


def layouts(*, is_small: bool) -> dict[str, Layout]:
    dies = (DispatcherFault(DIES_AT_S, LEASE_S),)
    whole = Layout(CELL if is_small else CELL * CELLS, 110.0, (1 / CELLS,) * CELLS, MEASURED, dies)
    all_of_them = {"whole": replace(whole, faults=(Fault(DIES_AT_S, "r1", 60.0),))}
    all_of_them |= {
        f"dies, {size} replicas": Layout(size, 110.0, times=MEASURED, deaths=dies, moments=2_200)
        for size in sorted(SIZES, reverse=True)
        if size <= CELL or not is_small
    }
    one = Layout(SIZES[1], 110.0, times=MEASURED)
    all_of_them["nobody dies"] = one
    for takeover_s in TAKEOVERS_S:
        if takeover_s != LEASE_S:
            all_of_them[f"takeover {takeover_s:g} s"] = replace(one, deaths=(DispatcherFault(DIES_AT_S, takeover_s),))
    for skew in SKEWS:
        shares = ((1 + skew) / 5, *[(1 - skew / 4) / 5] * 4)
        five = Layout(250, 100.0, cells=shares, times=MEASURED)
        all_of_them[f"skew {skew:g}, handing on"] = five
        all_of_them[f"skew {skew:g}, alone"] = replace(five, summary_s=math.inf)
    for load in LOADS:
        all_of_them[f"load {load:g}"] = Layout(CELL, 4.0, times=MEASURED, short_calls_per_s=rate_of(load))
    all_of_them["delay 0 ms"] = Layout(100, 150.0)
    for delay_ms in DELAYS_MS:
        times = DispatcherTimes.there_and_back(delay_ms / 1e3)
        all_of_them[f"delay {delay_ms:g} ms"] = Layout(100, 150.0, times=times)
    all_of_them |= {f"alone {size}": Layout(size, 150.0) for size in GROUPS}
    for size in GROUPS[:4]:
        cells = 200 // size
        all_of_them[f"cells of {size}"] = Layout(200, 120.0, cells=(1 / cells,) * cells, times=MEASURED)
    for lost in (1, 3):
        all_of_them[f"{lost} of 10 cells lost"] = Layout(100, 240.0, demand=10 / (10 - lost))
    return all_of_them


def fleet_for(fast_share: float) -> Fleet | None:
    floors: dict[Tier, float] = {"fast": FLOOR_TPS} if fast_share else {}
    tiers: dict[Tier, float] = {"standard": 1 - fast_share, "fast": fast_share} if fast_share else {"standard": 1.0}
    demand = Demand(CALLS_PER_S * 48 / REPLICAS, tiers, floors, READ_TOKENS, ANSWER_TOKENS)
    kind = replica_kind()
    return smallest_fleet(replace(kind, band=replace(kind.band, nine_in_ten=None)), demand, Promises())


def kept_share(outcome: Outcome) -> float:
    fast = outcome.tallies["fast"]
    return fast.kept / fast.promised if fast.promised else math.nan


def refused_share(outcome: Outcome) -> float:
    return sum(tally.refused for tally in outcome.tallies.values()) / max(1, outcome.calls)


def row(outcome: Outcome) -> list[str]:
    fast, standard = outcome.tallies["fast"], outcome.tallies["standard"]
    return [
        f"{outcome.calls:,}",
        f"{kept_share(outcome):.2%}",
        f"{fast.downgraded / max(1, fast.calls):.2%}",
        *[f"{1e3 * fast.waits_s.quantile(share):,.1f}" for share in (0.5, 0.99)],
        f"{1e3 * fast.first_tokens_s.quantile(0.5):,.1f}",
        f"{1e3 * standard.waits_s.quantile(0.99):,.1f}",
        f"{max(fast.longest_wait_s, standard.longest_wait_s):.2f}",
        f"{refused_share(outcome):.2%}",
        f"{fast.cut + standard.cut:,}",
        f"{outcome.over_limit}",
        f"{light_share(outcome):.1%}",
        f"{outcome.handed_on / max(1, outcome.calls):.1%}",
    ]


COLUMNS = (
    "calls", "floors kept", "fast as std", "wait p50 ms", "p99", "first token", "std p99", "longest s", "refused",
    "cut", "over limit", "light", "handed on",
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Results of the whole fleet, in which a dispatcher and a replica die, and of the parts of a cell."""

    calls: int  # of the whole fleet
    replicas: int
    cells: int
    cpu_s: float
    kept: float  # share of the floors
    over_limit: int  # calls that boarded beyond what a floor allows, in all layouts, by the replicas' own counts
    cut: int  # by the deaths of dispatchers
    kept_lost: float  # the largest difference of the share that a death made, in a cell
    resumed_s: float  # from a death to the first boarding, in the smallest cell
    wait_p99_ms: float  # at 70 % of what the dispatcher's core can decide
    still_refused: float  # with handing on, of those that were refused without, at the largest skew
    fleets: dict[float, int | None]  # replicas needed, by the share of fast calls; None if no number suffices


def verdict(figures: Figures) -> Verdict:
    planned = sum(one is not None for one in figures.fleets.values())
    bars = (
        at_least("floors kept", figures.kept, MIN_KEPT, ".2%"),
        none_of("calls boarded beyond what a floor allows, by the replicas' counts", figures.over_limit),
        none_of("streams cut by the death of a dispatcher", figures.cut),
        at_most("floors lost by a death", figures.kept_lost, MOST_LOST, ".2%"),
        at_most(f"death to boarding, {SIZES[0]} replicas", figures.resumed_s, MOST_RESUMED_S, unit=" s"),
        at_most("wait p99 at 70 % of a dispatcher's core", figures.wait_p99_ms, MOST_WAIT_MS, unit=" ms"),
        at_most("still refused with handing on", figures.still_refused, MOST_STILL_REFUSED, ".1%"),
        Bar("fleets planned", f"{planned} of {len(figures.fleets)}", "all", planned == len(figures.fleets)),
    )
    figure = (
        f"{figures.calls:,} calls, {figures.replicas:,} replicas, {figures.cells} cells, played in {figures.cpu_s:.0f} "
        f"s of CPU; floors kept {figures.kept:.2%} (bar {MIN_KEPT:.0%}); {figures.over_limit} calls beyond a floor's "
        f"limit; a dispatcher's death to the first boarding {figures.resumed_s:.2f} s (lease {LEASE_S:g} s)"
    )
    return Verdict(figure, bars)


def play_all(found: dict[str, Layout]) -> tuple[dict[str, Outcome], float, dict[float, Fleet | None]]:
    """Returns the outcomes, the CPU seconds of the first, and the fleets by their share of fast calls."""
    with ProcessPoolExecutor(2) as pool, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("playing", total=len(found) + len(SHARES))
        plays = {name: pool.submit(played, layout) for name, layout in found.items()}
        plans = {share: pool.submit(fleet_for, share) for share in SHARES}
        futures: list[Future[Any]] = [*plays.values(), *plans.values()]
        for future in futures:
            future.add_done_callback(lambda _: progress.advance(bar))
        results = {name: future.result() for name, future in plays.items()}
        fleets = {share: future.result() for share, future in plans.items()}
    return {name: outcome for name, (outcome, _) in results.items()}, next(iter(results.values()))[1], fleets


def show_takeovers(outcomes: dict[str, Outcome]) -> None:
    table = Table("layout", "calls adopted", "all reported", "first boarding", "all replicas open", "refused by relays")
    for name, outcome in outcomes.items():
        for one in outcome.takeovers:
            moments = [
                f"{(at or math.nan) - one.died_at:.2f} s" for at in (one.settled_at, one.boarded_at, one.opened_at)
            ]
            table.add_row(name, f"{one.adopted:,}", *moments, f"{outcome.unled:,}")
    console.print(table)


def main() -> int:
    found = layouts(is_small=sys.argv[1:] == ["small"])
    kind = replica_kind()
    console.print(
        f"{kind.name}, llama-3.1-70b in fp8: {kind.seats} seats at {STANDARD_TPS:g} tok/s, "
        f"{kind.curve.largest_batch(FLOOR_TPS, kind.seats)} at {FLOOR_TPS:g}; prompts {kind.prompt_tps:,.0f} tok/s"
    )
    outcomes, cpu_s, planned = play_all(found)
    table = Table("layout", *COLUMNS, title="the busiest hour")
    for name, outcome in outcomes.items():
        table.add_row(name, *row(outcome))
    console.print(table)
    show_takeovers(outcomes)
    fleets = {share: None if fleet is None else fleet.replicas for share, fleet in planned.items()}
    multiples = {share: size / (fleets[0.0] or math.nan) for share, size in fleets.items() if size is not None}
    shares = Table("part of calls that are fast", "replicas", "beside none")
    for share, multiple in multiples.items():
        shares.add_row(f"{share:.0%}", str(fleets[share]), f"{multiple:.2f}")
    console.print(shares)
    skewed = {skew: (outcomes[f"skew {skew:g}, alone"], outcomes[f"skew {skew:g}, handing on"]) for skew in SKEWS}
    died = {name: one for name, one in outcomes.items() if name.startswith(("dies", "takeover"))}
    draw_death(outcomes[f"dies, {CELL} replicas"], DIES_AT_S, LEASE_S)
    waits_ms = {load: 1e3 * outcomes[f"load {load:g}"].tallies["standard"].waits_s.quantile(0.99) for load in LOADS}
    draw_rates({rate_of(load): wait_ms for load, wait_ms in waits_ms.items()})
    draw_skews({skew: (refused_share(alone), refused_share(handing)) for skew, (alone, handing) in skewed.items()})
    draw_groups(
        {size: light_share(outcomes[f"alone {size}"]) for size in GROUPS},
        {size: light_share(outcomes[f"cells of {size}"]) for size in GROUPS[:4]},
    )
    draw_shares(multiples)
    whole, quiet = outcomes["whole"], outcomes["nobody dies"]
    alone, handing = skewed[SKEWS[-1]]
    smallest = outcomes[f"dies, {SIZES[0]} replicas"].takeovers[0]
    in_cells = [one for name, one in died.items() if name.endswith((f"{SIZES[1]} replicas", " s"))]
    return finish(
        console,
        verdict(
            Figures(
                whole.calls,
                found["whole"].replicas,
                len(found["whole"].cells),
                cpu_s,
                kept_share(whole),
                sum(one.over_limit for one in outcomes.values()),
                sum(tally.cut for one in died.values() for tally in one.tallies.values()),
                max(kept_share(quiet) - kept_share(one) for one in in_cells),
                (smallest.boarded_at or math.inf) - smallest.died_at,
                waits_ms[0.7],
                refused_share(handing) / (refused_share(alone) or math.nan),
                fleets,
            )
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main())
