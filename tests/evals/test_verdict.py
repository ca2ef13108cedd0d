"""Verdicts: properties of all sets of answers, and cases that can be checked by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.evals import verdict, wording
from headway.evals.expected import NO_ANSWER, RIGHT
from headway.evals.shares import Share, mcnemar
from headway.evals.verdict import Attempt, KindVerdict, Run, break_even_s, judge_runs

COUNTS = st.integers(0, 60)


def made(
    name: str,
    *,
    seconds: float,
    wrong: int,
    of: int,
    weights: str = "",
    cost: int | None = 1000,
    mistake: str = "wrong answer",
    kind: str = "k",
) -> Run:
    """A run whose last `wrong` tasks are wrong. Times vary by 10 %."""
    verdicts = [RIGHT] * (of - wrong) + [mistake] * wrong
    rows = [Attempt(f"t{n}", kind, one, seconds * (0.9 + 0.2 * (n % 2)), cost) for n, one in enumerate(verdicts)]
    return Run(name, weights or name, rows)


def only(*runs: Run, fix_s: float = 300.0) -> KindVerdict:
    [found] = judge_runs(runs, "standard", fix_s)
    return found


@given(COUNTS, COUNTS)
def test_a_share_lies_in_its_interval(right: int, more: int) -> None:
    found = Share(right, right + more)
    low, high = found.interval
    assert 0 <= low <= found.value <= high <= 1 or found.of == 0


@given(COUNTS, COUNTS)
def test_the_exact_test_is_symmetric(one: int, other: int) -> None:
    assert mcnemar(one, other) == mcnemar(other, one)
    assert 0 < mcnemar(one, other) <= 1


def test_the_exact_test_by_hand() -> None:
    assert mcnemar(0, 0) == 1
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 5) == pytest.approx(2 * 7 / 64)


@given(st.floats(-50, 50), st.floats(-1, 1), st.floats(0, 1000))
def test_a_target_is_ahead_on_the_side_that_wins_names(saved: float, excess: float, fix_s: float) -> None:
    wins, at_s = break_even_s(saved, excess)
    lead = saved - fix_s * excess
    if wins == "always":
        assert lead >= 0
    elif wins == "never":
        assert lead <= 0
    elif abs(fix_s - at_s) > 1e-6 * max(1, at_s):
        assert (lead > 0) == ((fix_s < at_s) if wins == "below" else (fix_s > at_s)) or lead == pytest.approx(0)


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=25
    ),
    st.floats(0, 3600),
)
def test_figures_lie_in_their_intervals(rows: list[tuple[bool, bool, float, float]], fix_s: float) -> None:
    def run(name: str, column: int) -> Run:
        verdicts = [RIGHT if row[column] else "wrong answer" for row in rows]
        return Run(name, name, [Attempt(str(n), "k", v, rows[n][column + 2], 7) for n, v in enumerate(verdicts)])

    found = only(run("standard", 0), run("spark", 1), fix_s=fix_s)
    for one in found.figures:
        assert one.time_to_right_s.low <= one.time_to_right_s.value <= one.time_to_right_s.high
        assert one.time_to_right_s.value >= one.answer_s.value - 1e-9
    versus = found.of("spark").versus
    assert versus is not None
    saved = found.of("standard").time_to_right_s.value - found.of("spark").time_to_right_s.value
    assert versus.saved_s.value == pytest.approx(saved, abs=1e-6)
    assert found.recommended.use in ("standard", "spark")
    assert wording.reason(found, "standard")


def test_the_same_weights_differ_in_time_only() -> None:
    """One more mistake in a few tasks is chance and does not count against the faster tier."""
    standard = made("standard", seconds=20, wrong=2, of=30, weights="m")
    fast = made("fast", seconds=8, wrong=3, of=30, weights="m", cost=3000)
    found = only(standard, fast)
    assert found.recommended == verdict.Recommendation("fast", is_clear=True)
    versus = found.of("fast").versus
    assert versus is not None
    assert versus.excess == verdict.Interval(0, 0, 0)
    assert versus.saved_s.value == pytest.approx(12)
    assert versus.cost_ratio == 3
    assert versus.hour_saved_micro == 600_000  # 2,000 more per task saves 12 s
    assert "is the same model" in wording.reason(found, "standard")
    assert "0.6 per hour saved" in wording.reason(found, "standard")


def test_a_tier_that_refuses_is_wrong_whatever_its_weights() -> None:
    standard = made("standard", seconds=20, wrong=0, of=30, weights="m")
    fast = made("fast", seconds=8, wrong=10, of=30, weights="m", mistake=NO_ANSWER)
    found = only(standard, fast)
    assert found.recommended.use == "standard"
    assert found.of("fast").mistakes == {NO_ANSWER: 10}
    assert found.of("fast").time_to_right_s.value == pytest.approx(8 + 100)


def test_a_few_tasks_without_a_mistake_prove_little() -> None:
    found = only(made("standard", seconds=5, wrong=0, of=10), made("spark", seconds=1, wrong=0, of=10))
    assert not found.recommended.is_clear
    assert (found.recommended.use, found.recommended.seems) == ("standard", "spark")
    assert (found.recommended.tasks_to_tell or 0) > 100
    assert "too few to decide" in wording.headline([found], "standard")
    many = only(made("standard", seconds=5, wrong=0, of=1500), made("spark", seconds=1, wrong=0, of=1500))
    assert many.recommended == verdict.Recommendation("spark", is_clear=True)


def test_a_fast_model_with_many_mistakes_loses_and_the_page_says_when_it_would_win() -> None:
    standard, spark = made("standard", seconds=20, wrong=0, of=60), made("spark", seconds=2, wrong=20, of=60)
    found = only(standard, spark)
    assert found.recommended == verdict.Recommendation("standard", is_clear=True)
    versus = found.of("spark").versus
    assert versus is not None
    assert (versus.break_even.wins, round(versus.break_even.fix.value)) == ("below", 54)
    assert "ahead if a mistake were fixed within 54 s" in wording.reason(found, "standard")
    assert only(standard, spark, fix_s=10).recommended == verdict.Recommendation("spark", is_clear=True)


def test_between_two_that_may_be_equal_the_one_that_is_right_more_often_is_chosen() -> None:
    standard = made("standard", seconds=60, wrong=1, of=40)
    auto, spark = made("auto", seconds=4.1, wrong=1, of=40), made("spark", seconds=2, wrong=2, of=40)
    found = only(standard, spark, auto, fix_s=60)
    assert (found.recommended.use, found.recommended.instead_of) == ("auto", ["spark"])


def test_kinds_are_judged_separately() -> None:
    def both(name: str, seconds: float, wrong: int) -> Run:
        easy = made(name, seconds=seconds, wrong=0, of=200, kind="easy").attempts
        hard = [
            Attempt(f"h-{one.task}", "hard", one.verdict, one.seconds, one.cost_micro)
            for one in made(name, seconds=seconds, wrong=wrong, of=200).attempts
        ]
        return Run(name, name, easy + hard)

    found = judge_runs([both("standard", 20, 0), both("spark", 1, 100)], "standard", 300)
    assert [(one.kind, one.recommended.use) for one in found] == [
        ("all tasks", "standard"),
        ("easy", "spark"),
        ("hard", "standard"),
    ]
    assert wording.headline(found, "standard") == "Use standard; for easy use spark"


def test_without_prices_there_is_no_cost() -> None:
    found = only(made("standard", seconds=2, wrong=0, of=5, cost=None), made("fast", seconds=1, wrong=0, of=5))
    assert found.of("standard").cost_per_right_micro is None
    assert wording.cost(None) == "not known"
    versus = found.of("fast").versus
    assert versus is not None
    assert versus.hour_saved_micro is None
    nothing_right = only(made("standard", seconds=2, wrong=5, of=5))
    assert nothing_right.of("standard").cost_per_right_micro is None
    assert "No target gave a right answer" in wording.reason(nothing_right, "standard")
    alone = only(made("standard", seconds=2, wrong=0, of=5))
    assert wording.reason(alone, "standard") == "There is no other target."


def test_a_target_that_is_never_right_is_not_recommended_however_quickly_mistakes_are_fixed() -> None:
    found = only(made("standard", seconds=3, wrong=24, of=40), made("spark", seconds=1, wrong=40, of=40), fix_s=1.0)
    assert found.figures[1].versus is not None
    assert found.figures[1].versus.saved_s.low > 0
    assert (found.recommended.use, found.recommended.is_clear) == ("standard", True)
    assert "none of its 40 answers was right" in wording.reason(found, "standard")


def test_a_target_that_is_never_right_does_not_seem_better() -> None:
    found = only(
        made("standard", seconds=2, wrong=0, of=3), made("broken", seconds=0, wrong=3, of=3, mistake=NO_ANSWER)
    )
    assert found.recommended == verdict.Recommendation("standard", is_clear=True)


def test_all_targets_must_have_the_same_tasks() -> None:
    with pytest.raises(ValueError, match="not asked the same tasks"):
        judge_runs([made("standard", seconds=1, wrong=0, of=3), made("fast", seconds=1, wrong=0, of=4)], "standard", 1)


def test_break_even_wording() -> None:
    def said(wins: str, value: float, low: float, high: float) -> str:
        return wording.break_even(verdict.BreakEven(wins, verdict.Interval(value, low, high)))

    assert said("always", inf, inf, inf) == "any"
    assert said("always", inf, 40, inf) == "any (certain below 40 s)"
    assert said("never", 0, 0, 0) == "none"
    assert said("below", 90, 30, inf) == "up to 90 s (30 s .. any)"
    assert said("above", 200, 100, 300) == "from 3.3 min (100 s .. 5 min)"
