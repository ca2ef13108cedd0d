"""Streams are taken off their replica to go on at another one: because it drains, or to make room for fast calls."""

from __future__ import annotations

from headway.core.machine import Machine
from headway.core.types import (
    MAX_MOVES,
    Action,
    Arrived,
    Board,
    Call,
    Failed,
    Finished,
    ModelPolicy,
    Preempt,
    Replica,
    ReplicaDraining,
    ReplicaUp,
    Ticked,
    Tier,
    TierPolicy,
    own_pools,
)
from tests.core.test_express import CURVE, TIERS, fast, loads

MANY_SEATS = 32


def machine(
    replicas: int, seats: int, *, moves_streams: bool = False, share: float = 0.5, kv_tokens: int = 0
) -> Machine:
    tiers = {**TIERS, "standard": TierPolicy(max_held=1_000, max_hold_s=30.0)}
    policy = ModelPolicy(tiers, standard_share=share, margin=0.0, moves_streams=moves_streams)
    made = Machine(*own_pools({"m": policy}))
    for number in range(replicas):
        made.step(ReplicaUp(Replica(f"r{number}", "m", seats, CURVE, kv_tokens=kv_tokens)), 0.0)
    return made


def arrive(m: Machine, name: str, tier: Tier = "standard", now: float = 0.0, **more: object) -> list[Action]:
    more = {"is_continuable": True, **more}
    return m.step(Arrived(Call(name, "m", tier, **more)), now)  # type: ignore[arg-type]


def taken_off(actions: list[Action]) -> list[str]:
    return [action.call_id for action in actions if isinstance(action, Preempt)]


def stop(m: Machine, call_ids: list[str], now: float, tokens: int = 10) -> list[Action]:
    """The engines have stopped these streams."""
    return [action for call_id in call_ids for action in m.step(Failed(call_id, "preempted", tokens), now)]


def boards(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.call_id, action.replica) for action in actions if isinstance(action, Board)]


# --- replicas that drain ---------------------------------------------------------------------------------------------


def test_all_streams_of_a_replica_that_drains_leave_if_others_have_room() -> None:
    m = machine(replicas=1, seats=MANY_SEATS)
    for number in range(MANY_SEATS):
        arrive(m, f"s{number}")
    m.step(ReplicaUp(Replica("r1", "m", MANY_SEATS, CURVE)), 1.0)
    leaving = taken_off(m.step(ReplicaDraining("r0"), 1.0))
    assert len(leaving) == MANY_SEATS
    went_on = boards(stop(m, leaving, 1.1))
    assert went_on == [(call_id, "r1") for call_id in leaving]
    assert loads(m) == [0]  # of the replicas that do not drain, r0 is the first and has none
    m.check(1.1)


def test_no_more_leave_than_there_are_free_seats_and_others_follow_as_seats_free() -> None:
    m = machine(replicas=2, seats=4)
    for number in range(6):
        arrive(m, f"s{number}")
    m.step(Ticked(), 0.5)
    assert sorted(loads(m)) == [3, 3]
    first = taken_off(m.step(ReplicaDraining("r0"), 1.0))
    assert len(first) == 1
    assert taken_off(m.step(Ticked(), 1.05)) == []  # its seat is spoken for
    assert boards(stop(m, first, 1.1)) == [(first[0], "r1")]
    second = taken_off(m.step(Finished("s1", 1, 1), 2.0))
    assert len(second) == 1
    m.check(2.0)


def test_what_cannot_go_on_elsewhere_stays_on_a_replica_that_drains() -> None:
    m = machine(replicas=1, seats=8)
    arrive(m, "stays", is_continuable=False)
    arrive(m, "moved too often", moves=MAX_MOVES)
    arrive(m, "s")
    assert taken_off(m.step(ReplicaDraining("r0"), 1.0)) == []
    assert taken_off(m.step(ReplicaUp(Replica("r2", "m", 8, CURVE)), 2.0)) == ["s"]


def test_fast_streams_leave_for_light_seats() -> None:
    m = machine(replicas=3, seats=8, share=0.3)
    for number in range(3):
        assert boards(arrive(m, f"f{number}", "fast")) == [(f"f{number}", "r0")]
    assert boards(arrive(m, "g", "fast"))[0][1] == "r1"
    leaving = taken_off(m.step(ReplicaDraining("r0"), 1.0))
    assert len(leaving) == 2  # r1 is light, and has two more seats
    assert boards(stop(m, leaving, 1.1)) == [(call_id, "r1") for call_id in leaving]


