"""A stream that has lost its engine goes on at another one, after a pause that is bounded."""

from __future__ import annotations

from headway.core.journey import Journey
from headway.core.machine import Machine
from headway.core.types import (
    MAX_MOVES,
    MAX_PAUSE_S,
    Action,
    Adopted,
    Board,
    Call,
    Cut,
    Delivering,
    Downgrade,
    Failed,
    Finished,
    Hold,
    Preempt,
    Refuse,
    Replica,
    ReplicaDown,
    ReplicaUp,
    Stage,
    Ticked,
    Tier,
)
from tests.core.test_express import CURVE, arrive, board_many, fast, loads, machine


def begin(m: Machine, name: str, tier: Tier = "standard", now: float = 0.0, **more: object) -> Board:
    board = arrive(m, name, tier, now, is_continuable=True, **more)[0]
    assert isinstance(board, Board)
    return board


def fail(m: Machine, name: str, tokens: int, now: float, stage: Stage = "streaming") -> list[Action]:
    return m.step(Failed(name, stage, tokens), now)


def journey(m: Machine, name: str) -> Journey:
    return m._journeys[name]


def test_a_stream_goes_on_at_another_replica() -> None:
    m = machine()
    assert begin(m, "s", prompt_tokens=100) == Board("s", "r0", "standard")
    assert fail(m, "s", 40, 3.0) == [Board("s", "r1", "standard")]
    call = journey(m, "s").call
    assert (call.moves, call.prompt_tokens) == (1, 140)  # the next engine reads what was given with the prompt
    assert fail(m, "s", 70, 4.0)[0] == Hold("s", MAX_PAUSE_S)  # both have failed it
    assert journey(m, "s").call.prompt_tokens == 170
    m.check(4.0)


def test_it_goes_on_where_it_was_once_that_replica_is_up_again() -> None:
    m = machine(replicas=1)
    begin(m, "s")
    assert m.step(ReplicaDown("r0"), 1.0) == [Cut("s")]
    assert fail(m, "s", 5, 1.0) == [Hold("s", MAX_PAUSE_S)]
    assert m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 3.0) == [Board("s", "r0", "standard")]


def test_it_comes_before_all_that_have_not_begun() -> None:
    m = machine(replicas=2, seats=1)
    begin(m, "s")
    arrive(m, "other", "standard")
    arrive(m, "held", "standard")
    assert fail(m, "s", 5, 1.0)[0] == Hold("s", MAX_PAUSE_S)
    assert Board("s", "r1", "standard") in m.step(Finished("other", 1, 1), 2.0)


def test_after_its_pause_a_stream_is_refused() -> None:
    m = machine(replicas=1)
    begin(m, "s")
    fail(m, "s", 5, 1.0)
    m.step(Ticked(), 5.9)
    assert m.step(Ticked(), 6.0) == [Refuse("s", "hold_timeout", 1, seat_us=1_000_000)]
    assert m.calls == 0


def test_a_failure_before_a_new_token_does_not_start_the_pause_again() -> None:
    m = machine(replicas=3)
    begin(m, "s")
    assert fail(m, "s", 5, 1.0) == [Board("s", "r1", "standard")]
    assert fail(m, "s", 5, 4.0, "connect") == [Board("s", "r2", "standard")]
    assert fail(m, "s", 5, 5.0, "full") == [Hold("s", 1.0)]
    assert m.step(Ticked(), 6.0) == [Refuse("s", "hold_timeout", 1, seat_us=5_000_000)]
    again = machine(replicas=2)
    begin(again, "s")
    fail(again, "s", 5, 1.0)
    assert fail(again, "s", 6, 4.0) == [Hold("s", MAX_PAUSE_S)]


def test_more_moves_than_allowed_are_not_tried() -> None:
    m = machine(replicas=5)
    begin(m, "s")
    for number in range(MAX_MOVES):
        assert isinstance(fail(m, "s", 5 + number, 1.0)[0], Board)
    assert fail(m, "s", 9, 1.0) == [Refuse("s", "engine_failed", 1, seat_us=1_000_000)]


