"""The guarantee of a mistake budget, where the truth is known. See runs/mistake-budget.sh.

The student: of ten calls two are of tools it does not know, which the gate sees. Of the others its margins are spread
as 3 · Exp(1), and a margin m is an excess mistake with a chance of exp(-m) / 2. So the true rate of a gate that takes
margins from x on is 0.8 · ∫ₓ exp(-m/3)/3 · exp(-m)/2 dm = 0.1 · exp(-4x/3): 10 % where everything is taken. Two in a
hundred answers that are no excess mistake differ from the full model's all the same.
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
from headway.auto.risk import CONFIDENCE, Watch, at_most, watched_rate

BUDGETS = (0.01, 0.02, 0.05)
TASKS = 2400  # of known answer: half teach the gate, half show what a score lets through
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
    # Of a tool it does not know every answer is wrong; the gate escalates it, so it is never served.
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
    """Where the gate's score, which rises with the margin, reaches the level."""
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
    closed_after: dict[float, int | None]  # calls since the student got worse (or from the start, where it did not)
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
    """When the gate is closed, and the share of excess mistakes among all calls until then."""
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


def main(repetitions: int) -> int:
    dice = np.random.default_rng(2026)
    table = Table("budget", "broken (95 % interval)", "true rate, mean", "student serves", "closed without a reason")
    table.title = f"{repetitions} repetitions, {TASKS} tasks of known answer each"
    drift = Table("budget", "worse", "closed in time", "calls until then, median (95 %)", "realised ÷ budget (95 %)")
    drift.title = f"worse after {WORSE_AFTER:,} of {CALLS:,} calls, {AUDITED:.0%} of them audited"
    most_broken, most_false, most_times = 0.0, 0.0, 0.0
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("calibrate, then serve", total=repetitions * len(BUDGETS))
        for budget in BUDGETS:
            rows = []
            for _ in range(repetitions):
                rows.append(repeat(dice, budget))
                progress.advance(bar)
            broken = sum(one.is_broken for one in rows)
            false = sum(one.closed_after[1.0] is not None for one in rows)
            high, low = at_most(broken, repetitions, 0.975), 1 - at_most(repetitions - broken, repetitions, 0.975)
            table.add_row(
                f"{budget:.0%}", f"{broken / repetitions:.1%} ({low:.1%} .. {high:.1%})",
                f"{np.mean([one.rate for one in rows]):.2%}", f"{np.mean([one.served for one in rows]):.0%}",
                f"{false / repetitions:.1%}",
            )  # fmt: skip
            most_broken, most_false = max(most_broken, broken / repetitions), max(most_false, false / repetitions)
            most_times = max(most_times, show_drift(drift, budget, rows))
    console.print(table)
    console.print(drift)
    console.print(
        f"broken in at most {most_broken:.1%} of repetitions (bar {MAX_BROKEN:.0%}), closed without a reason in "
        f"{most_false:.1%} (bar {MAX_BROKEN:.0%}), realised excess at the most {most_times:.2f} times the budget in 95 "
        f"of 100 (bar {MAX_TIMES:g})"
    )
    return 0 if most_broken <= MAX_BROKEN and most_false <= MAX_BROKEN and most_times < MAX_TIMES else 1


def show_drift(table: Table, budget: float, rows: list[Repetition]) -> float:
    """Returns the realised excess over the budget that 95 of 100 repetitions stay below, at the worst."""
    worst = 0.0
    for times in WORSE[1:]:
        after = [one.closed_after[times] for one in rows]
        closed = [one for one in after if one is not None and one > 0]
        realised = np.array([one.realised[times] for one in rows]) / budget
        high = float(np.quantile(realised, 0.95))
        worst = max(worst, high)
        said = f"{np.median(closed):,.0f} ({np.quantile(closed, 0.95):,.0f})" if closed else "-"
        table.add_row(
            f"{budget:.0%}", f"{times:g} times", f"{np.mean(realised < MAX_TIMES):.1%}", said,
            f"{np.median(realised):.2f} ({high:.2f})",
        )  # fmt: skip
    return worst


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