def test_no_more_leave_than_there_is_memory_for() -> None:
    m = machine(replicas=2, seats=8, kv_tokens=2_000)
    for number in range(8):
        arrive(m, f"s{number}", prompt_tokens=100)  # and answers of 300 tokens, at first
    assert loads(m) == [4, 4]
    m.step(Finished("s1", 100, 300), 1.0)
    m.step(Finished("s3", 100, 300), 1.0)
    assert len(taken_off(m.step(ReplicaDraining("r0"), 1.0))) == 3


# --- room for fast calls ---------------------------------------------------------------------------------------------


def busy(*, moves_streams: bool, continuable: bool = True) -> Machine:
    """Twenty full replicas whose calls end, and come, ten in a second on each."""
    m = machine(replicas=20, seats=10, moves_streams=moves_streams, share=0.1)
    for number in range(400):
        arrive(m, f"s{number}", is_continuable=continuable)
    assert loads(m) == [10] * 20
    for number in range(200):
        m.step(Finished(f"s{number}", 10, 50), 0.005 * number)
    assert loads(m) == [10] * 20
    for number in range(200):
        arrive(m, f"t{number}", now=1.0, is_continuable=continuable)
    return m


def test_streams_make_way_for_a_fast_call_at_once() -> None:
    m = busy(moves_streams=True)
    leaving = taken_off(arrive(m, "f", "fast", now=1.0))
    assert len(leaving) == 8  # two may stay beside it
    actions = stop(m, leaving, 1.1)
    assert fast("f", boards(actions)[0][1]) in actions
    m.check(1.1)
    # Those that were moved come before the calls that were held already.
    ends = [action for number in range(200, 208) for action in m.step(Finished(f"s{number}", 10, 50), 1.2)]
    assert {call_id for call_id, _ in boards(actions + ends)} == {"f", *leaving}


def test_without_that_policy_nobody_is_moved_for_a_fast_call() -> None:
    assert taken_off(arrive(busy(moves_streams=False), "f", "fast", now=1.0)) == []


def test_streams_that_cannot_go_on_are_not_moved() -> None:
    assert taken_off(arrive(busy(moves_streams=True, continuable=False), "f", "fast", now=1.0)) == []


def test_nobody_is_moved_if_the_streams_would_not_find_seats_soon() -> None:
    m = machine(replicas=2, seats=10, moves_streams=True)
    for number in range(20):
        arrive(m, f"s{number}")
    assert taken_off(arrive(m, "f", "fast", now=1.0)) == []


def test_those_with_the_least_to_read_again_are_moved() -> None:
    m = machine(replicas=2, seats=4, moves_streams=True)
    for number in range(4):
        arrive(m, f"s{number}", prompt_tokens=400 - 100 * number)
    assert loads(m) == [2, 2]
    m.step(ReplicaUp(Replica("r2", "m", 8)), 0.0)  # keeps no floor: seats for those that are moved
    arrive(m, "u", "ultrafast", now=1.0)
    leaving = taken_off(arrive(m, "v", "ultrafast", now=1.0))
    assert set(leaving) <= {"s2", "s3"}


def test_a_stream_is_moved_at_most_so_often() -> None:
    m = machine(replicas=1, seats=1, moves_streams=True)
    arrive(m, "s", moves=MAX_MOVES)
    m.step(ReplicaUp(Replica("r1", "m", 8)), 0.0)
    assert taken_off(arrive(m, "f", "fast", now=1.0)) == []
    again = machine(replicas=1, seats=1, moves_streams=True)
    arrive(again, "s", moves=MAX_MOVES - 1)
    again.step(ReplicaUp(Replica("r1", "m", 8)), 0.0)
    assert taken_off(arrive(again, "f", "fast", now=1.0)) == ["s"]


def test_the_reserve_looks_only_as_far_ahead_as_a_move_takes() -> None:
    def lead_s(*, moves_streams: bool) -> float:
        return busy(moves_streams=moves_streams).pools["m"].reserve.lead_s

    assert lead_s(moves_streams=True) < 0.5 * lead_s(moves_streams=False)


def test_nobody_is_moved_while_no_fast_call_is_held() -> None:
    assert taken_off(busy(moves_streams=True).step(Ticked(), 1.2)) == []
