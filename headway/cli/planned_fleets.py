"""`headway plan --demand`: find the cheapest fleet whose simulation keeps every promise."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.core.types import Tier
from headway.errors import SetupError
from headway.plan.answers import planned_replica
from headway.plan.fleet import Candidate, Demand, Fleet, FleetPart, Promises, candidate_of, smallest_fleet
from headway.plan.memory import splits
from headway.plan.step import Setup
from headway.plan.two_profiles import cheapest_fleet, choose_heavy, choose_light

EXPRESS_BY_FLOOR: tuple[tuple[Tier, ...], ...] = ((), ("fast",), ("fast", "ultrafast"))
DEFAULT_SHARE = 0.1
COLUMNS = ("replica", "seats", "cells x replicas", "chips", "if slow", "$/h", "fast downgraded", "standard wait p99, s")


def demand_of(
    calls_per_s: float, said: list[str], floors: list[float], prompt_tokens: int, answer_tokens: int
) -> Demand:
    """Build the demand. The floors, lowest first, are `fast` and `ultrafast`, each with DEFAULT_SHARE unless given."""
    if len(floors) >= len(EXPRESS_BY_FLOOR):
        raise SetupError("--demand takes at most two floors: that of fast and that of ultrafast.")
    shares = dict.fromkeys(floors, DEFAULT_SHARE)
    for one in said:
        floor, _, part = one.partition("=")
        try:
            known = float(floor) in shares
            shares[float(floor)] = float(part)
        except ValueError:
            known = False
        if not known:
            raise SetupError(f"--share {one}: must look like 100=0.2, for a floor given with --floor.")
    if not all(0.0 <= part <= 1.0 for part in shares.values()) or sum(shares.values()) > 1.0:
        raise SetupError("--share: the shares must not be negative and must add up to at most 1.")
    names = EXPRESS_BY_FLOOR[len(floors)]
    tiers: dict[Tier, float] = {"standard": 1.0 - sum(shares.values())}
    tiers |= {tier: shares[floor] for tier, floor in zip(names, floors, strict=True)}
    return Demand(calls_per_s, tiers, dict(zip(names, floors, strict=True)), prompt_tokens, answer_tokens)


def candidates_of(setups: list[Setup], standard_tps: float) -> list[Candidate]:
    """Return each setup on every number of chips that fits its model."""
    planned = [planned_replica(replace(setup, chips=chips)) for setup in setups for chips in splits(setup)]
    return [candidate for one in planned if (candidate := candidate_of(one, standard_tps)) is not None]


def pair_of(plain: list[Candidate], speculating: list[Candidate], demand: Demand) -> list[tuple[Candidate, Candidate]]:
    """The light and the heavy profile of a fleet of two, for one chip; none if one profile is the best for both."""
    light, heavy = choose_light(speculating, demand), choose_heavy(plain + speculating)
    return [(light, heavy)] if light is not None and heavy is not None and light is not heavy else []


def show_fleets(
    console: Console,
    candidates: list[Candidate],
    demand: Demand,
    pairs: list[tuple[Candidate, Candidate]] | None = None,
) -> list[Fleet]:
    """`pairs` are the light and the heavy profile of each fleet of two. Returns the fleets, the cheapest first."""
    promises, pairs = Promises(), pairs or []
    with ProcessPoolExecutor(2) as pool:
        found = [pool.submit(smallest_fleet, one, demand, promises) for one in candidates]
        found += [pool.submit(cheapest_fleet, *pair, demand, promises) for pair in pairs]
        fleets = [one.result() for one in track(found, "simulating fleets", console=console, transient=True)]
    kept = [fleet for fleet in fleets if fleet is not None]
    kept.sort(key=lambda one: (one.price_hour is None, one.cost))
    table = Table(*COLUMNS, title=f"{demand.calls_per_s:g} calls/s, with one failed replica per cell")
    for fleet in kept:
        table.add_row(*_row(fleet))
    console.print(table)
    names = [candidate.name for candidate in candidates] + [f"{light.name} + {heavy.name}" for light, heavy in pairs]
    for name, result in zip(names, fleets, strict=True):
        if result is None:
            console.print(f"{name}: no number of replicas keeps the floors.", highlight=False)
    console.print(
        f"Required in simulation: {promises.kept:.0%} of floors kept, at most {promises.downgraded:.0%} downgraded and "
        f"{promises.refused:.1%} refused, p99 wait of standard at most {promises.wait_p99_s:g} s. "
        "`if slow`: replicas per cell if steps are as slow as in the worst tenth of predictions.",
        highlight=False,
        soft_wrap=True,
    )
    return kept


def _row(fleet: Fleet) -> tuple[str, ...]:
    express = [tally for tier, tally in fleet.outcomes[0].tallies.items() if tier != "standard"]
    downgraded = sum(tally.downgraded for tally in express) / max(1, sum(tally.calls for tally in express))
    price = fleet.price_hour

    def of_each(of: Callable[[FleetPart], object]) -> str:
        return " + ".join(str(of(part)) for part in fleet.parts)

    return (
        of_each(lambda part: part.candidate.name),
        of_each(lambda part: part.candidate.seats),
        f"{fleet.cells} x {of_each(lambda part: part.replicas)}",
        f"{fleet.chips:,}",
        "not kept" if fleet.slow_replicas is None else str(fleet.slow_replicas),
        "-" if price is None else f"{price:,.0f}",
        f"{downgraded:.2%}",
        f"{fleet.outcomes[0].tallies['standard'].waits_s.quantile(0.99):.1f}",
    )
