"""How many light seats there should be: forecasts of demand, their errors, and what calls waited."""

from __future__ import annotations

import random
from math import inf, sqrt

from headway.core.machine import Machine
from headway.core.reserve import FIRST_LEAD_S, GAIN, LATE_SHARE, LONGEST_LEAD_S, Reserve
from headway.core.types import Hold, Left, Ticked
from tests.core.test_express import arrive, board_many, fast, loads, machine

WAIT_S = 0.4


def follow(reserve: Reserve, demand: list[int], begin: float = 0.0) -> float:
    """The demand at each half second. Returns the time at the end."""
    for number, present in enumerate(demand):
        reserve.change(present - reserve.present, begin + 0.5 * number)
    return begin + 0.5 * len(demand)


def test_without_demand_nothing_is_kept() -> None:
    reserve = Reserve(WAIT_S)
    assert (reserve.wanted_seats(0.0), reserve.wanted_free(0.0)) == (0, 0)
    end = follow(reserve, [50] * 200 + [0])
    assert reserve.wanted_seats(end) > 0
    assert (reserve.wanted_seats(end + 1.1 * LONGEST_LEAD_S), reserve.wanted_free(end + 1e6)) == (0, 0)


def test_what_is_present_is_always_wanted() -> None:
    reserve = Reserve(WAIT_S)
    reserve.change(7, 0.0)
    assert reserve.wanted_seats(0.0) == 7
    assert Reserve(inf).wanted_seats(0.0) == 0


def test_an_infinite_wait_keeps_no_seat_ready() -> None:
    reserve = Reserve(inf)
    end = follow(reserve, [50] * 200)
    assert (reserve.wanted_seats(end), reserve.wanted_free(end)) == (50, 0)


def test_demand_that_bursts_gets_more_seats_than_steady_demand() -> None:
    chance = random.Random(1)
    steady, bursty = Reserve(WAIT_S), Reserve(WAIT_S)
    end = follow(steady, [100 + round(chance.gauss(0, sqrt(100))) for _ in range(600)])
    follow(bursty, [100 + round(chance.gauss(0, 3 * sqrt(100))) for _ in range(600)])
    assert 110 < steady.wanted_seats(end) < 130 < bursty.wanted_seats(end)


def test_light_seats_are_wanted_before_demand_has_risen() -> None:
    reserve = Reserve(WAIT_S)
    end = follow(reserve, [100] * 100 + [100 + number for number in range(100)])
    in_a_lead = 200 + FIRST_LEAD_S / 0.5
    assert reserve.wanted_seats(end) >= in_a_lead


def test_late_calls_raise_what_was_at_fault_and_others_lower_it() -> None:
    reserve = Reserve(WAIT_S)
    end = follow(reserve, [100] * 100)
    wanted, free = reserve.wanted_seats(end), reserve.wanted_free(end)

    def boarded(waited_s: float, *, after_ride: bool, leads: int) -> None:
        nonlocal end
        for _ in range(leads):
            if after_ride:
                reserve.ridden(end)
            for _ in range(100):
                reserve.waited(waited_s, end)
            end = follow(reserve, [100] * 20, end)

    boarded(2 * WAIT_S, after_ride=False, leads=1)
    assert reserve.wanted_seats(end) > wanted
    assert reserve.wanted_free(end) <= free
    raised = reserve.wanted_seats(end)
    boarded(2 * WAIT_S, after_ride=True, leads=1)
    assert reserve.wanted_free(end) > free
    boarded(0.0, after_ride=False, leads=round(4.0 / (GAIN * LATE_SHARE)))
    assert reserve.wanted_seats(end) < wanted < raised
    assert reserve.wanted_free(end) < free


def test_a_call_that_waited_in_vain_was_late() -> None:
    m = machine(replicas=1, express_wait_s=WAIT_S)
    board_many(m, 10)
    arrive(m, "f", "fast")
    m.step(Ticked(), 2.0)
    assert m.pools["m"].reserve._late == 1


def test_a_long_silence_costs_no_time() -> None:
    reserve = Reserve(WAIT_S)
    reserve.change(3, 0.0)
    assert reserve.wanted_seats(1e9) >= 3  # one step for each half second would never end


# --- replicas that retire --------------------------------------------------------------------------------------------


def with_one_retiring() -> Machine:
    """Six fast streams on two replicas, of which three leave: one replica is enough. The other retires with one."""
    m = machine(replicas=4, share=0.0)
    for number in range(6):
        arrive(m, f"f{number}", "fast")
    board_many(m, 60)
    for number in (0, 1, 3):
        m.step(Left(f"f{number}"), 1.0)
    assert [state.retiring for state in m.pools["m"].doors.replicas.values()] == [True, False, False, False]
    return m


def test_a_retiring_replica_takes_calls_without_a_floor_and_becomes_heavy_after_its_last_express_stream() -> None:
    m = with_one_retiring()
    assert loads(m) == [3, 3, 10, 10]
    assert m.pools["m"].light_replicas == 2
    m.step(Left("f2"), 2.0)
    assert m.pools["m"].light_replicas == 1
    assert loads(m) == [10, 3, 10, 10]


def test_a_retiring_replica_is_the_first_to_take_express_calls_again() -> None:
    m = with_one_retiring()
    rider = next(call for call in m.pools["m"].doors.replicas["r0"].aboard if call.startswith("standard"))
    # There are as many light seats as fast streams, but riders have them.
    assert isinstance(arrive(m, "g0", "fast", 1.0)[0], Hold)
    arrive(m, "g1", "fast", 1.0)  # one more than there are
    assert not any(state.retiring for state in m.pools["m"].doors.replicas.values())
    assert fast("g0", "r0") in m.step(Left(rider), 1.1)
