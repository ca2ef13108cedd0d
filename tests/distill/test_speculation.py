"""Among none, n-gram and a drafter the one is chosen that pays, batch by batch, and none where nothing does."""

from __future__ import annotations

from headway.distill.speculation import Choice, Tried, choose


def gains(**by_text: list[float]) -> dict[tuple[str, int], list[float]]:
    """A gain for 1, 2, 4, .. streams."""
    return {(text, 2**place): [gain] for text, row in by_text.items() for place, gain in enumerate(row)}


def test_the_method_that_gains_most_is_taken_with_its_best_number_for_each_batch() -> None:
    tried = [
        Tried("ngram", 4, gains(calls=[1.2, 1.1, 1.0])),
        Tried("draft_model", 2, gains(calls=[1.3, 1.25, 1.1])),
        Tried("draft_model", 4, gains(calls=[1.5, 1.2, 0.9])),
    ]
    assert choose(tried) == Choice("draft_model", {1: 4, 2: 2, 4: 2})
    assert choose(tried).schedule(64) == [(1, 1, 4), (2, 4, 2), (5, 64, 0)]


def test_no_text_may_lose_what_another_gains() -> None:
    tried = [Tried("draft_model", 4, gains(calls=[2.0, 2.0], prose=[0.98, 1.0]))]
    assert choose(tried) == Choice("draft_model", {1: 0, 2: 4})


def test_where_nothing_pays_nothing_is_guessed() -> None:
    tried = [Tried("ngram", 4, gains(calls=[1.02, 0.9])), Tried("draft_model", 3, gains(calls=[0.8, 0.7]))]
    assert choose(tried) == Choice(None, {1: 0, 2: 0})
    assert choose(tried).schedule(2) == [(1, 2, 0)]


def test_between_measured_batches_the_larger_one_speaks() -> None:
    assert Choice("ngram", {1: 4, 8: 2}).schedule(8) == [(1, 1, 4), (2, 8, 2)]
