"""The context of the streams aboard makes each step longer, which limits who boards."""

from __future__ import annotations

from math import inf

import pytest

from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.pace import FIRST_ANSWER_TOKENS
from headway.core.types import Board, Finished, Hold, Left, ModelPolicy, Replica, ReplicaChanged, ReplicaUp, own_pools
from tests.core.test_express import CURVE, TIERS, arrive, fast

ANSWER = int(FIRST_ANSWER_TOKENS)
# A step may take 20 ms for the floor of fast. One stream alone takes 10 ms and leaves time to read 10,000 tokens, with
# the answers that are expected; two take 15 ms and leave time for 5,000.
READS = Curve(CURVE.a, CURVE.c, CURVE.d, e=1e-6)
LONG = 4_000


def with_curves(*curves: Curve) -> Machine:
    policy = ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)
    m = Machine(*own_pools({"m": policy}))
    for number, curve in enumerate(curves):
        m.step(ReplicaUp(Replica(f"r{number}", "m", 10, curve)), 0.0)
    return m


def test_an_express_call_boards_where_its_context_keeps_the_floors() -> None:
    m = with_curves(READS, READS)
    assert arrive(m, "a", "fast", prompt_tokens=LONG) == [fast("a", "r0")]
    assert arrive(m, "b", "fast", prompt_tokens=LONG) == [fast("b", "r1")]
    assert arrive(m, "c", "fast", prompt_tokens=LONG) == [Hold("c", for_s=2.0)]
    assert m.step(Left("b"), 1.0)[1:] == [fast("c", "r1")]


def test_short_contexts_do_not_wait_behind_a_long_one() -> None:
    m = with_curves(READS)
    arrive(m, "a", "fast", prompt_tokens=LONG)
    assert arrive(m, "b", "fast", prompt_tokens=LONG) == [Hold("b", for_s=2.0)]
    assert arrive(m, "c", "fast", prompt_tokens=100) == [fast("c", "r0")]


def test_without_the_term_context_does_not_count() -> None:
    m = with_curves(CURVE)
    assert arrive(m, "a", "fast", prompt_tokens=10**9) == [fast("a", "r0")]
    assert arrive(m, "b", "fast", prompt_tokens=10**9) == [fast("b", "r0")]


def test_each_choice_reads_the_prompt() -> None:
    m = with_curves(READS)
    assert arrive(m, "a", "fast", prompt_tokens=LONG, choices=2) == [Hold("a", for_s=2.0)]
    assert arrive(m, "b", "fast", prompt_tokens=LONG // 2, choices=2) == [fast("b", "r0")]


def test_a_standard_call_does_not_ride_where_its_context_breaks_a_floor() -> None:
    m = with_curves(READS)
    arrive(m, "a", "fast", prompt_tokens=LONG)
    assert arrive(m, "b", "standard", prompt_tokens=LONG) == [Hold("b", for_s=30.0)]
    assert arrive(m, "c", "standard", prompt_tokens=100) == [Board("c", "r0", "standard")]


def test_a_heavy_replica_takes_any_context_and_then_no_express_call() -> None:
    m = with_curves(READS)
    assert arrive(m, "a", "standard", prompt_tokens=LONG) == [Board("a", "r0", "standard")]
    assert arrive(m, "b", "standard", prompt_tokens=LONG) == [Board("b", "r0", "standard")]
    assert arrive(m, "c", "fast") == [Hold("c", for_s=2.0)]
    assert m.step(Left("a"), 1.0)[1:] == [fast("c", "r0")]


def test_a_context_that_breaks_its_own_floor_waits_like_any_other_call() -> None:
    m = with_curves(READS)
    assert arrive(m, "a", "fast", prompt_tokens=30_000) == [Hold("a", for_s=2.0)]
    assert arrive(m, "b", "standard", prompt_tokens=30_000) == [Board("b", "r0", "standard")]


def test_the_strictest_floor_aboard_counts() -> None:
    m = with_curves(READS.slower(0.2))  # for ultrafast a step may take 10 ms
    arrive(m, "a", "fast")
    arrive(m, "b", "ultrafast")
    assert arrive(m, "c", "standard", prompt_tokens=35_000) == [Hold("c", for_s=30.0)]
    assert m.step(Left("b"), 1.0)[1:] == [Board("c", "r0", "standard")]


def test_a_replica_that_became_slower_takes_less_context() -> None:
    slow, quick = with_curves(READS), with_curves(READS)
    for m, speed_tps in ((slow, 80.0), (quick, None)):
        for number in range(20):
            arrive(m, f"c{number}", "fast")
            m.step(Finished(f"c{number}", 0, ANSWER, speed_tps), 1.0 + number)
    assert arrive(quick, "a", "fast", 30.0, prompt_tokens=9_000) == [fast("a", "r0")]
    assert arrive(slow, "a", "fast", 30.0, prompt_tokens=9_000) == [Hold("a", for_s=2.0)]
    assert arrive(slow, "b", "fast", 30.0, prompt_tokens=100) == [fast("b", "r0")]


def test_the_prediction_for_a_stream_counts_its_context() -> None:
    m = with_curves(READS)
    arrive(m, "a", "standard", prompt_tokens=10_000 - ANSWER)
    pool = m.pools["m"]
    assert pool.tokens_given("a", "r0", 1.0) == pytest.approx(50, abs=1)  # 100 without context


def test_another_curve_takes_effect() -> None:
    m = with_curves(READS)
    arrive(m, "a", "fast", prompt_tokens=LONG)
    arrive(m, "b", "fast", prompt_tokens=LONG)
    assert m.step(ReplicaChanged(Replica("r0", "m", 10, CURVE)), 1.0) == [fast("b", "r0")]
