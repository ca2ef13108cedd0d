"""The machine's promises, each by an example; tests/core/test_walk.py has all of them at once by random walks."""

from __future__ import annotations

import gc
from itertools import count as from_zero

from headway.core.journey import MAX_ENGINES_REACHED
from headway.core.machine import Machine
from headway.core.types import (
    Action,
    Arrived,
    Board,
    Call,
    Cut,
    Draining,
    Failed,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Refuse,
    Replica,
    ReplicaDown,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
    TierPolicy,
    own_pools,
)


def machine(*seats: int, max_held: int = 10, max_hold_s: float = 30.0) -> Machine:
    made = Machine(*own_pools({"m": ModelPolicy({"standard": TierPolicy(max_held, max_hold_s)})}))
    for number, count in enumerate(seats):
        made.step(ReplicaUp(Replica(f"r{number}", "m", count)), 0.0)
    return made


def arrive(to: Machine, *names: str, now: float = 0.0) -> list[Action]:
    return [action for name in names for action in to.step(Arrived(Call(name, "m", "standard")), now)]


def test_calls_board_the_lightest_replica() -> None:
    assert arrive(machine(2, 2), "a", "b", "c") == [
        Board("a", "r0", "standard"),
        Board("b", "r1", "standard"),
        Board("c", "r0", "standard"),
    ]


def test_without_a_seat_a_call_is_held_and_boards_when_one_comes_free() -> None:
    m = machine(1)
    assert arrive(m, "a", "b", now=5.0) == [Board("a", "r0", "standard"), Hold("b", for_s=30.0)]
    assert m.step(Finished("a", 3, 7), 6.0) == [Settled("a", 1_000_000), Board("b", "r0", "standard")]


def test_held_calls_board_in_order_of_arrival() -> None:
    m = machine(1)
    arrive(m, "a", "b", "c")
    assert m.step(Left("a"), 1.0) == [Settled("a", 1_000_000), Board("b", "r0", "standard")]
    assert m.step(Left("b"), 1.0) == [Settled("b", 0), Board("c", "r0", "standard")]


def test_a_held_call_is_refused_at_its_deadline_with_a_retry_after() -> None:
    m = machine(1)
    arrive(m, "a", "b")
    assert m.step(Ticked(), 29.9) == []
    [refusal] = m.step(Ticked(), 30.0)
    assert isinstance(refusal, Refuse)
    assert (refusal.call_id, refusal.reason) == ("b", "hold_timeout")
    assert refusal.retry_after_s >= 1


def test_beyond_max_held_calls_are_refused_at_once() -> None:
    m = machine(1, max_held=1)
    [_board, _hold, refusal] = arrive(m, "a", "b", "c")
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "full"


def test_a_tenant_that_comes_late_does_not_go_first_for_what_others_were_served_before() -> None:
    m = machine(1, max_held=6)
    for number in range(9):  # nobody waits
        m.step(Arrived(Call(f"early {number}", "m", "standard", tenant="early")), 0.0)
        m.step(Finished(f"early {number}", 10, 1_000), 0.0)
    for number in range(5):
        m.step(Arrived(Call(f"late {number}", "m", "standard", tenant="late")), 1.0)
    m.step(Arrived(Call("early", "m", "standard", tenant="early")), 1.0)
    assert m.step(Finished("late 0", 10, 10), 2.0)[-1] == Board("early", "r0", "standard")


def test_a_tenant_that_fills_the_queue_leaves_each_other_tenant_its_share() -> None:
    m, ids = machine(1, max_held=6), from_zero()

    def come(tenant: str, calls: int) -> int:
        """The number of calls that are not refused."""
        answers = [
            m.step(Arrived(Call(f"{tenant} {next(ids)}", "m", "standard", tenant=tenant)), 0.0) for _ in range(calls)
        ]
        m.check(0.0)
        return sum(not isinstance(action, Refuse) for actions in answers for action in actions)

    assert come("flood", 20) == 1 + 6, "alone, it may have one aboard and all places"
    assert come("b", 20) == 3, "one of two"
    assert come("c", 20) == 2, "one of three"
    assert come("flood", 20) == 0
    assert m.step(Finished("flood 0", 1, 1), 1.0)[-1] == Board("b 20", "r0", "standard"), "flood was served more"
    assert come("b", 20) == 0, "two wait already, its share of three"
    assert come("d", 20) == 1


def test_retry_after_grows_with_the_queue_and_the_pace() -> None:
    m = machine(1, max_held=2)
    arrive(m, "a", "b", "c")
    quick = m.pools["m"].waiting.retry_after_s("standard")
    for second in (10.0, 20.0, 30.0):
        m.step(Left(f"x{second}"), second)
    m.step(Finished("a", 1, 1), 10.0)
    m.step(Finished("b", 1, 1), 60.0)
    arrive(m, "d", "e", now=60.0)
    assert m.pools["m"].waiting.retry_after_s("standard") > quick


def test_a_client_that_leaves_while_held_takes_no_seat() -> None:
    m = machine(1)
    arrive(m, "a", "b", "c")
    assert m.step(Left("b"), 1.0) == [Settled("b", 0)]
    assert m.step(Finished("a", 1, 1), 2.0) == [Settled("a", 2_000_000), Board("c", "r0", "standard")]


def test_an_engine_lost_before_the_first_byte_is_replaced_by_another() -> None:
    m = machine(2, 2)
    arrive(m, "a")
    assert m.step(Failed("a", "waiting"), 1.0) == [Board("a", "r1", "standard")]