def test_after_its_pause_a_fast_stream_takes_any_seat() -> None:
    m = machine(replicas=2)
    begin(m, "f", "fast")
    board_many(m, 10)
    assert fail(m, "f", 5, 1.0) == [Hold("f", MAX_PAUSE_S)]
    m.step(Finished("standard0", 1, 1), 2.0)  # nine are too many for its floor
    assert m.step(Ticked(), 6.0) == [Downgrade("f", "hold_timeout"), Board("f", "r1", "standard", 0.0, "hold_timeout")]
    full = machine(replicas=2)
    begin(full, "f", "fast")
    board_many(full, 10)
    fail(full, "f", 5, 1.0)
    assert full.step(Ticked(), 6.0) == [
        Downgrade("f", "hold_timeout"),
        Refuse("f", "hold_timeout", 1, seat_us=1_000_000),
    ]


def test_a_fast_stream_goes_on_at_a_light_seat() -> None:
    m = machine(replicas=4)
    assert begin(m, "f", "fast").replica == "r0"
    assert fail(m, "f", 5, 1.0) == [fast("f", "r1")]


def test_nothing_is_learnt_from_the_speed_of_a_stream_that_was_moved() -> None:
    def slowness(moves: bool) -> float:
        m = machine(replicas=4)
        begin(m, "f", "fast")
        if moves:
            fail(m, "f", 5, 1.0)
        m.step(Finished("f", 1, 100, speed_tps=10.0), 4.0)
        return max(state.feedback.mean for state in m.pools["m"].doors.replicas.values())

    assert slowness(moves=False) > 1.0
    assert slowness(moves=True) == 1.0


def test_the_pace_counts_all_boardings_against_all_tokens() -> None:
    m = machine()
    begin(m, "s")
    fail(m, "s", 50, 2.0)
    m.step(Finished("s", 10, 100), 4.0)
    assert m.pools["m"].pace.tokens(4.0) == 100
    assert loads(m) == [0, 0]


def test_a_stream_that_can_no_longer_go_on_stays() -> None:
    m = machine()
    begin(m, "s")
    assert m.step(Delivering("s"), 1.0) == []
    assert not journey(m, "s").call.is_continuable


def test_a_flex_stream_that_has_begun_makes_way_until_it_was_moved_too_often() -> None:
    m = machine(replicas=1, seats=1)
    begin(m, "x", "flex")
    for number in range(MAX_MOVES):
        at = 10.0 * number
        assert arrive(m, f"f{number}", "fast", at + 1.0)[-1] == Preempt("x")
        hold, board = fail(m, "x", 10 + number, at + 1.1, "preempted")
        assert hold == Hold("x", MAX_PAUSE_S)
        assert board == fast(f"f{number}", "r0")
        assert Board("x", "r0", "flex") in m.step(Finished(f"f{number}", 1, 1), at + 2.0)
    assert not any(isinstance(action, Preempt) for action in arrive(m, "f", "fast", 50.0))


def test_its_engine_may_die_while_it_is_taken_off() -> None:
    m = machine(replicas=1, seats=1)
    begin(m, "x", "flex")
    arrive(m, "f", "fast", 1.0)
    assert m.step(ReplicaDown("r0"), 1.05) == [Cut("x")]
    fail(m, "x", 10, 1.05)
    assert journey(m, "x").call.moves == 1
    m.check(1.05)


def test_a_core_that_takes_over_goes_on_with_the_pause() -> None:
    m = machine(replicas=0)
    call = Call("s", "m", "standard", is_continuable=True, moves=1)
    assert m.step(Adopted(call, None, 3.0, is_delivering=True), 10.0) == [Hold("s", MAX_PAUSE_S - 3.0)]
    m.step(Ticked(), 11.9)
    assert m.step(Ticked(), 12.0) == [Refuse("s", "no_replica", 1)]
