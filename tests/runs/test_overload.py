"""The judge of runs/overload.sh: what counts as good, how refusals are timed, and when all is normal again."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest

from runs.torture.overload_callers import Made, arrivals, retry_wait_s
from runs.torture.overload_cell import FLOOR_TPS
from runs.torture.overload_judge import (
    IN_TIME_S,
    Normal,
    Phase,
    is_good,
    is_kept,
    is_usual,
    normal_after_s,
    point,
    refusal_s,
    retried_s,
)

USUAL = Normal({"standard": 0.2, "fast": 0.1}, 0.005)


def served(due_s: float, wait_s: float = 0.1, tier: str = "standard", tps: float = 30.0, what: str = "call") -> Made:
    first_s = due_s + wait_s
    last_s = first_s + 39 / tps
    return Made("p", what, "t", tier, 40, due_s, due_s, 0, due_s, first_s, last_s, last_s, 40, "complete")


def refused(due_s: float, after_s: float, words: str = "429 full", what: str = "call") -> Made:
    return Made("p", what, "t", "fast", 40, due_s, due_s, 0, due_s, ended_s=due_s + after_s, how="refused", words=words,
                retry_after="2")  # fmt: skip


def test_a_call_is_good_if_it_is_whole_in_time_and_at_its_floor() -> None:
    assert is_good(served(0.0))
    assert not is_good(served(0.0, wait_s=IN_TIME_S + 0.1))
    cut = served(0.0)
    cut.how = "cut"
    assert not is_good(cut)
    assert is_good(served(0.0, tier="fast", tps=FLOOR_TPS + 0.1))
    assert not is_good(served(0.0, tier="fast", tps=FLOOR_TPS - 0.1))
    assert is_good(served(0.0, tps=FLOOR_TPS - 0.1))
    assert is_kept(served(0.0, tier="fast", tps=1.0, what="slow")) is None


def test_a_retried_call_is_timed_from_when_it_was_first_wanted() -> None:
    retried = served(6.0, wait_s=3.0)
    assert is_good(retried)
    retried.wanted_s = 0.0
    assert not is_good(retried)


def test_a_refusal_after_the_longest_hold_is_timed_from_then() -> None:
    assert refusal_s(refused(1.0, 0.01)) == pytest.approx(0.01)
    assert refusal_s(refused(1.0, 4.01, "429 hold_timeout")) == pytest.approx(0.01)


def test_a_point_counts_what_was_due_and_what_ended_after_its_warm_up() -> None:
    phase = Phase("p", 1.0, for_s=26.0)  # judged from 6 to 26
    made = [served(float(at)) for at in range(30)] + [refused(10.0, 0.02), refused(1.0, 9.0)]
    made.append(Made("p", "probe", "t", "standard", 30, 12.0, 12.0, ended_s=12.1, how="refused"))
    found = point(phase, made, 0.0)
    assert found.offered == pytest.approx((20 + 1) / 20)
    assert found.good == pytest.approx(20 / 20)
    assert (found.refusals, found.untold, found.broken) == (2, 1, 0)
    assert found.refusal_s[0] == pytest.approx(0.02)
    assert found.served == pytest.approx(20 / 21)


def test_what_was_not_seen_is_not_a_number() -> None:
    assert math.isnan(point(Phase("p", 1.0), [], 0.0).wait_s[1])


def test_normal_again_after_the_last_window_with_two_odd_calls() -> None:
    calls = [served(100 + 0.1 * number) for number in range(80)]
    assert normal_after_s(calls, 100.0, USUAL) == 0.0
    odd = [served(100.3, 1.0), refused(101.0, 0.01), served(101.4, 1.0), served(105.0, 1.0)]  # the last one is alone
    assert normal_after_s([*calls, *odd], 100.0, USUAL) == pytest.approx(1.4)
    assert not is_usual(refused(0.0, 0.05, what="probe"), USUAL)
    assert is_usual(refused(0.0, 0.02, what="probe"), USUAL)


def test_an_overload_goes_on_while_its_callers_retry() -> None:
    def due(*times: float) -> list[Made]:
        return [served(at) for at in times]

    assert retried_s([], 100.0, 2.0) == 0
    assert retried_s(due(99.0, 99.5, 99.9, 100.1, 101.0), 100.0, 2.0) == 0
    assert retried_s(due(100.1, 100.2, 100.3, 101.0, 102.1, 102.2, 102.3), 100.0, 2.0) == 1


def test_arrivals_have_the_rate_and_the_variation_that_are_asked_for() -> None:
    for cv in (1.0, 4.0):
        times = [one.at_s for one in islice(arrivals("s", 400.0, 1e6, cv), 40_000)]
        gaps = [later - before for before, later in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        found = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
        assert mean == pytest.approx(1 / 400, rel=0.1)
        assert found == pytest.approx(cv, rel=0.1)
    assert not list(arrivals("s", 0.0, 10.0))


def test_retries_wait_as_the_sdk_does() -> None:
    assert retry_wait_s("3", 0, 0.5) == 3.0
    assert retry_wait_s("", 0, 0.0) == 0.5
    assert retry_wait_s("300", 1, 0.0) == 1.0
    assert retry_wait_s("", 9, 1.0) == 6.0
