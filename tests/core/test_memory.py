"""A replica's memory for prompts and answers limits who boards."""

from __future__ import annotations

from math import inf

from headway.core.machine import Machine
from headway.core.pace import FIRST_ANSWER_TOKENS
from headway.core.types import Board, Finished, Hold, Left, ModelPolicy, Replica, ReplicaChanged, ReplicaUp, own_pools
from tests.core.test_express import CURVE, TIERS, arrive, fast

ANSWER = int(FIRST_ANSWER_TOKENS)


def with_memory(*kv_tokens: int) -> Machine:
    m = Machine(*own_pools({"m": ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)}))
    for number, tokens in enumerate(kv_tokens):
        m.step(ReplicaUp(Replica(f"r{number}", "m", 10, CURVE, kv_tokens=tokens)), 0.0)
    return m


def test_a_call_waits_until_its_prompt_and_a_mean_answer_fit() -> None:
    m = with_memory(2 * (ANSWER + 100))
    arrive(m, "a", "standard", prompt_tokens=100)
    arrive(m, "b", "standard", prompt_tokens=100)
    assert arrive(m, "c", "standard", prompt_tokens=100) == [Hold("c", for_s=30.0)]
    assert m.step(Left("a"), 1.0)[1:] == [Board("c", "r0", "standard")]


def test_each_choice_takes_memory_and_the_prompt_once() -> None:
    m = with_memory(3 * ANSWER + 100)
    arrive(m, "a", "standard", prompt_tokens=100, choices=3)
    assert arrive(m, "b", "standard") == [Hold("b", for_s=30.0)]


def test_a_call_goes_where_there_is_memory() -> None:
    m = with_memory(ANSWER + 1000, 10 * ANSWER)
    arrive(m, "a", "standard", prompt_tokens=1000)
    arrive(m, "b", "standard")
    arrive(m, "c", "standard")  # r1 has more streams now, but r0 is full
    assert arrive(m, "d", "standard") == [Board("d", "r1", "standard")]


def test_an_express_call_does_not_board_where_memory_would_run_out() -> None:
    m = with_memory(2 * ANSWER, 2 * ANSWER)
    assert arrive(m, "a", "fast") == [fast("a", "r0")]
    assert arrive(m, "b", "fast", prompt_tokens=10) == [fast("b", "r1")]
    assert arrive(m, "c", "fast", prompt_tokens=10) == [Hold("c", for_s=2.0)]
    assert arrive(m, "d", "fast") == [fast("d", "r0")]


def test_a_standard_call_does_not_ride_where_memory_would_run_out() -> None:
    m = with_memory(2 * ANSWER)
    arrive(m, "a", "fast")
    assert arrive(m, "b", "standard", prompt_tokens=10) == [Hold("b", for_s=30.0)]


def test_an_empty_replica_takes_any_call() -> None:
    m = with_memory(100)
    assert arrive(m, "a", "standard", prompt_tokens=5000) == [Board("a", "r0", "standard")]
    assert arrive(m, "b", "standard") == [Hold("b", for_s=30.0)]


def test_the_length_of_answers_is_learnt() -> None:
    m = with_memory(4 * ANSWER)
    for number in range(600):
        arrive(m, f"c{number}", "standard")
        m.step(Finished(f"c{number}", 0, 20), 0.0)
    boards = [arrive(m, f"d{number}", "standard") for number in range(10)]
    assert all(isinstance(action, Board) for [action] in boards)


def test_other_memory_takes_effect() -> None:
    m = with_memory(ANSWER)
    arrive(m, "a", "standard")
    arrive(m, "b", "standard")
    larger = Replica("r0", "m", 10, CURVE, kv_tokens=2 * ANSWER)
    assert m.step(ReplicaChanged(larger), 1.0) == [Board("b", "r0", "standard")]
