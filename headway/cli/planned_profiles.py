"""`headway plan --speculation`: what each speed costs if engines speculate, and if only some of them do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from headway.cli.planned_fleets import DEFAULT_SHARE, candidates_of, pair_of, show_fleets
from headway.errors import SetupError
from headway.plan.answers import PricedFloor, cheapest, offers_of
from headway.plan.fleet import Candidate, Demand, Fleet
from headway.plan.gains import Method, gains_for
from headway.plan.step import Setup

NOTHING = "-"


def speculating(setups: list[Setup], method: Method) -> list[Setup]:
    """The same setups with a drafter."""
    for setup in setups:
        if setup.chip.kind != "hbm" or setup.speculation.drafted:
            raise SetupError(
                "--speculation has gains of GPUs only, and replaces --draft: leave out other chips, and --draft."
            )
    return [replace(setup, gains=gains_for(method, setup.chip.name)) for setup in setups]


@dataclass(frozen=True, slots=True)
class Profiles:
    """How a floor and the standard speed are served: by one profile, or by one each."""

    floor: PricedFloor
    standard: PricedFloor

    @property
    def cost_s(self) -> float:
        return DEFAULT_SHARE * self.floor.cost_s + (1.0 - DEFAULT_SHARE) * self.standard.cost_s


def costs_table(setups: list[Setup], method: Method, standard_tps: float, floors: list[float]) -> Table:
    """What each floor costs with one profile, with and without a drafter, and with two."""
    title = f"Cost per Mtok with the floor, and of standard calls ({1 - DEFAULT_SHARE:.0%} of all), on so many chips"
    table = Table("", "floor", "plain", f"all with {method}", "two profiles", title=title, title_justify="left")
    for setup, with_drafter in zip(setups, speculating(setups, method), strict=True):
        plain, drafted, price = offers_of(setup), offers_of(with_drafter), setup.chip.price_hour
        for floor_tps in floors:
            both = _two(plain + drafted, standard_tps, floor_tps)
            found = [_one(plain, standard_tps, floor_tps), _one(drafted, standard_tps, floor_tps), both]
            name = f"{setup.shape.name} on {setup.chip.name}" if floor_tps == floors[0] else ""
            table.add_row(name, f"{floor_tps:g}", *[_cost(one, price) for one in found])
        table.add_section()
    return table


def _two(offers: list[PricedFloor], standard_tps: float, floor_tps: float) -> Profiles | None:
    floor, standard = cheapest(offers, max(standard_tps, floor_tps)), cheapest(offers, standard_tps)
    return None if floor is None or standard is None else Profiles(floor, standard)


def _one(offers: list[PricedFloor], standard_tps: float, floor_tps: float) -> Profiles | None:
    """On the number of chips that is the cheapest for both."""
    by_chips = [[one for one in offers if one.chips == chips] for chips in {one.chips for one in offers}]
    found = [_two(of_chips, standard_tps, floor_tps) for of_chips in by_chips]
    return min((one for one in found if one is not None), key=lambda one: one.cost_s, default=None)


def _cost(profiles: Profiles | None, price_hour: float | None) -> str:
    if profiles is None:
        return NOTHING
    floor, standard = profiles.floor, profiles.standard
    chips = f"{floor.chips}" if floor.chips == standard.chips else f"{floor.chips} and {standard.chips}"
    if price_hour is None:
        return f"{floor.per_mtok(1.0):.2f} and {standard.per_mtok(1.0):.2f} chip-h on {chips}"
    return f"$ {floor.per_mtok(price_hour):.2f} and {standard.per_mtok(price_hour):.2f} on {chips}"


def show_profile_fleets(
    console: Console,
    setups: list[Setup],
    measured: list[Candidate],
    method: Method,
    standard_tps: float,
    demand: Demand,
) -> None:
    """Fleets of one profile and of two, and what the cheapest of each costs. Measured replicas have no drafter here."""
    plain = list(measured)
    drafted: list[Candidate] = []
    pairs: list[tuple[Candidate, Candidate]] = []
    for setup, with_drafter in zip(setups, speculating(setups, method), strict=True):
        of_chip = candidates_of([setup], standard_tps), candidates_of([with_drafter], standard_tps)
        plain += of_chip[0]
        drafted += of_chip[1]
        pairs += pair_of(*of_chip, demand)
    fleets = show_fleets(console, plain + drafted, demand, pairs)
    names = {candidate.name for candidate in plain}
    alone = [fleet for fleet in fleets if len(fleet.parts) == 1]
    told = {
        "plain": [fleet for fleet in alone if fleet.parts[0].candidate.name in names],
        f"all with {method}": [fleet for fleet in alone if fleet.parts[0].candidate.name not in names],
        "two profiles": [fleet for fleet in fleets if len(fleet.parts) == 2],
    }
    floors = " and ".join(f"{floor:g}" for floor in demand.floors.values())
    costs = "; ".join(f"{name}: {_fleet_cost(found)}" for name, found in told.items())
    console.print(f"Cheapest fleet with the floor {floors}: {costs}.", highlight=False, soft_wrap=True)


def _fleet_cost(fleets: list[Fleet]) -> str:
    if not fleets:
        return "none keeps it"
    price = fleets[0].price_hour
    return f"{fleets[0].chips:,} chips" + (f", {price:,.0f} $/h" if price is not None else "")
