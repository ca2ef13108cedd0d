"""Assertions that hold for a pool between two steps. For tests and debugging: they look at every replica and call.

Two invariants are about a change, not about a state, and are tested in tests/core/test_walk.py: no call boards a
replica beyond its limit (a falling limit removes no stream), and no replica becomes light beyond the number that the
standard share allows (that number falls when replicas close).
"""

from __future__ import annotations

from collections.abc import Set

from headway.core.boarding import RETURNED, TRIED_AGAIN
from headway.core.doors import Doors
from headway.core.fairness import HeldCall
from headway.core.fare import FINE
from headway.core.journey import Journey
from headway.core.pool import Pool
from headway.core.replicas import ReplicaState
from headway.core.types import EXPRESS, MAX_MOVES


def check_pool(pool: Pool, now: float) -> None:
    states = pool.doors.replicas.values()
    for state in states:
        _check_replica(state, pool.promised_floors)
        _check_place(state, pool.doors)
    _check_counts(pool.doors)
    leaving = sum(sum(state.leaving.values()) for state in states)
    assert pool.preemption.leaving == leaving, "seats of preempted calls are miscounted"
    with_floor = sum(s.leaving[call_id] for s in states for call_id in s.leaving if s.aboard[call_id].floor_tps)
    assert pool.preemption.leaving_express == with_floor, "seats of preempted calls with a floor are miscounted"
    returned = sum(one.call.choices for calls in pool.waiting.all_returned() for one in calls if not _has_floor(one))
    assert pool.waiting.returned_seats == returned, "seats that returned calls need are miscounted"
    _check_seat_time(pool)
    assert pool.prefixes.parts.keys() == pool.doors.replicas.keys(), "a replica has no part of the prefix index"
    assert all(state.prefixes is pool.prefixes.parts[state.replica.name] for state in states), "another's prefixes"
    pool.prefixes.check()
    for calls in pool.waiting.all_returned():
        _check_held(pool, calls if len(calls) <= RETURNED else [], now)
    for queue in pool.waiting.queues.values():
        queue.check(now)
        is_short = len(queue) <= TRIED_AGAIN  # boarding.py
        _check_held(pool, [held for held in queue if is_short or not held.avoid], now)


def check_calls(pool: Pool, calls: list[Journey]) -> None:
    """Check that each call of the pool is either aboard or held, and that nobody else is."""
    held = [journey.call for journey in calls if journey.replica is None]
    assert all(pool.waiting.is_held(call) for call in held), "a call is neither aboard nor held"
    assert pool.waiting.held == len(held), "a call is held that is aboard or has ended"
    present = sum(journey.call.choices for journey in calls if journey.counted)
    assert pool.express_streams == present, "the reserve miscounts the streams with a floor"
    replica_of = {journey.call.id: journey.replica for journey in calls}
    for name, state in pool.doors.replicas.items():
        for call_id in state.aboard:
            assert replica_of.get(call_id) == name, f"{call_id} has a seat on {name} and is not there"


def _check_replica(state: ReplicaState, promised_floors: Set[float]) -> None:
    """Check that the counts match the streams aboard and that a heavy replica carries no stream with a floor."""
    name = state.replica.name
    by_floor: dict[float, int] = {}
    for stream in state.aboard.values():
        by_floor[stream.floor_tps] = by_floor.get(stream.floor_tps, 0) + stream.call.choices
    streams = sum(by_floor.values()) + state.strangers
    assert state.load == streams, f"{name} carries {streams} streams, not {state.load}"
    kv_taken = sum(stream.kv_tokens for stream in state.aboard.values())
    assert state.kv_taken == kv_taken, f"{name} miscounts the memory that its streams take"
    context = sum(stream.context for stream in state.aboard.values())
    assert state.context == context, f"{name} miscounts the context that its streams read"
    by_floor.pop(0.0, None)
    assert state.express == by_floor, f"{name} carries {by_floor} by floor, not {state.express}"
    assert state.express_seats == sum(by_floor.values()), f"{name} miscounts its streams with a floor"
    assert state.light or not state.express, f"{name} is heavy and carries streams with a floor"
    movable = state.movable | state.movable_express
    for call_id, seats in (*state.flex.items(), *movable.items(), *state.leaving.items()):
        assert seats == state.aboard[call_id].call.choices, f"{name} miscounts the seats of {call_id}"
    removable = state.flex.keys() | movable.keys()
    assert not removable & state.leaving.keys(), f"{name} would preempt a call twice"
    can_move = {
        call_id
        for call_id, stream in state.aboard.items()
        if stream.call.is_continuable and stream.call.moves < MAX_MOVES
    }
    assert movable.keys() <= can_move, f"{name} would move a call that cannot go on elsewhere"
    assert state.leaving_seats == sum(state.leaving.values()), f"{name} miscounts the seats of calls that leave"
    light_seats = max([state.caps[floor_tps] for floor_tps in promised_floors], default=0)
    assert state.light_seats == light_seats, f"{name} has other light seats than its caps allow"
    assert state.time.seats == state.replica.seats, f"{name} shares its time between other seats than it has"


