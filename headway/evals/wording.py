"""Turns verdicts into sentences for the report and the terminal. The reader decides and did not measure."""

from __future__ import annotations

from math import isinf

from headway.evals.shares import Share
from headway.evals.verdict import BreakEven, Figures, Interval, KindVerdict, Versus

MICRO = 1_000_000
UNKNOWN = "not known"
MAX_SECONDS = 120  # longer times are shown in minutes


def seconds(value: float) -> str:
    if abs(value) >= MAX_SECONDS:
        return f"{value / 60:,.1f}".removesuffix(".0") + " min"
    return f"{value:.0f} s" if abs(value) >= 10 else f"{value:.1f} s" if abs(value) >= 1 else f"{value:.2f} s"


def between(found: Interval) -> str:
    return f"{seconds(found.low)} .. {seconds(found.high)}"


def share(found: Share) -> str:
    low, high = found.interval
    return f"{found.value:.0%} ({low:.0%} .. {high:.0%})"


def money(micro: float) -> str:
    amount = micro / MICRO
    return f"{amount:,.2f}" if abs(amount) >= 1 else f"{amount:.3g}"


def cost(found: Interval | None) -> str:
    """The cost of a thousand right answers; that of one has too many zeros."""
    if found is None:
        return UNKNOWN
    high = "?" if isinf(found.high) else money(1000 * found.high)
    return f"{money(1000 * found.value)} ({money(1000 * found.low)} .. {high})"


def break_even(found: BreakEven) -> str:
    if found.wins == "always":
        least = "" if isinf(found.fix.low) else f" (certain below {seconds(found.fix.low)})"
        return f"any{least}"
    if found.wins == "never":
        most = "" if found.fix.high == 0 else " (not certain)"
        return f"none{most}"
    high = "any" if isinf(found.fix.high) else seconds(found.fix.high)
    side = "up to" if found.wins == "below" else "from"
    return f"{side} {seconds(found.fix.value)} ({seconds(found.fix.low)} .. {high})"


def headline(verdicts: list[KindVerdict], baseline: str) -> str:
    """The recommendation in one line: which target to use, and the kinds of tasks for which to use another."""
    whole, kinds = verdicts[0], verdicts[1:]
    others: dict[str, list[str]] = {}
    for one in kinds:
        if one.recommended.use != whole.recommended.use:
            others.setdefault(one.recommended.use, []).append(one.kind)
    if not whole.recommended.is_clear and not others:
        return f"Stay with {baseline}: {whole.tasks} tasks are too few to decide"
    parts = [f"Use {use_of(whole)}"]
    parts += [f"for {_listed(names)} use {use}" for use, names in others.items()]
    return "; ".join(parts)


def use_of(verdict: KindVerdict) -> str:
    return verdict.recommended.use + ("" if verdict.recommended.is_clear else " for now")


def reason(verdict: KindVerdict, baseline: str) -> str:
    """Why this target is recommended for a kind of task."""
    chosen = verdict.recommended
    if not any(one.right.count for one in verdict.figures):
        return "No target gave a right answer: look at the answers before you compare times."
    if chosen.use != baseline:
        return _ahead(verdict, baseline)
    if not chosen.is_clear and chosen.seems is not None:
        return _unclear(verdict, verdict.of(chosen.seems), chosen.tasks_to_tell)
    others = [one for one in verdict.figures if one.versus is not None]
    if not others:
        return "There is no other target."
    quickest = min(others, key=lambda one: one.answer_s.value)
    return _behind(verdict.of(baseline), quickest)


def _ahead(verdict: KindVerdict, baseline: str) -> str:
    best, full = verdict.of(verdict.recommended.use), verdict.of(baseline)
    assert best.versus is not None  # the recommended target is not the full model
    said = (
        f"It saves {seconds(best.versus.saved_s.value)} per task ({between(best.versus.saved_s)}): it answers in "
        f"{seconds(best.answer_s.value)} instead of {seconds(full.answer_s.value)} and {_rightness(best, full)}."
    )
    if verdict.recommended.instead_of:
        rivals = _listed(verdict.recommended.instead_of)
        said += f" {rivals} may be as good in time; this one was right at least as often."
    return f"{said} {_price(best.versus)}".strip()


def _rightness(one: Figures, full: Figures) -> str:
    assert one.versus is not None
    if one.versus.excess == Interval(0.0, 0.0, 0.0):
        return "is the same model"
    if one.right.count == full.right.count:
        return "was right as often"
    more = "more" if one.right.count > full.right.count else "less"
    chance = "" if one.versus.p_value < 0.05 else ", which may be chance"
    return f"was right {more} often ({one.right.value:.0%} instead of {full.right.value:.0%}{chance})"


def _price(versus: Versus) -> str:
    if versus.cost_ratio is None:
        return ""
    if versus.cost_ratio <= 1:
        return f"It is cheaper: {versus.cost_ratio:.2f} times the cost."
    paid = f", {money(versus.hour_saved_micro)} per hour saved" if versus.hour_saved_micro else ""
    return f"It costs {versus.cost_ratio:.1f} times as much{paid}."


def _unclear(verdict: KindVerdict, seems: Figures, tasks_to_tell: int | None) -> str:
    assert seems.versus is not None
    saved = seems.versus.saved_s
    said = f"{verdict.tasks} {'task is' if verdict.tasks == 1 else 'tasks are'} too few to decide. "
    if saved.value <= 0:
        return said + f"{seems.name} seems to lose {seconds(-saved.value)} per task (saves {between(saved)})."
    said += f"{seems.name} seems to save {seconds(saved.value)} per task ({between(saved)})"
    # The estimate has no more than two significant digits.
    return said + (
        f"; about {float(f'{tasks_to_tell:.1e}'):,.0f} tasks like these would be enough." if tasks_to_tell else "."
    )


def _behind(full: Figures, other: Figures) -> str:
    assert other.versus is not None
    said = f"{other.name} answers in {seconds(other.answer_s.value)} instead of {seconds(full.answer_s.value)}, but "
    if not other.right.count:
        return f"{said}none of its {other.right.of} answers was right."
    lost = f"it loses {seconds(-other.versus.saved_s.value)} per task to its mistakes ({other.right.value:.0%} right, "
    said += f"{lost}instead of {full.right.value:.0%})."
    if other.versus.break_even.wins == "below":
        said += f" It would be ahead if a mistake were fixed within {seconds(other.versus.break_even.fix.value)}."
    return said


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
