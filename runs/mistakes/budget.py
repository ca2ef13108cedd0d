"""Tests the guarantee of a mistake budget on a simulated student whose true rate is known. See runs/mistake-budget.sh.

Two of ten calls need tools that the student does not know, which the gate sees. The margins of the others are
distributed as 3 · Exp(1), and a margin m is an excess mistake with probability exp(-m) / 2. So the true rate of a gate
that accepts margins from x on is 0.8 · ∫ₓ exp(-m/3)/3 · exp(-m)/2 dm = 0.1 · exp(-4x/3): 10 % if it accepts everything.
Two in a hundred answers that are not excess mistakes still differ from the full model's.

Each budget is tried with seats for 100, 50, 30 and 0 % of the audits (audited_service.py), without a change and with a
student that makes 3, 5 and 10 times as many excess mistakes from the middle on. A drift is noticed in time if the
excess mistakes since it began are never more than twice the budget of the calls since, from 500 calls on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.auto.calibration import Compared, Endpoint, allowed, calibrate
from headway.auto.gate import Evidence, Gate, GateCalibration
from headway.auto.risk import at_most as upper_bound
from headway.auto.risk import limit_of
from headway.config import AutoTable
from headway.core.trust import LimitPolicy
from headway.core.watch import CONFIDENCE
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of
from runs.mistakes.audited_service import AuditedService, Flags
from runs.mistakes.killed import Killed, kill_between_verdicts

BUDGETS = (0.01, 0.02, 0.05)
TASKS = 2400  # with known answers: half train the gate, half set its threshold
KNOWN, HARMLESS = 0.8, 0.02
SEATS = (1.0, 0.5, 0.3, 0.0)  # share of the audits for which a seat is free
CALLS, WORSE_AFTER = 10_000, 5_000
WORSE = (3.0, 5.0, 10.0)  # times as many excess mistakes
DRIFTS_PER_REPETITION = 4  # a drift is simulated in one repetition of four
MAX_BROKEN, MAX_TIMES, AT_LEAST_CALLS, MIN_IN_TIME = 1 - CONFIDENCE, 2.0, 500, 0.95
KILLS = 20
HERE = Endpoint("", "student", "full")
AUTO = AutoTable(calibration="none")  # the settings that are used if the owner sets none

console = Console()
Floats = NDArray[np.float64]


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
class Drifted:
    """A student that got worse in the middle of a service."""

    in_time: bool
    closed_after: int | None  # calls since the student got worse
    since: float  # the most excess mistakes per call since then, over at least 500 calls
    over_all: float  # excess mistakes per call, over all calls


@dataclass
class Served:
    """One calibration in service at one budget and one share of seats."""

    excess: float  # per call
    by_student: float
    is_closed: bool
    drifted: dict[float, Drifted]


@dataclass
class Repetition:
    true_rates: dict[float, float]  # by budget
    served: dict[tuple[float, float], Served]  # by budget and share of seats


def repeat(number: int) -> Repetition:
    dice = np.random.default_rng([2026, number])
    made = calibrate(compared(draw(dice, TASKS)), HERE, "", [], seed=int(dice.integers(2**31)))
    rates, served = {}, {}
    for budget in BUDGETS:
        margin = least_margin(made.gate, allowed(made, budget).level)
        rates[budget] = true_rate(margin)
        for seats in SEATS:
            service = AuditedService(limit_of_budget(made, budget), seats, AUTO.max_waiting_audits)
            drifts = WORSE if number % DRIFTS_PER_REPETITION == 0 else ()
            served[budget, seats] = serve(dice, service, margin, drifts)
    return Repetition(rates, served)


def limit_of_budget(made: GateCalibration, budget: float) -> LimitPolicy:
    return limit_of(made.judged, budget, AUTO.audit_share_of(budget))


def serve(dice: np.random.Generator, service: AuditedService, margin: float, drifts: tuple[float, ...]) -> Served:
    calls = draw(dice, CALLS)
    steady = service.serve(dice, calls.is_known & (calls.margins >= margin), calls.is_excess, calls.differs)
    drifted = {}
    for times in drifts:
        calls = draw(dice, CALLS, np.where(np.arange(CALLS) < WORSE_AFTER, 1.0, times))
        worse = service.serve(dice, calls.is_known & (calls.margins >= margin), calls.is_excess, calls.differs)
        since = most_since(worse.excess)
        closed_after = worse.closed_at - WORSE_AFTER if worse.closed_at is not None else None
        over_all = float(worse.excess.mean())
        drifted[times] = Drifted(since <= MAX_TIMES * service.limit.budget, closed_after, since, over_all)
    return Served(float(steady.excess.mean()), steady.taken / CALLS, steady.closed_at is not None, drifted)


def most_since(excess: Flags) -> float:
    """The most excess mistakes per call since the drift began, over at least 500 calls."""
    since = np.cumsum(excess[WORSE_AFTER:])[AT_LEAST_CALLS - 1 :]
    return float((since / np.arange(AT_LEAST_CALLS, CALLS - WORSE_AFTER + 1)).max())


@dataclass(frozen=True)
class Row:
    """One budget and one share of seats, over all repetitions."""

    broken: float  # share of repetitions in which clients got more excess mistakes than the budget allows
    closed: float  # share of repetitions in which the gate closed though the student had not changed
    in_time: dict[float, float]  # share of the drifts that were noticed in time, by how much worse the student got


@dataclass(frozen=True)
class Figures:
    repetitions: int
    too_high: dict[float, float]  # share of repetitions whose gate has a true rate above the budget, by budget
    rows: dict[tuple[float, float], Row]  # by budget and share of seats
    killed: Killed


def verdict(figures: Figures) -> Verdict:
    bars = [
        at_most(f"budget {budget:.0%}: true rate too high", share, MAX_BROKEN, ".1%")
        for budget, share in figures.too_high.items()
    ]
    for (budget, seats), row in figures.rows.items():
        what = f"budget {budget:.0%}, seats for {seats:.0%}"
        bars.append(at_most(f"{what}: broken", row.broken, MAX_BROKEN, ".1%"))
        bars.append(at_most(f"{what}: closed without a reason", row.closed, MAX_BROKEN, ".1%"))
        for times, share in row.in_time.items():
            bars.append(at_least(f"{what}: {times:g} times worse, noticed in time", share, MIN_IN_TIME, ".1%"))
    killed = figures.killed
    bars.append(none_of(f"audits lost in {killed.kills} kills, of {killed.audits:,}", killed.lost))
    bars.append(none_of("watches that a restart rebuilt otherwise", int(not killed.is_same_watch)))
    broken = max([row.broken for row in figures.rows.values()] + list(figures.too_high.values()))
    closed = max(row.closed for row in figures.rows.values())
    least = min(share for row in figures.rows.values() for share in row.in_time.values())
    figure = (
        f"broken in at most {broken:.1%} of {figures.repetitions:,} repetitions (bar {MAX_BROKEN:.0%}), closed without "
        f"a reason in {closed:.1%} (bar {MAX_BROKEN:.0%}), a drift noticed before the excess since then is twice the "
        f"budget in at least {least:.1%} (bar {MIN_IN_TIME:.0%}), with seats for 100, 50, 30 and 0 % of the audits; "
        f"{killed.lost} of {killed.audits:,} audits lost in {killed.kills} kills"
    )
    return Verdict(figure, tuple(bars))


def main(repetitions: int) -> int:
    done: list[Repetition] = []
    with Progress(console=console, transient=True) as progress, ProcessPoolExecutor() as processes:
        bar = progress.add_task("calibrate, then serve", total=repetitions)
        for one in processes.map(repeat, range(repetitions), chunksize=4):
            done.append(one)
            progress.advance(bar)
    too_high = {budget: share(one.true_rates[budget] > budget for one in done) for budget in BUDGETS}
    table = Table("budget", "seats", "broken (95 % interval)", "excess, mean", "student serves", "closed")
    table.title = f"{repetitions:,} repetitions, {TASKS:,} tasks of known answer each, then {CALLS:,} calls"
    drift = Table("budget", "seats", "worse", "in time", "closed", "calls until then, median (95 %)",
                  "since ÷ budget, median (95 %)", "over all ÷ budget (95 %)")  # fmt: skip
    drift.title = (
        f"worse after {WORSE_AFTER:,} of {CALLS:,} calls; since: the most over at least {AT_LEAST_CALLS} calls"
    )
    rows = {}
    for budget in BUDGETS:
        for seats in SEATS:
            served = [one.served[budget, seats] for one in done]
            broken = share(one.excess > budget for one in served)
            rows[budget, seats] = Row(
                broken, share(one.is_closed for one in served), show_drift(drift, budget, seats, served)
            )
            table.add_row(
                f"{budget:.0%}", f"{seats:.0%}", interval(broken, repetitions),
                f"{np.mean([one.excess for one in served]):.2%}",
                f"{np.mean([one.by_student for one in served]):.0%}", f"{rows[budget, seats].closed:.1%}",
            )  # fmt: skip
    console.print(table)
    console.print(drift)
    killed = kill_between_verdicts(KILLS)
    return finish(console, verdict(Figures(repetitions, too_high, rows, killed)))


def share(flags: Iterable[bool]) -> float:
    return float(np.mean(list(flags)))


def interval(part: float, of: int) -> str:
    count = round(part * of)
    high, low = upper_bound(count, of, 0.975), 1 - upper_bound(of - count, of, 0.975)
    return f"{part:.1%} ({low:.1%} .. {high:.1%})"


def show_drift(table: Table, budget: float, seats: float, served: list[Served]) -> dict[float, float]:
    """Returns the share of the drifts that were noticed in time, by how much worse the student got."""
    found = {}
    for times in WORSE:
        drifted = [one.drifted[times] for one in served if times in one.drifted]
        after = [one.closed_after for one in drifted if one.closed_after is not None and one.closed_after > 0]
        since = np.array([one.since for one in drifted]) / budget
        over_all = np.array([one.over_all for one in drifted]) / budget
        found[times] = share(one.in_time for one in drifted)
        table.add_row(
            f"{budget:.0%}", f"{seats:.0%}", f"{times:g} times", f"{found[times]:.1%}",
            f"{len(after) / len(drifted):.0%}",
            f"{np.median(after):,.0f} ({np.quantile(after, 0.95):,.0f})" if after else "-",
            f"{np.median(since):.2f} ({np.quantile(since, 0.95):.2f})", f"{np.quantile(over_all, 0.95):.2f}",
        )  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
