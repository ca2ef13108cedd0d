"""The choice between no speculation, n-gram and a drafter, by batch size."""

from __future__ import annotations

from headway.distill.speculation import Choice, Tried, choose


def gains(**by_text: list[float]) -> dict[tuple[str, int], list[float]]:
    """Gains at 1, 2, 4, .. streams for each kind of text."""
    return {(text, 2**place): [gain] for text, row in by_text.items() for place, gain in enumerate(row)}


def test_the_method_with_the_highest_gain_is_chosen_with_its_best_number_for_each_batch() -> None:
    tried = [
        Tried("ngram", 4, gains(calls=[1.2, 1.1, 1.0])),
        Tried("draft_model", 2, gains(calls=[1.3, 1.25, 1.1])),
        Tried("draft_model", 4, gains(calls=[1.5, 1.2, 0.9])),
    ]
    assert choose(tried) == Choice("draft_model", {1: 4, 2: 2, 4: 2})
    assert choose(tried).schedule(64) == [(1, 1, 4), (2, 4, 2), (5, 64, 0)]


def test_a_method_that_slows_one_kind_of_text_is_not_used() -> None:
    tried = [Tried("draft_model", 4, gains(calls=[2.0, 2.0], prose=[0.98, 1.0]))]
    assert choose(tried) == Choice("draft_model", {1: 0, 2: 4})


def test_nothing_is_drafted_if_nothing_gains_speed() -> None:
    tried = [Tried("ngram", 4, gains(calls=[1.02, 0.9])), Tried("draft_model", 3, gains(calls=[0.8, 0.7]))]
    assert choose(tried) == Choice(None, {1: 0, 2: 0})
    assert choose(tried).schedule(2) == [(1, 2, 0)]


def test_a_batch_between_measured_ones_gets_the_number_of_the_larger() -> None:
    assert Choice("ngram", {1: 4, 8: 2}).schedule(8) == [(1, 1, 4), (2, 8, 2)]
