"""Tests the guarantee of a mistake budget on a simulated student whose true rate is known. See runs/mistake-budget.sh.

Two of ten calls need tools that the student does not know, which the gate sees. The margins of the others are
distributed as 3 · Exp(1), and a margin m is an excess mistake with probability exp(-m) / 2. So the true rate of a gate
that accepts margins from x on is 0.8 · ∫ₓ exp(-m/3)/3 · exp(-m)/2 dm = 0.1 · exp(-4x/3): 10 % if it accepts everything.
Two in a hundred answers that are not excess mistakes still differ from the full model's.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.auto.calibration import Compared, Endpoint, allowed, calibrate
from headway.auto.gate import Evidence, Gate
from headway.auto.risk import at_most as upper_bound
from headway.auto.risk import watched_rate
from headway.core.watch import CONFIDENCE, Watch
from runs.measure.verdict import Verdict, at_most, finish

BUDGETS = (0.01, 0.02, 0.05)
TASKS = 2400  # with known answers: half train the gate, half set its threshold
KNOWN, HARMLESS = 0.8, 0.02
CALLS, WORSE_AFTER, AUDITED = 10_000, 5_000, 0.1
WORSE = (1.0, 3.0, 5.0, 10.0)  # times as many excess mistakes
MAX_BROKEN, MAX_TIMES = 1 - CONFIDENCE, 2.0
HERE = Endpoint("", "student", "full")

console = Console()
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass
class Calls:
    margins: Floats
    is_known: Flags
    is_excess: Flags
    differs: Flags


def draw(dice: np.random.Generator, count: int, worse: Floats | float = 1.0) -> Calls:
    margins = dice.exponential(3.0, count)
    is_known = dice.random(count) < KNOWN
    wrong = dice.random(count) < np.minimum(1.0, worse * np.exp(-margins) / 2)
    # Every answer with an unknown tool is wrong, but the gate escalates it, so it is never served.
    is_excess = wrong | ~is_known
    return Calls(margins, is_known, is_excess, is_excess | (dice.random(count) < HARMLESS))


def compared(calls: Calls) -> list[Compared]:
    rows = []
    for margin, is_known, is_excess, differs in zip(
        calls.margins.tolist(), calls.is_known.tolist(), calls.is_excess.tolist(), calls.differs.tolist(), strict=True
    ):
        evidence = Evidence("call", margin) if is_known else Evidence("call", doubt="unknown tool")
        rows.append(Compared("", evidence, is_excess, differs))
    return rows


def least_margin(gate: Gate, level: float) -> float:
    """The margin at which the gate's score, which rises with the margin, reaches the level."""
    if level > 1:
        return math.inf
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gate.takes(Evidence("call", middle), level) else (middle, high)
    return high


def true_rate(margin: float) -> float:
    return 0.1 * math.exp(-4 * margin / 3)


@dataclass
class Repetition:
    is_broken: bool
    served: float
    rate: float
    closed_after: dict[float, int | None]  # calls since the student got worse (or since the start if it did not)
    realised: dict[float, float]


def repeat(dice: np.random.Generator, budget: float) -> Repetition:
    made = calibrate(compared(draw(dice, TASKS)), HERE, "", [], seed=int(dice.integers(2**31)))
    found = allowed(made, budget)
    margin = least_margin(made.gate, found.level)
    rate = true_rate(margin)
    closed, realised = {}, {}
    for times in WORSE:
        watch = Watch(watched_rate(made.judged, found.level, budget))
        closed[times], realised[times] = serve(dice, watch, margin, times)
    return Repetition(rate > budget, found.served, rate, closed, realised)


def serve(dice: np.random.Generator, watch: Watch, margin: float, times: float) -> tuple[int | None, float]:
    """The call at which the gate closes, and the share of excess mistakes among all calls until then."""
    worse = np.where(np.arange(CALLS) < WORSE_AFTER, 1.0, times)
    calls = draw(dice, CALLS, worse)
    taken = calls.is_known & (calls.margins >= margin)
    excess, differs = taken & calls.is_excess, taken & calls.differs
    by_chance = (dice.random(CALLS) < AUDITED).tolist()
    for number, differing in enumerate(differs.tolist()):
        if by_chance[number] or watch.is_alert:
            watch.see(differing)
            if watch.is_broken:
                return number + 1 - (WORSE_AFTER if times > 1 else 0), float(excess[: number + 1].mean())
    return None, float(excess.mean())