def _check_place(state: ReplicaState, doors: Doors) -> None:
    """Check that the replica is in the right queues, and that a closed one is light only for streams with a floor."""
    name, has_free = state.replica.name, state.load < state.limit
    is_light, is_heavy = state.open and state.light, state.open and not state.light
    assert state.open or not state.light or state.express, f"{name} is closed and light for nobody"
    is_free, could_be_light = is_heavy and has_free, state.light_seats > 0
    assert (state in doors.heavy) == (is_free and could_be_light), f"{name} is wrongly among the heavy replicas"
    is_never_light = is_free and not could_be_light
    assert (state in doors.never_light) == is_never_light, f"{name} is wrongly among those that cannot be light"
    is_full = is_heavy and not has_free and could_be_light
    assert (state in doors.full_heavy) == is_full, f"{name} is wrongly among the full replicas"
    assert (state in doors.heavy_by_free) == is_heavy, f"{name} is wrongly among the heavy replicas by free seats"
    assert state.light or not state.retiring, f"{name} is retiring and not light"
    is_for_express = is_light and not state.retiring
    assert (state in doors.light) == (is_for_express and has_free), f"{name} is wrongly among the light replicas"
    assert (state in doors.retiring) == (is_light and state.retiring), f"{name} is wrongly among the retiring replicas"
    assert (state in doors.idle_light) == (is_light and not state.express), f"{name} is wrongly among the idle ones"
    has_removable = is_for_express and bool(state.flex or (doors.moves_streams and state.movable))
    assert (state in doors.removable) == has_removable, f"{name} is wrongly among those with calls to preempt"
    has_movable = state.draining and bool(state.movable or state.movable_express)
    assert (name in doors.draining_movable) == has_movable, f"{name} is wrongly among those whose streams may leave"
    assert (name in doors.draining) == state.draining, f"{name} is wrongly among the draining ones"


def _check_counts(doors: Doors) -> None:
    states = doors.replicas.values()
    light = [state for state in states if state.light and not state.draining]
    # Of replicas that take no express calls only the seats taken by their express streams count as light seats, or none
    # if those streams should move.
    light_seats = sum(
        state.light_seats
        if not (state.draining or state.retiring)
        else state.express_seats
        if not (state.retiring and doors.moves_streams)
        else 0
        for state in states
        if state.light
    )
    free = {state.replica.name: max(0, state.limit - state.load) for state in states if state.open}
    retiring = sum(free.get(state.replica.name, 0) for state in states if state.retiring)
    ready = sum(free.get(state.replica.name, 0) for state in states if state.light) - retiring
    assert doors.open_replicas == sum(state.open for state in states), "open replicas are miscounted"
    assert doors.light_replicas == len(light), "light replicas are miscounted"
    assert doors.light_seats == light_seats, "light seats are miscounted"
    emptying = sum(
        max(0, state.light_seats - state.express_seats)
        for state in light
        if not state.retiring and state.load > state.light_seats
    )
    assert doors.emptying_seats == emptying, "seats of replicas that empty are miscounted"
    coming = sum(
        max(0, state.limit - state.load + sum(state.leaving.values())) - max(0, state.limit - state.load)
        for state in light
        if state.open and not state.retiring
    )
    assert doors.coming == coming, "light seats of calls that leave are miscounted"
    assert doors.ready == ready, "free light seats are miscounted"
    assert doors.free_retiring == retiring, "free seats of retiring replicas are miscounted"
    assert doors.free_heavy == sum(free.values()) - ready - retiring, "free seats are miscounted"


def _check_seat_time(pool: Pool) -> None:
    """Check that busy time = charged to calls that left + owed by calls aboard + reserve (fare.py)."""
    states = pool.doors.replicas.values()
    aboard = [(state.time, stream) for state in states for stream in state.aboard.values()]
    owed_us = sum(
        (time.taken(express=stream.floor_tps > 0.0) - stream.boarded_taken) * stream.call.choices // FINE
        for time, stream in aboard
    )
    paid_us = sum(sum(by_tier.values()) for by_tier in pool.seat_us.values())
    missing_us = pool.busy_us - pool.reserve_us - paid_us - owed_us
    # The time owed by each call aboard is rounded down, and so are two values of each replica.
    assert abs(missing_us) <= (2 * len(states) + len(aboard) if aboard else 0), f"{missing_us} us are nobody's"
    assert pool.reserve_us >= 0, "the reserve has paid for calls"


def _has_floor(held: HeldCall) -> bool:
    return held.call.tier in EXPRESS


def _check_held(pool: Pool, held: list[HeldCall], now: float) -> None:
    """Check that no call without a floor is held while a heavy replica has seats for it. Light seats are not checked:
    whether a call may take them depends on the time."""
    for one in held:
        if one.call.tier not in EXPRESS and (state := pool.finder.heavy_seat(one.call, one.avoid, now)) is not None:
            raise AssertionError(f"{one.call.id} is held while {state.replica.name} has seats for it")
