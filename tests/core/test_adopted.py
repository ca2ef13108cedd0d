"""A core that takes over learns from its drivers where their calls are, and from engines what else they run."""

from __future__ import annotations

from headway.core.machine import Machine
from headway.core.types import (
    Action,
    Adopted,
    Board,
    Call,
    Cut,
    Finished,
    Hold,
    Preempt,
    Replica,
    ReplicaKnown,
    ReplicaStrangers,
    ReplicaUp,
    Settled,
    Tier,
)
from tests.core.test_express import CURVE, arrive, board_many, fast, loads, machine


def taken_over(replicas: int = 2) -> Machine:
    """A core that knows its replicas and nothing of what they run."""
    m = machine(replicas=0)
    for number in range(replicas):
        m.step(ReplicaKnown(Replica(f"r{number}", "m", 10, CURVE)), 0.0)
    return m


def adopt(
    to: Machine, name: str, tier: Tier, replica: str | None = None, now: float = 0.0, **more: object
) -> list[Action]:
    return to.step(Adopted(Call(name, "m", tier), replica, **more), now)  # type: ignore[arg-type]


def open_all(m: Machine, now: float) -> list[Action]:
    return [action for number in range(2) for action in m.step(ReplicaUp(Replica(f"r{number}", "m", 10, CURVE)), now)]


def test_streams_that_are_aboard_keep_their_seats_and_their_floors() -> None:
    m = taken_over()
    assert adopt(m, "f0", "fast", "r0") == []
    assert adopt(m, "f1", "fast", "r0") == []
    for number in range(8):
        adopt(m, f"s{number}", "standard", "r1")
    assert open_all(m, 0.1) == []
    assert loads(m) == [2, 8]
    assert arrive(m, "f2", "fast", 0.2) == [fast("f2", "r0")]  # three streams keep the floor here, and no more
    assert arrive(m, "f3", "fast", 0.2) == [Hold("f3", for_s=2.0)]
    m.check(0.2)
    assert m.step(Finished("f0", 1, 1), 1.0)[-1] == fast("f3", "r0")


def test_prompts_that_were_read_for_another_core_take_no_time_again() -> None:
    def slack_s(*, is_delivering: bool) -> float:
        m, replica = machine(replicas=0), Replica("r0", "m", 10, CURVE, prompt_tps=1_000.0)
        m.step(ReplicaKnown(replica), 0.0)
        for name in ("f0", "f1"):
            call = Call(name, "m", "fast", prompt_tokens=500)
            m.step(Adopted(call, "r0", is_delivering=is_delivering), 0.0)
        m.step(ReplicaUp(replica), 0.0)
        state = m.pools["m"].replica_state("r0")
        assert state is not None
        return state.slack_s(0.1)

    assert slack_s(is_delivering=False) < -0.4  # the second prompt delays the first stream
    assert slack_s(is_delivering=True) > 0.0


def test_nothing_is_learnt_from_a_stream_of_which_only_the_end_was_seen() -> None:
    m = taken_over(1)
    adopt(m, "f0", "fast", "r0", is_delivering=True)
    m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 0.0)
    for number in range(2):
        arrive(m, f"s{number}", "fast", 0.0)
    state = m.pools["m"].replica_state("r0")
    assert state is not None
    # It was alone and fast before; the curve is compared with what it got among others.
    m.step(Finished("f0", 1, 1_000, speed_tps=90.0), 10.0)
    assert state.feedback.mean == 1.0


def test_more_than_the_limit_may_be_aboard_and_nobody_joins_them() -> None:
    m = taken_over(1)
    for number in range(5):
        adopt(m, f"f{number}", "fast", "r0")
    m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 0.1)
    m.check(0.1)
    assert arrive(m, "late", "fast", 0.2) == [Hold("late", for_s=2.0)]
    assert m.step(Finished("f0", 1, 1), 0.3)[1:] == []
    assert m.step(Finished("f1", 1, 1), 0.4)[1:] == []
    assert m.step(Finished("f2", 1, 1), 0.5)[1:] == [fast("late", "r0")]


