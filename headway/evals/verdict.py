"""Computes from judged answers the time and cost of a right answer for each target, and recommends one.

    time to a right answer = seconds until the answer + share of mistakes × the time to fix one

Every target answered the same tasks, so comparisons are paired by task. Intervals are 95 %, bootstrapped over tasks
with a fixed seed. A bootstrap cannot draw a mistake that nobody has made yet, so it also draws from hypothetical tasks,
worth two real ones, in which one of the two targets is wrong. One model at two speeds has the same weights: its
mistakes are pooled, unless the exact McNemar test finds a difference. Missing answers are never pooled.

Pure: does not know how targets are called or how results are shown.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, inf

from headway.evals.expected import NO_ANSWER, RIGHT
from headway.evals.shares import Share, mcnemar

DRAWS = 1000
DOUBT = 0.5  # weight of each hypothetical task; four of them weigh as much as two tasks
SIGNIFICANCE = 0.05
MAX_TASKS_TO_TELL = 100_000
ALL_TASKS = "all tasks"  # the kind of the verdict on all
Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one task on one target."""

    task: str
    kind: str
    verdict: str
    seconds: float
    cost_micro: int | None  # None if there is no price
    is_proven: bool = False  # the time is from Headway's proof
    why: str = ""  # the reason if there is no answer
    speed_tps: float | None = None  # of the stream, from Headway's proof
    rung: str = ""  # that served the call, if the target is an auto model

    @property
    def is_right(self) -> bool:
        return self.verdict == RIGHT


