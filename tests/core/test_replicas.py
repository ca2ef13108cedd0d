"""Replicas that come, change, drain and go while calls are served."""

from __future__ import annotations

from dataclasses import replace

from headway.core.fare import SeatTime
from headway.core.types import (
    Arrived,
    Board,
    Call,
    Cut,
    Failed,
    Finished,
    Hold,
    Left,
    Refuse,
    Replica,
    ReplicaBehind,
    ReplicaChanged,
    ReplicaDown,
    ReplicaDraining,
    ReplicaRemoved,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
)
from tests.core.test_express import CURVE, arrive, board_many, fast, loads, machine

R0 = Replica("r0", "m", 10, CURVE)


def test_fewer_seats_take_effect_and_streams_aboard_stay() -> None:
    m = machine(replicas=1)
    board_many(m, 4)
    assert m.step(ReplicaUp(replace(R0, seats=2)), 1.0) == []
    assert loads(m) == [4]
    assert arrive(m, "a", "standard", 1.0) == [Hold("a", for_s=30.0)]
    for number, seat_us in ((0, 250_000), (1, 250_000)):
        assert m.step(Finished(f"standard{number}", 1, 1), 1.0) == [Settled(f"standard{number}", seat_us)]
    assert m.step(Finished("standard2", 1, 1), 1.0) == [Settled("standard2", 250_000), Board("a", "r0", "standard")]


def test_more_seats_are_given_to_those_who_wait() -> None:
    m = machine(replicas=1, seats=1)
    arrive(m, "a", "standard")
    arrive(m, "b", "standard")
    assert m.step(ReplicaChanged(replace(R0, seats=2)), 1.0) == [Board("b", "r0", "standard")]


def test_another_curve_changes_what_may_be_promised() -> None:
    m = machine(replicas=1)
    for number in range(3):
        arrive(m, f"f{number}", "fast")
    m.step(ReplicaChanged(replace(R0, curve=CURVE.slower(1.3))), 1.0)  # 51 tok/s among 2, 38 among 3
    m.step(Left("f0"), 1.0)
    assert arrive(m, "g", "fast", 1.0) == [Hold("g", for_s=2.0)]
    assert m.step(Left("f1"), 1.0) == [Settled("f1", 333_333), fast("g", "r0")]


def test_a_new_curve_forgets_what_was_learnt_of_the_old_one() -> None:
    m = machine(replicas=1)
    arrive(m, "a", "fast")
    m.step(ReplicaBehind("r0"), 1.0)
    m.step(Finished("a", 1, 50, CURVE.speed_tps(1) / 3.0), 2.0)
    assert arrive(m, "late", "fast", 10.0) == [Hold("late", for_s=2.0)]
    assert m.step(ReplicaChanged(replace(R0, curve=CURVE.slower(0.9))), 11.0) == [fast("late", "r0")]
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    assert state.feedback.slowness < 1.15  # what remains is how much streams of the pool differ


def test_changing_a_closed_or_unknown_replica_opens_nothing() -> None:
    m = machine(replicas=1)
    m.step(ReplicaSuspect("r0"), 1.0)
    m.step(ReplicaChanged(replace(R0, seats=20)), 1.0)
    m.step(ReplicaChanged(replace(R0, name="other")), 1.0)
    assert arrive(m, "a", "standard", 1.0) == [Hold("a", for_s=30.0)]
    assert m.step(ReplicaUp(replace(R0, seats=20)), 2.0) == [Board("a", "r0", "standard")]


def test_seat_time_is_exact_when_more_are_aboard_than_seats_are_left() -> None:
    time = SeatTime(4, 0.0)
    marks = [time.taken(express=False) for _ in range(3)]
    time.advance(1.0, express=0, others=3, light=True)
    time.seats = 2
    time.advance(2.0, express=0, others=3, light=True)
    paid_us = [time.charge(mark, express=False, is_last=number == 2) for number, mark in enumerate(marks)]
    assert paid_us == [583_333, 583_333, 583_334]  # a quarter of the first second, a third of the next
    assert time.reserve_us == 250_000
    assert time.busy_us == 2_000_000


