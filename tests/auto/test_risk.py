"""A mistake budget is kept as often as it says, and a broken one is noticed."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.auto.risk import Judged, at_most, binomial_cdf, calls_needed, threshold, watched_rate
from headway.core.watch import Watch


def sample(dice: random.Random, calls: int) -> list[Judged]:
    """A student whose chance of an excess mistake falls with its score: (1 - score)² / 3."""
    scores = [dice.random() for _ in range(calls)]
    return [Judged(score, dice.random() < (1 - score) ** 2 / 3) for score in scores]


def true_risk(level: float) -> float:
    return 0.0 if level == inf else (1 - level) ** 3 / 9


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.05])
def test_the_budget_is_broken_at_most_as_often_as_the_confidence_allows(budget: float) -> None:
    dice = random.Random(0)
    levels = [threshold(sample(dice, 500), budget) for _ in range(400)]
    assert sum(true_risk(level) > budget for level in levels) / 400 <= 0.07  # 0.05, and what 400 of them may add
    assert sum(level < 1 for level in levels) > 300, "a budget that is never used keeps itself"


def test_the_fewest_calls() -> None:
    assert [calls_needed(budget) for budget in (0.01, 0.02, 0.05)] == [299, 149, 59]
    perfect = [Judged(1.0, is_excess=False)] * 148
    assert threshold(perfect, 0.02) == inf
    assert threshold([*perfect, Judged(1.0, is_excess=False)], 0.02) == 0.0


def test_a_lower_threshold_is_not_tried_after_one_that_failed() -> None:
    wrong_on_top = [Judged(1.0, is_excess=True)] * 20 + [Judged(0.5, is_excess=False)] * 5000
    assert threshold(wrong_on_top, 0.05) == 0.0  # 20 of 5,020 are within 5 %
    assert threshold([Judged(1.0, is_excess=True)] * 20 + [Judged(0.5, is_excess=False)] * 300, 0.05) == inf


@given(st.integers(1, 60), st.floats(0.001, 0.6), st.data())
def test_the_binomial_is_exact(of: int, rate: float, data: st.DataObject) -> None:
    mistakes = data.draw(st.integers(0, of))
    weights, total = [1.0], 0.0
    for k in range(of):
        weights.append(weights[-1] * (of - k) / (k + 1) * rate / (1 - rate))
    total = sum(weights)
    assert binomial_cdf(mistakes, of, rate) == pytest.approx(sum(weights[: mistakes + 1]) / total, rel=1e-9)


def test_a_kept_budget_is_seldom_called_broken_however_often_one_looks() -> None:
    dice = random.Random(1)
    broken = 0
    for _ in range(300):
        watch = Watch(0.02)
        for _ in range(1500):
            watch.see(dice.random() < 0.02)
        broken += watch.is_broken
    assert broken / 300 <= 0.07


@pytest.mark.parametrize(("times", "audits"), [(2, 2500), (5, 250), (20, 40)])
def test_a_broken_budget_is_noticed_the_sooner_the_worse_it_is(times: int, audits: int) -> None:
    dice = random.Random(2)
    for _ in range(20):
        watch = Watch(0.02)
        while not watch.is_broken:
            watch.see(dice.random() < 0.02 * times)
        assert watch.audited <= audits
    assert watch.won() >= 20


def test_what_may_differ_is_the_budget_and_what_did_no_harm() -> None:
    assert at_most(0, 149) == pytest.approx(0.0199, abs=1e-4)
    assert at_most(5, 5) == 1.0
    taken = [Judged(0.9, is_excess=False, differs=True)] * 3 + [Judged(0.9, is_excess=True, differs=True)] * 2
    others = [Judged(0.1, is_excess=False, differs=True)] * 50 + [Judged(0.9, is_excess=False)] * 200
    assert watched_rate([*taken, *others], 0.5, 0.02) == pytest.approx(0.02 + at_most(3, 255))