@dataclass(frozen=True, slots=True)
class Run:
    """All attempts of a target, in the order of the tasks. Runs with the same `weights` are one model."""

    name: str
    weights: str
    attempts: list[Attempt]


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The time to fix a mistake, in seconds, at which a target and the full model are equal. `wins` says at which fix
    times the target is ahead: below it, above it, always (`fix` is infinite) or never (`fix` is 0)."""

    wins: str
    fix: Interval


@dataclass(frozen=True, slots=True)
class Versus:
    """A target compared with the full model on the same tasks."""

    saved_s: Interval  # of the time to a right answer; negative if it loses time
    excess: Interval  # additional mistakes, as a share of the tasks
    p_value: float  # of the hypothesis that both are right equally often
    break_even: BreakEven
    cost_ratio: float | None
    hour_saved_micro: int | None  # additional cost per hour saved; None without prices or savings


@dataclass(frozen=True, slots=True)
class Figures:
    name: str
    right: Share
    answer_s: Interval
    time_to_right_s: Interval
    cost_per_right_micro: Interval | None
    mistakes: dict[str, int]
    is_proven: bool
    versus: Versus | None  # None for the full model


@dataclass(frozen=True, slots=True)
class Recommendation:
    use: str
    is_clear: bool
    instead_of: list[str] = field(default_factory=list)  # targets whose time to a right answer is not clearly longer
    seems: str | None = None  # the target that looks better, if the tasks are too few to decide
    tasks_to_tell: int | None = None


@dataclass(frozen=True, slots=True)
class KindVerdict:
    kind: str
    tasks: int
    figures: list[Figures]
    recommended: Recommendation

    def of(self, name: str) -> Figures:
        return next(one for one in self.figures if one.name == name)


def judge_runs(runs: Sequence[Run], baseline: str, fix_s: float, seed: int = 0) -> list[KindVerdict]:
    """One verdict on all tasks, then one on each kind if there are several. `baseline` is the full model."""
    names = [attempt.task for attempt in runs[0].attempts]
    for run in runs:
        if [attempt.task for attempt in run.attempts] != names:
            raise ValueError(f"{run.name} was not asked the same tasks as {runs[0].name}")
    kinds = list(dict.fromkeys(attempt.kind for attempt in runs[0].attempts))
    verdicts = [_judge(ALL_TASKS if len(kinds) > 1 else kinds[0], runs, baseline, fix_s, seed)]
    if len(kinds) > 1:
        for kind in kinds:
            of_kind = [Run(run.name, run.weights, [a for a in run.attempts if a.kind == kind]) for run in runs]
            verdicts.append(_judge(kind, of_kind, baseline, fix_s, seed))
    return verdicts


def _judge(kind: str, runs: Sequence[Run], baseline: str, fix_s: float, seed: int) -> KindVerdict:
    wrong = _wrong_shares(runs)
    base = next(run for run in runs if run.name == baseline)
    figures = [
        _figures(run, wrong[run.name], None if run is base else _versus(run, base, wrong, fix_s, seed), fix_s, seed)
        for run in runs
    ]
    rated = {run.name: _time_to_right_s(run, wrong[run.name], fix_s) for run in runs}

    def is_clearly_ahead(one: str, other: str) -> bool:
        first, second = (next(run for run in runs if run.name == name) for name in (one, other))
        return _saved(first, second, wrong, fix_s, seed).low > 0

    recommended = recommend(figures, rated, baseline, is_clearly_ahead)
    return KindVerdict(kind, len(base.attempts), figures, recommended)


def recommend(
    figures: Sequence[Figures], time_to_right_s: dict[str, float], baseline: str,
    is_clearly_ahead: Callable[[str, str], bool],
) -> Recommendation:  # fmt: skip
    """The target with the shortest time to a right answer, if the interval of its lead over the full model excludes 0.
    Among those that it is not clearly ahead of, the one that is right most often, then the first named.

    A target that was never right is not recommended, however fast it is and however fast its mistakes are fixed."""
    others = [one for one in figures if one.versus is not None and one.right.count]
    ahead = [one for one in others if one.versus is not None and one.versus.saved_s.low > 0]
    if not ahead:
        unclear = [one for one in others if one.versus is not None and one.versus.saved_s.high > 0]
        if not unclear:
            return Recommendation(baseline, is_clear=True)
        best = max(unclear, key=lambda one: one.versus.saved_s.value if one.versus else -inf)
        return Recommendation(baseline, is_clear=False, seems=best.name, tasks_to_tell=_tasks_to_tell(best))
    leader = min(ahead, key=lambda one: time_to_right_s[one.name])
    rivals = [one for one in ahead if one is leader or not is_clearly_ahead(leader.name, one.name)]
    chosen = max(rivals, key=lambda one: one.right.value)  # the first of equals
    return Recommendation(chosen.name, is_clear=True, instead_of=[one.name for one in rivals if one is not chosen])


def _tasks_to_tell(figures: Figures) -> int | None:
    """About how many tasks would make the interval exclude 0: its width goes with 1 / √(number of tasks)."""
    saved = figures.versus.saved_s if figures.versus else Interval(0, 0, 0)
    if saved.value <= 0:
        return None
    needed = ceil(figures.right.of * ((saved.value - saved.low) / saved.value) ** 2)
    return needed if needed <= MAX_TASKS_TO_TELL else None


def _wrong_shares(runs: Sequence[Run]) -> dict[str, list[float]]:
    """For each target and task: 1 if wrong, 0 if right, or the mean if several targets have the same weights."""
    shares = {run.name: [float(not one.is_right) for one in run.attempts] for run in runs}
    for weights in {run.weights for run in runs}:
        same = [run for run in runs if run.weights == weights]
        if any(_differ(one, other) for one, other in combinations(same, 2)):
            continue
        for number in range(len(same[0].attempts)):
            answered = [run for run in same if run.attempts[number].verdict != NO_ANSWER]
            for run in answered:
                shares[run.name][number] = sum(not one.attempts[number].is_right for one in answered) / len(answered)
    return shares


def _differ(one: Run, other: Run) -> bool:
    both = [
        (a.is_right, b.is_right)
        for a, b in zip(one.attempts, other.attempts, strict=True)
        if NO_ANSWER not in (a.verdict, b.verdict)
    ]
    return mcnemar(both.count((True, False)), both.count((False, True))) < SIGNIFICANCE


def _time_to_right_s(run: Run, wrong: Sequence[float], fix_s: float) -> float:
    return _mean([one.seconds for one in run.attempts]) + fix_s * _mean(wrong)


def _figures(run: Run, wrong: Sequence[float], versus: Versus | None, fix_s: float, seed: int) -> Figures:
    attempts = run.attempts
    seconds = [one.seconds for one in attempts]
    rows = list(zip(seconds, wrong, strict=True))
    typical = _mean(seconds)
    drawn = draw(rows, [(typical, 0.0), (typical, 1.0)], seed)
    return Figures(
        run.name,
        Share(sum(one.is_right for one in attempts), len(attempts)),
        _interval(typical, [s for s, _ in drawn]),
        _interval(typical + fix_s * _mean(wrong), [s + fix_s * w for s, w in drawn]),
        _cost_per_right(attempts, seed),
        dict(Counter(one.verdict for one in attempts if not one.is_right)),
        all(one.is_proven for one in attempts if one.verdict != NO_ANSWER),
        versus,
    )


def _cost_per_right(attempts: Sequence[Attempt], seed: int) -> Interval | None:
    if any(one.cost_micro is None for one in attempts) or not any(one.is_right for one in attempts):
        return None
    rows = [(float(one.cost_micro or 0), float(one.is_right)) for one in attempts]
    cost, right = _mean([c for c, _ in rows]), _mean([r for _, r in rows])
    return _interval(cost / right, [c / r if r else inf for c, r in draw(rows, [], seed)])


def _versus(run: Run, base: Run, wrong: dict[str, list[float]], fix_s: float, seed: int) -> Versus:
    drawn = _differences(run, base, wrong, seed)
    seconds = _mean([b.seconds - a.seconds for a, b in zip(run.attempts, base.attempts, strict=True)])
    excess = _mean(wrong[run.name]) - _mean(wrong[base.name])
    saved = _interval(seconds - fix_s * excess, [s - fix_s * w for s, w in drawn])
    only_base = sum(b.is_right and not a.is_right for a, b in zip(run.attempts, base.attempts, strict=True))
    only_run = sum(a.is_right and not b.is_right for a, b in zip(run.attempts, base.attempts, strict=True))
    costs = [_total_micro(one.attempts) for one in (run, base)]
    mine, its = costs
    hour_saved = None
    if mine is not None and its is not None and saved.value > 0:
        hour_saved = round((mine - its) / len(run.attempts) * 3600 / saved.value)
    return Versus(
        saved,
        _interval(excess, [w for _, w in drawn]),
        mcnemar(only_base, only_run),
        _break_even(seconds, excess, drawn),
        mine / its if mine is not None and its else None,
        hour_saved,
    )


def _total_micro(attempts: Sequence[Attempt]) -> int | None:
    if any(one.cost_micro is None for one in attempts):
        return None
    return sum(one.cost_micro or 0 for one in attempts)


def _saved(one: Run, other: Run, wrong: dict[str, list[float]], fix_s: float, seed: int) -> Interval:
    drawn = _differences(one, other, wrong, seed)
    value = _time_to_right_s(other, wrong[other.name], fix_s) - _time_to_right_s(one, wrong[one.name], fix_s)
    return _interval(value, [s - fix_s * w for s, w in drawn])


def _differences(run: Run, base: Run, wrong: dict[str, list[float]], seed: int) -> list[Row]:
    """Draws of (seconds saved, mistakes added). Equal weights make equal mistakes: no hypothetical tasks are drawn."""
    rows = [
        (b.seconds - a.seconds, mine - its)
        for a, b, mine, its in zip(run.attempts, base.attempts, wrong[run.name], wrong[base.name], strict=True)
    ]
    if run.weights == base.weights and not _differ(run, base):
        return draw(rows, [], seed)
    typical = _mean([saved for saved, _ in rows])
    return draw(rows, [(typical, 0.0), (typical, 0.0), (typical, 1.0), (typical, -1.0)], seed)


def break_even_s(seconds_saved: float, excess: float) -> tuple[str, float]:
    """BreakEven's `wins` and `fix` of a target that answers `seconds_saved` sooner and makes `excess` more mistakes."""
    if seconds_saved >= 0 and excess <= 0:
        return "always", inf
    if seconds_saved <= 0 and excess >= 0:
        return "never", 0.0
    return ("below" if excess > 0 else "above"), seconds_saved / excess