def test_a_call_is_given_to_a_bounded_number_of_engines() -> None:
    m = machine(2, 2, 2)
    arrive(m, "a")
    for _ in range(MAX_ENGINES_REACHED - 1):
        [again] = m.step(Failed("a", "waiting"), 1.0)
        assert isinstance(again, Board)
    [refusal] = m.step(Failed("a", "waiting"), 1.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "engine_failed"
    assert m.calls == 0


def test_an_engine_that_never_saw_the_call_does_not_count() -> None:
    m = machine(1, 1, 1, 1)
    arrive(m, "a")
    for _ in range(3):
        [again] = m.step(Failed("a", "connect"), 1.0)
        assert isinstance(again, Board)


def test_a_failed_call_waits_for_a_replica_that_has_not_failed_it() -> None:
    m = machine(1)
    arrive(m, "a")
    m.step(ReplicaSuspect("r0"), 1.0)
    assert m.step(Failed("a", "connect"), 1.0) == [Hold("a", for_s=30.0)]
    assert arrive(m, "b", now=2.0) == [Hold("b", for_s=30.0)]
    # The replica is up again: the call that failed there may board it again, and goes first.
    assert m.step(ReplicaUp(Replica("r0", "m", 1)), 3.0) == [Board("a", "r0", "standard")]


def test_a_full_engine_sends_the_call_elsewhere_or_back() -> None:
    m = machine(2, 2)
    arrive(m, "a")
    assert m.step(Failed("a", "full"), 1.0) == [Board("a", "r1", "standard")]
    [refusal] = m.step(Failed("a", "full"), 1.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "engine_full"


def test_a_suspect_replica_takes_no_calls_but_keeps_its_streams() -> None:
    m = machine(2, 1)
    arrive(m, "a", "b")
    assert m.step(ReplicaSuspect("r0"), 1.0) == []
    assert arrive(m, "c", now=1.0) == [Hold("c", for_s=30.0)]
    assert m.step(ReplicaUp(Replica("r0", "m", 2)), 2.0) == [Board("c", "r0", "standard")]


def test_a_replica_that_goes_down_has_its_streams_cut() -> None:
    m = machine(2, 2)
    arrive(m, "a", "b", "c")
    assert m.step(ReplicaDown("r0"), 1.0) == [Cut("a"), Cut("c")]
    assert m.step(Failed("a", "waiting"), 1.0) == [Board("a", "r1", "standard")]
    assert m.step(Left("c"), 1.0) == [Settled("c", 500_000)]


def test_seat_time_is_that_of_all_boardings_of_a_call() -> None:
    """A replayed run tells it by the same events, so nothing but events may count time."""
    m = machine(2, 2)
    arrive(m, "a", "b", "c")
    assert m.step(Failed("a", "waiting"), 3.0) == [Board("a", "r1", "standard")]  # 1.5 s beside c on r0
    assert m.step(Finished("c", 1, 1), 3.0) == [Settled("c", 1_500_000)]
    assert m.step(ReplicaDown("r1"), 4.0) == [Cut("b"), Cut("a")]  # 0.5 s beside b on r1
    assert m.step(Failed("b", "connect"), 5.0) == [Board("b", "r0", "standard")]
    assert m.step(Left("a"), 9.0) == [Settled("a", 2_000_000)]  # it is cut: time that passes is nobody's
    assert m.step(Finished("b", 1, 1), 9.25) == [Settled("b", 3_500_000 + 4_250_000)]


def test_without_any_replica_calls_are_refused_at_once() -> None:
    [refusal] = arrive(machine(), "a")
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "no_replica"


def test_held_calls_of_a_model_whose_replicas_are_gone_are_told_so() -> None:
    m = machine(1)
    arrive(m, "a", "b")
    m.step(ReplicaDown("r0"), 1.0)
    [refusal] = m.step(Ticked(), 40.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "no_replica"


def test_draining_serves_who_is_here_and_refuses_who_comes() -> None:
    m = machine(1)
    arrive(m, "a", "b")
    m.step(Draining(), 1.0)
    [refusal] = arrive(m, "c", now=1.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason == "draining"
    assert m.step(Finished("a", 1, 1), 2.0) == [Settled("a", 2_000_000), Board("b", "r0", "standard")]


def test_the_last_word_may_come_twice() -> None:
    m = machine(1)
    arrive(m, "a")
    assert m.step(Finished("a", 1, 1), 1.0) == [Settled("a", 1_000_000)]
    assert m.step(Left("a"), 1.0) == []
    assert arrive(m, "b", now=1.0) == [Board("b", "r0", "standard")]


def test_ten_thousand_replicas_are_filled_evenly() -> None:
    m = machine(*[3] * 10_000)
    for number in range(30_000):
        [action] = arrive(m, str(number))
        assert isinstance(action, Board)
    assert all(m.pools["m"].aboard(f"r{number}") == 3 for number in range(10_000))


def test_an_ended_call_leaves_no_cycle_of_objects() -> None:
    """The dispatcher relies on that: it makes hardly any full garbage collections (deciding.py)."""
    m = machine(1)
    gc.collect()
    gc.disable()
    try:
        for number in range(100):
            arrive(m, f"c{number}", now=float(number))  # every other one is held first
            if number % 2:
                m.step(Finished(f"c{number - 1}", 1, 1), float(number))
                m.step(Left(f"c{number}"), float(number))
        assert gc.collect() == 0
    finally:
        gc.enable()
