"""Machine.check finds a state that must not be: each invariant is broken by hand once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.core.machine import Machine
from headway.core.replicas import ReplicaState
from tests.core.test_express import arrive, board_many, machine


def busy() -> Machine:
    """Two light replicas and a full heavy one, with calls held in each tier."""
    m = machine(replicas=3, seats=4, share=0.3)
    for number in range(8):
        arrive(m, f"f{number}", "fast", tenant="ab"[number % 2])
    board_many(m, 12)
    board_many(m, 2, "flex")
    m.check(0.0)
    return m


def state_of(m: Machine, replica: str) -> ReplicaState:
    state = m.pools["m"].replica_state(replica)
    assert state is not None
    return state


def lose_a_stream(m: Machine) -> None:
    state_of(m, "r0").aboard.popitem()


def make_heavy(m: Machine) -> None:
    state_of(m, "r0").light = False


def miscount_ready(m: Machine) -> None:
    m.pools["m"].doors.ready += 1


def leave_the_queue(m: Machine) -> None:
    state = state_of(m, "r2")
    m.pools["m"].doors.heavy_by_free.take(state, state.free)


def lose_seat_time(m: Machine) -> None:
    m.pools["m"].seat_us["m"]["fast"] += 100


def free_a_seat_and_tell_nobody(m: Machine) -> None:
    m.pools["m"].free("standard0", "r2", 0.0)


def end_without_a_word(m: Machine) -> None:
    del m._journeys["standard0"]


def forget_who_is_held(m: Machine) -> None:
    m.pools["m"].waiting.queues["flex"].remove("flex0")


def share_time_between_other_seats(m: Machine) -> None:
    state_of(m, "r1").time.seats = 5


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lose_a_stream, "r0 carries 2 streams, not 3"),
        (make_heavy, "r0 is heavy and carries streams with a floor"),
        (miscount_ready, "free light seats are miscounted"),
        (leave_the_queue, "r2 is wrongly among the heavy replicas by free seats"),
        (lose_seat_time, "us are nobody's"),
        (free_a_seat_and_tell_nobody, "is held while r2 has seats for it"),
        (end_without_a_word, "standard0 has a seat on r2 and is not there"),
        (forget_who_is_held, "a call is neither aboard nor held"),
        (share_time_between_other_seats, "r1 shares its time between other seats than it has"),
    ],
)
def test_check_says_what_is_wrong(breaks: Callable[[Machine], None], words: str) -> None:
    m = busy()
    breaks(m)
    with pytest.raises(AssertionError, match=words):
        m.check(0.0)


def test_check_finds_a_call_that_waits_past_its_deadline() -> None:
    m = busy()
    m.check(2.0)
    with pytest.raises(AssertionError, match="held past their deadline"):
        m.check(2.1)