@dataclass(frozen=True)
class Row:
    """One budget, over all repetitions."""

    broken: int  # repetitions whose true rate is above the budget
    false_alarms: int  # repetitions in which the gate closed though the student had not changed
    realised: dict[float, float]  # excess over the budget that 95 of 100 stay below, by how much worse the student got


@dataclass(frozen=True)
class Figures:
    repetitions: int
    rows: dict[float, Row]  # by budget


def verdict(figures: Figures) -> Verdict:
    bars = []
    for budget, row in figures.rows.items():
        broken, false = row.broken / figures.repetitions, row.false_alarms / figures.repetitions
        bars.append(at_most(f"budget {budget:.0%}: broken", broken, MAX_BROKEN, ".1%"))
        bars.append(at_most(f"budget {budget:.0%}: closed without a reason", false, MAX_BROKEN, ".1%"))
        for times, realised in row.realised.items():
            what = f"budget {budget:.0%}: realised ÷ budget in 95 of 100, {times:g} times worse"
            bars.append(at_most(what, realised, MAX_TIMES))
    broken = max(row.broken for row in figures.rows.values()) / figures.repetitions
    false = max(row.false_alarms for row in figures.rows.values()) / figures.repetitions
    most = max(realised for row in figures.rows.values() for realised in row.realised.values())
    figure = (
        f"broken in at most {broken:.1%} of repetitions (bar {MAX_BROKEN:.0%}), closed without a reason in "
        f"{false:.1%} (bar {MAX_BROKEN:.0%}), realised excess at the most {most:.2f} times the budget in 95 of 100 "
        f"(bar {MAX_TIMES:g})"
    )
    return Verdict(figure, tuple(bars))


def main(repetitions: int) -> int:
    dice = np.random.default_rng(2026)
    table = Table("budget", "broken (95 % interval)", "true rate, mean", "student serves", "closed without a reason")
    table.title = f"{repetitions} repetitions, {TASKS} tasks of known answer each"
    drift = Table("budget", "worse", "closed in time", "calls until then, median (95 %)", "realised ÷ budget (95 %)")
    drift.title = f"worse after {WORSE_AFTER:,} of {CALLS:,} calls, {AUDITED:.0%} of them audited"
    found: dict[float, Row] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("calibrate, then serve", total=repetitions * len(BUDGETS))
        for budget in BUDGETS:
            rows = []
            for _ in range(repetitions):
                rows.append(repeat(dice, budget))
                progress.advance(bar)
            broken = sum(one.is_broken for one in rows)
            false = sum(one.closed_after[1.0] is not None for one in rows)
            high, low = (
                upper_bound(broken, repetitions, 0.975),
                1 - upper_bound(repetitions - broken, repetitions, 0.975),
            )
            table.add_row(
                f"{budget:.0%}", f"{broken / repetitions:.1%} ({low:.1%} .. {high:.1%})",
                f"{np.mean([one.rate for one in rows]):.2%}", f"{np.mean([one.served for one in rows]):.0%}",
                f"{false / repetitions:.1%}",
            )  # fmt: skip
            found[budget] = Row(broken, false, show_drift(drift, budget, rows))
    console.print(table)
    console.print(drift)
    return finish(console, verdict(Figures(repetitions, found)))


def show_drift(table: Table, budget: float, rows: list[Repetition]) -> dict[float, float]:
    """Returns the realised excess over the budget that 95 of 100 repetitions stay below."""
    found = {}
    for times in WORSE[1:]:
        after = [one.closed_after[times] for one in rows]
        closed = [one for one in after if one is not None and one > 0]
        realised = np.array([one.realised[times] for one in rows]) / budget
        found[times] = high = float(np.quantile(realised, 0.95))
        said = f"{np.median(closed):,.0f} ({np.quantile(closed, 0.95):,.0f})" if closed else "-"
        table.add_row(
            f"{budget:.0%}", f"{times:g} times", f"{np.mean(realised < MAX_TIMES):.1%}", said,
            f"{np.median(realised):.2f} ({high:.2f})",
        )  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
