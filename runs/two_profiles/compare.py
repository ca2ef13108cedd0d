"""Compares a fleet of two profiles with the best fleet of one on the same chips. See runs/two-profiles.sh.

Fast calls ask for a tenth to three tenths of the tokens that the chips give without drafters and without fast calls.
The best fleet of one profile is chosen among all tensor parallel degrees, with and without a drafter, each with several
numbers of seats; the fleet of two among all pairs of these and several numbers of light replicas. Both are chosen on a
seed that is not judged, by the standard tokens that they leave, among those that serve the fast calls.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from rich.console import Console
from rich.progress import track
from rich.table import Table

from runs.measure.verdict import Verdict, at_least, at_most, finish
from runs.two_profiles.picture import draw
from runs.two_profiles.profiles import FLOOR_TPS, GAINS, STANDARD_TPS, Profile, profiles
from runs.two_profiles.simulated import CHIPS, Fleet, Outcome, simulate

console = Console(width=150)
SHARES = (0.1, 0.2, 0.3)
SEEDS, CHOSEN_ON = range(1, 6), 2001
MIN_RATIO, MIN_KEPT, MAX_REFUSED = 1.15, 0.99, 0.01
SPARE_LIGHT = (1.1, 1.3, 1.6)  # times the light replicas whose seats fast calls take on average
PAIRS = 4  # that are simulated: the best by the curves alone
OTHER_SPEEDS = (25.0, 30.0)  # of standard streams, by the curves alone


@dataclass(frozen=True)
class Row:
    """One fleet over all seeds."""

    name: str
    standard_tps: tuple[float, ...]
    kept: float
    refused: float


@dataclass(frozen=True)
class Compared:
    one: Row
    two: Row
    drafting: Row | None  # the best of two profiles that differ in the drafter only

    def ratios(self, row: Row) -> list[float]:
        return [mine / one for one, mine in zip(self.one.standard_tps, row.standard_tps, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.mean(self.two.standard_tps) / statistics.mean(self.one.standard_tps)


def plain_tps(known: list[Profile]) -> float:
    return CHIPS * max(one.standard_tps for one in known if not one.drafter)


def needed(light: Profile, fast_tps: float) -> float:
    """The replicas whose light seats fast calls take all of."""
    return fast_tps / (light.chips * light.tps(light.light_seats))


def left_tps(light: Profile, heavy: Profile, fast_tps: float) -> float:
    """What is left for standard calls by the curves alone, if no light seat is empty."""
    return (CHIPS - min(CHIPS, needed(light, fast_tps) * light.chips)) * heavy.standard_tps


def singles(known: list[Profile], fast_tps: float) -> list[Fleet]:
    able = [one for one in known if one.light_seats and needed(one, fast_tps) * one.chips < CHIPS]
    return [((one, CHIPS // one.chips),) for one in able]


def pairs(known: list[Profile], fast_tps: float) -> list[Fleet]:
    """Of the best pairs by the curves alone, and of the best that differ in the drafter only."""
    able = [one for one in known if one.light_seats]
    ranked = [(light, heavy) for light, heavy in product(able, known) if light != heavy]
    ranked.sort(key=lambda pair: -left_tps(pair[0], pair[1], fast_tps))
    chosen = ranked[:PAIRS] + [pair for pair in ranked if is_drafting(*pair)][:1]
    fleets: list[Fleet] = []
    for (light, heavy), spare in product(dict.fromkeys(chosen), SPARE_LIGHT):
        number = round(spare * needed(light, fast_tps)) + 1
        while (CHIPS - number * light.chips) % heavy.chips:
            number += 1
        if number * light.chips < CHIPS:
            fleets.append(((light, number), (heavy, (CHIPS - number * light.chips) // heavy.chips)))
    return fleets


def is_drafting(light: Profile, heavy: Profile) -> bool:
    return light.chips == heavy.chips and light.drafter and not heavy.drafter


def by_curves(standard_tps: float, floor_tps: float, share: float) -> float:
    """The ratio by the curves alone."""
    known = profiles(standard_tps, floor_tps)
    able, fast_tps = [one for one in known if one.light_seats], share * plain_tps(known)
    two = max(left_tps(light, heavy, fast_tps) for light, heavy in product(able, known))
    return two / max(left_tps(one, one, fast_tps) for one in able)


def serves(row: Row) -> bool:
    return row.kept >= MIN_KEPT and row.refused <= MAX_REFUSED


def row_of(fleet: Fleet, outcomes: list[Outcome]) -> Row:
    served, refused = sum(one.served for one in outcomes), sum(one.refused for one in outcomes)
    return Row(
        " + ".join(f"{replicas} x {profile.name}" for profile, replicas in fleet),
        tuple(one.standard_tps for one in outcomes),
        sum(one.kept for one in outcomes) / max(1, served),
        refused / max(1, served + refused),
    )


def best(fleets: Iterable[Fleet], rows: dict[Fleet, Row]) -> Fleet | None:
    """Of those that serve the fast calls, the one that leaves most for standard calls."""
    serving = [fleet for fleet in fleets if serves(rows[fleet])]
    return max(serving, key=lambda fleet: rows[fleet].standard_tps[0], default=None)


def chosen(rows: dict[Fleet, Row]) -> tuple[Fleet | None, Fleet | None, Fleet | None]:
    """The best of one profile, of two, and of two that differ in the drafter only."""
    two = [fleet for fleet in rows if len(fleet) == 2]
    drafting = [fleet for fleet in two if is_drafting(fleet[0][0], fleet[1][0])]
    return best([fleet for fleet in rows if len(fleet) == 1], rows), best(two, rows), best(drafting, rows)


def verdict(cells: dict[float, Compared]) -> Verdict:
    bars = []
    for share, compared in cells.items():
        bars += [
            at_least(f"{share:.0%} fast: standard ÷ one profile", compared.ratio, MIN_RATIO, ".3f"),
            at_least(f"{share:.0%} fast: floors kept", compared.two.kept, MIN_KEPT, ".2%"),
            at_most(f"{share:.0%} fast: fast calls refused", compared.two.refused, MAX_REFUSED, ".2%"),
        ]
    ratios = "; ".join(
        f"{one.ratio:.3f} ({min(one.ratios(one.two)):.3f} to {max(one.ratios(one.two)):.3f}) at {share:.0%} fast demand"
        for share, one in cells.items()
    )
    figure = (
        f"standard throughput of two profiles ÷ the best single profile on the same {CHIPS} chips: {ratios} "
        f"(bar {MIN_RATIO}); at least {min(one.two.kept for one in cells.values()):.2%} of the floors kept"
    )
    return Verdict(figure, tuple(bars))


def show(cells: dict[float, Compared]) -> None:
    table = Table("fast", "", "fleet (seats)", "standard tok/s", "÷ one", "of seeds", "floors kept", "refused")
    for share, compared in cells.items():
        rows = {"one profile": compared.one, "two": compared.two, "drafter only": compared.drafting}
        for kind, row in rows.items():
            if row is not None:
                ratios, tps = compared.ratios(row), statistics.mean(row.standard_tps)
                table.add_row(
                    f"{share:.0%}" if kind == "one profile" else "",
                    kind,
                    row.name,
                    f"{tps:,.0f}",
                    f"{tps / statistics.mean(compared.one.standard_tps):.3f}",
                    f"{min(ratios):.3f} .. {max(ratios):.3f}",
                    f"{row.kept:.2%}",
                    f"{row.refused:.2%}",
                )
        table.add_section()
    console.print(table)
    console.print(f"Floor {FLOOR_TPS:g} tok/s, standard streams {STANDARD_TPS:g} tok/s. Gains of {GAINS}.")
    for speed in (*OTHER_SPEEDS, STANDARD_TPS):
        found = ", ".join(f"{by_curves(speed, 2.5 * speed, share):.2f} at {share:.0%}" for share in SHARES)
        console.print(f"By the curves alone, standard {speed:g} and floor {2.5 * speed:g} tok/s: {found}.")


def main(seeds: int) -> int:
    judged, known = list(SEEDS)[:seeds], profiles()
    most_tps = CHIPS * max(one.standard_tps for one in known)
    asked = {share: share * plain_tps(known) for share in SHARES}
    cells = {}
    with ProcessPoolExecutor(2) as pool:

        def play(fleets: Iterable[Fleet], fast_tps: float, on: list[int]) -> dict[Fleet, list[Future[Outcome]]]:
            return {fleet: [pool.submit(simulate, fleet, fast_tps, most_tps, seed) for seed in on] for fleet in fleets}

        tried = {
            share: play(singles(known, fast_tps) + pairs(known, fast_tps), fast_tps, [CHOSEN_ON])
            for share, fast_tps in asked.items()
        }
        for share, made in track(list(tried.items()), "simulating", console=console, transient=True):
            one, two, drafting = chosen(
                {fleet: row_of(fleet, [f.result() for f in found]) for fleet, found in made.items()}
            )
            if one is None or two is None:
                console.print(f"No fleet serves {share:.0%} fast demand.")
                return 1
            finals = play({one, two} | ({drafting} if drafting else set()), asked[share], judged)
            rows = {fleet: row_of(fleet, [f.result() for f in found]) for fleet, found in finals.items()}
            cells[share] = Compared(rows[one], rows[two], rows[drafting] if drafting else None)
    show(cells)
    draw(cells)
    return finish(console, verdict(cells))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else len(SEEDS)))