def _break_even(seconds_saved: float, excess: float, drawn: Sequence[Row]) -> BreakEven:
    wins, fix_s = break_even_s(seconds_saved, excess)
    if wins == "above":
        ends = {"always": 0.0, "never": inf, "below": inf}
    else:
        # In a draw without excess mistakes the target stays ahead however long a fix takes.
        ends = {"always": inf, "never": 0.0, "above": inf}
    found = [break_even_s(*row) for row in drawn]
    return BreakEven(wins, _interval(fix_s, [ends.get(side, value) for side, value in found]))


def draw(rows: Sequence[Row], doubts: Sequence[Row], seed: int) -> list[Row]:
    """Bootstrap: DRAWS means of len(rows) rows drawn with replacement. A row of `doubts` has DOUBT times the weight."""
    dice = random.Random(seed)
    count, columns = len(rows), range(len(rows[0]))
    doubtful = DOUBT * len(doubts) / (count + DOUBT * len(doubts))
    means: list[Row] = []
    for _ in range(DRAWS):
        doubted = sum(dice.random() < doubtful for _ in range(count)) if doubts else 0
        picked = dice.choices(rows, k=count - doubted) + (dice.choices(doubts, k=doubted) if doubted else [])
        means.append(tuple(sum(row[column] for row in picked) / count for column in columns))
    return means


def _interval(value: float, drawn: Sequence[float]) -> Interval:
    """The middle 95 % of the draws, extended to include the value itself."""
    ranked = sorted(drawn)
    low, high = ranked[int(0.025 * len(ranked))], ranked[ceil(0.975 * len(ranked)) - 1]
    return Interval(value, min(low, value), max(high, value))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