def test_held_calls_wait_for_what_is_left_of_their_time_and_board_when_a_replica_is_up() -> None:
    m = taken_over()
    assert adopt(m, "h", "standard", waited_s=20.0) == [Hold("h", for_s=10.0)]
    assert adopt(m, "late", "standard", waited_s=40.0) == [Hold("late", for_s=0.0)]
    assert open_all(m, 0.1)[:1] == [Board("h", "r0", "standard")]


def test_nobody_boards_before_a_replica_is_up() -> None:
    m = taken_over()
    assert arrive(m, "s", "standard") == [Hold("s", for_s=30.0)]


def test_what_a_driver_confirms_changes_nothing() -> None:
    m = machine()
    arrive(m, "f", "fast")
    board_many(m, 3)
    assert m.step(Adopted(Call("f", "m", "fast"), "r0"), 1.0) == []
    assert loads(m) == [1, 3]
    m.check(1.0)


def test_a_boarding_that_was_lost_on_the_way_is_made_again() -> None:
    m = machine(replicas=1)
    arrive(m, "s", "standard")
    again = m.step(Adopted(Call("s", "m", "standard"), None, waited_s=1.0), 1.0)
    assert again == [Hold("s", for_s=29.0), Board("s", "r0", "standard")]
    assert loads(m) == [1]
    # Its seat-time counts from its first seat.
    assert m.step(Finished("s", 1, 1), 2.0) == [Settled("s", 2_000_000)]


def test_a_call_on_a_replica_that_is_gone_is_cut() -> None:
    m = taken_over()
    assert adopt(m, "s", "standard", "elsewhere") == [Cut("s")]
    assert m.step(Finished("s", 1, 1), 1.0) == [Settled("s", 0)]


def test_a_flex_call_that_is_answering_is_not_preempted() -> None:
    for is_delivering in (False, True):
        m = taken_over(1)
        adopt(m, "x", "flex", "r0", is_delivering=is_delivering)
        for number in range(2):
            adopt(m, f"f{number}", "fast", "r0")
        m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 0.1)
        assert (Preempt("x") in arrive(m, "f", "fast", 0.2)) is not is_delivering


def test_strangers_take_seats_until_the_engine_has_stopped_them() -> None:
    m = taken_over(1)
    m.step(ReplicaStrangers("r0", 3), 0.0)
    assert m.step(ReplicaUp(Replica("r0", "m", 10, CURVE)), 0.1) == []
    assert arrive(m, "f", "fast", 0.2) == [Hold("f", for_s=2.0)]  # it would be the fourth stream
    m.check(0.2)
    assert m.step(ReplicaStrangers("r0", 2), 0.5) == [fast("f", "r0")]
    m.step(ReplicaStrangers("r0", 0), 1.0)
    assert loads(m) == [1]
    m.check(1.0)
    assert m.step(Finished("f", 1, 1), 1.5) == [Settled("f", 1_000_000)]  # they cost nobody


def test_a_call_that_its_relay_downgraded_waits_as_long_as_a_standard_call() -> None:
    m = taken_over()
    assert adopt(m, "f", "fast", waited_s=1.5) == [Hold("f", for_s=0.5)]
    [standard] = m.step(Adopted(Call("s", "m", "standard"), None), 0.0)
    assert isinstance(standard, Hold)
    # Cut off meanwhile, the relay let it wait on as standard.
    assert adopt(m, "f", "standard", now=3.0, waited_s=1.0, reason="no_dispatcher") == [
        Hold("f", for_s=standard.for_s - 1.0)
    ]
    boards = [one for one in open_all(m, 3.0) if isinstance(one, Board) and one.call_id == "f"]
    assert [(one.tier, one.reason) for one in boards] == [("standard", "no_dispatcher")]
