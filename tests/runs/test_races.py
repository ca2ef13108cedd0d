"""The judge of runs/cell-limits.sh: when a limit was reached, what was spent above it, who was refused too early."""

from __future__ import annotations

from runs.cell.races import Answer, Reached, Tokens, refused_early, times_reached, tokens_of

LIMIT = 600  # per minute: 10 tokens are refilled each second


def refusal(sent_at: float) -> Answer:
    return Answer(sent_at, sent_at + 0.1, 429, reason="over_limit", retry_after_s=1)


def test_what_was_under_way_is_the_most_that_is_spent_above_a_limit() -> None:
    first, last, other = Tokens(0.0, 1.0, 500), Tokens(0.5, 2.0, 200), Tokens(0.9, 3.0, 50)
    [reached] = times_reached([first, last, other], LIMIT)
    assert reached == Reached(over=750 - 600 - 30, under_way=250)


def test_calls_of_another_counter_are_above_it() -> None:
    """As if two relays counted for themselves: both serve the whole limit, one after the other."""
    served = [Tokens(number / 10, number / 10 + 0.1, 100) for number in range(12)]
    [reached] = times_reached(served, LIMIT)
    assert reached.over > reached.under_way


def test_a_limit_is_reached_again_when_it_has_refilled() -> None:
    served = [Tokens(0.0, 1.0, 650), Tokens(0.0, 1.5, 20), Tokens(9.0, 10.0, 100), Tokens(20.0, 20.5, 40)]
    assert [(round(one.over), one.under_way) for one in times_reached(served, LIMIT)] == [(55, 670), (70, 100), (5, 40)]


def test_a_limit_that_is_not_reached() -> None:
    assert times_reached([Tokens(0.0, 1.0, 600)], LIMIT) == []  # 10 were refilled since it was sent
    assert times_reached([], LIMIT) == []


def test_refused_early() -> None:
    served = [Tokens(0.0, 1.0, 500), Tokens(0.5, 2.0, 200)]
    assert refused_early(served, [refusal(0.3)], LIMIT) == 1  # the second was not sent yet
    assert refused_early(served, [refusal(1.2), refusal(10.9)], LIMIT) == 0
    assert refused_early(served, [refusal(11.2)], LIMIT) == 1  # 102 were refilled
    assert refused_early([], [refusal(0.0)], LIMIT) == 1


def test_a_bucket_that_is_full_does_not_refill() -> None:
    """The first call has refilled after a second. What follows finds a full bucket, not one with more than the limit."""
    served = [Tokens(0.0, 1.0, 10), Tokens(9.0, 10.0, 605)]
    assert refused_early(served, [refusal(10.2)], LIMIT) == 0
    assert refused_early(served, [refusal(11.0)], LIMIT) == 1


def test_what_counts_as_refused() -> None:
    over = refusal(0.0)
    assert over.is_refusal_of("input")
    assert not over.is_refusal_of("budget")
    assert not Answer(0.0, 1.0, 429, reason="full", retry_after_s=1).is_refusal_of("output")
    assert not Answer(0.0, 1.0, 429, reason="over_limit").is_refusal_of("output")  # not when to retry
    assert Answer(0.0, 1.0, 402, reason="over_budget", retry_after_s=60).is_refusal_of("budget")


def test_tokens_of_the_kind_that_is_limited() -> None:
    answers = [Answer(0.0, 1.0, 200, prompt_tokens=7, output_tokens=3), refusal(0.0)]
    assert tokens_of("input", answers) == [Tokens(0.0, 1.0, 7)]
    assert tokens_of("output", answers) == [Tokens(0.0, 1.0, 3)]