def test_a_draining_replica_keeps_its_streams_and_takes_nobody() -> None:
    m = machine(replicas=2)
    board_many(m, 2)
    assert m.step(ReplicaDraining("r0"), 1.0) == []
    assert arrive(m, "a", "standard", 1.0) == [Board("a", "r1", "standard")]
    assert m.step(Finished("standard0", 1, 1), 2.0) == [Settled("standard0", 2_000_000)]
    assert m.step(ReplicaUp(R0), 3.0) == []
    assert arrive(m, "b", "standard", 3.0) == [Board("b", "r0", "standard")]


def test_nobody_waits_for_a_draining_replica() -> None:
    m = machine(replicas=1)
    m.step(ReplicaDraining("r0"), 0.0)
    assert arrive(m, "a", "standard") == [Refuse("a", "no_replica", retry_after_s=1)]
    m.step(ReplicaUp(R0), 1.0)
    m.step(ReplicaSuspect("r0"), 1.0)
    assert arrive(m, "b", "standard", 1.0) == [Hold("b", for_s=30.0)]  # a suspect one may come back


def test_another_replica_is_light_in_place_of_one_that_drains() -> None:
    """The one that drains may carry its fast stream for minutes: a rolling restart must not refuse all other calls."""
    m = machine(replicas=2)
    assert arrive(m, "f0", "fast") == [fast("f0", "r0")]
    m.step(ReplicaDraining("r0"), 1.0)
    assert arrive(m, "f1", "fast", 1.0) == [fast("f1", "r1")]


def test_a_removed_replica_is_forgotten_and_what_is_still_aboard_is_cut() -> None:
    m = machine(replicas=2)
    board_many(m, 2)
    m.step(ReplicaDraining("r0"), 1.0)
    m.step(ReplicaDraining("r1"), 1.0)
    m.step(Finished("standard1", 1, 1), 1.0)
    assert m.step(ReplicaRemoved("r1"), 2.0) == []
    assert m.step(ReplicaRemoved("r0"), 2.0) == [Cut("standard0")]
    assert m.step(Left("standard0"), 5.0) == [Settled("standard0", 2_000_000)]
    assert arrive(m, "a", "standard", 5.0) == [Refuse("a", "no_replica", retry_after_s=1)]


def test_a_replica_that_is_up_for_another_model_has_lost_its_streams() -> None:
    m = machine(replicas=1, models=("m", "other"))
    board_many(m, 1)
    assert m.step(ReplicaUp(replace(R0, pool="other")), 1.0) == [Cut("standard0")]
    assert m.step(Failed("standard0", "waiting"), 1.0) == [Hold("standard0", for_s=30.0)]
    assert m.step(Arrived(Call("a", "other", "standard")), 1.0) == [Board("a", "r0", "standard")]
    assert m.step(ReplicaDown("r0"), 2.0) == [Cut("a")]


def test_a_call_that_was_not_sent_has_waited_since_it_arrived() -> None:
    m = machine(replicas=1)
    board_many(m, R0.seats)
    assert arrive(m, "a", "standard") == [Hold("a", for_s=30.0)]
    assert m.step(Finished("standard0", 1, 1), 20.0)[1:] == [Board("a", "r0", "standard")]
    m.step(ReplicaSuspect("r0"), 20.5)
    assert m.step(Failed("a", "unsent"), 20.5) == [Hold("a", for_s=9.5)]


def test_a_full_engine_is_not_the_last_one_while_another_is_open() -> None:
    m = machine(replicas=3)
    arrive(m, "a", "standard")
    m.step(ReplicaSuspect("r0"), 1.0)
    assert m.step(Failed("a", "connect"), 1.0) == [Board("a", "r1", "standard")]
    assert m.step(Failed("a", "full"), 1.0) == [Board("a", "r2", "standard")]
    assert m.step(Failed("a", "full"), 1.0) == [Refuse("a", "engine_full", retry_after_s=1, seat_us=1_000_000)]
