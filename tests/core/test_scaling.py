"""How many replicas a pool should have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.demand import PoolDemand
from headway.core.scaling import COOL_DOWN, RECENT, ScalingPolicy, ScalingRules, needed_replicas

RULES = ScalingRules(min_replicas=1, max_replicas=50, start_s=180.0)
NINE = replace(RULES, utilisation=0.9)
EVERY_S = 5.0  # of these rules
COOL_DOWN_S = COOL_DOWN * RULES.start_s
IDLE = PoolDemand(1, 16.0, 5.0, 20.0, 0.5, 0, 0, 0.0, 0, 0.0, 0)


def needing(replicas: float, running: int) -> PoolDemand:
    return replace(IDLE, standard_load=replicas * RULES.utilisation, replicas=running)


def follow(
    policy: ScalingPolicy, needed: Callable[[float], float], until_s: float, running: int = 10, begin_s: float = 0.0
) -> list[tuple[float, int]]:
    """What is wanted is there at once. Returns each change."""
    changes, now = [], begin_s
    while now < until_s:
        wanted = policy.wanted(needing(needed(now), running), running, now)
        if wanted != running:
            changes.append((now, wanted))
        running = wanted
        now += EVERY_S
    return changes


def test_light_replicas_are_whole_and_the_standard_share_stays_heavy() -> None:
    assert needed_replicas(replace(IDLE, express_seats=6), NINE, 0.0) == 4  # two light ones of four
    assert needed_replicas(replace(IDLE, express_seats=6, standard_load=2.7), NINE, 0.0) == pytest.approx(5.0)
    assert needed_replicas(replace(IDLE, express_seats=3), NINE, 0.0) == 1  # a single replica may be light
    assert needed_replicas(replace(IDLE, express_seats=3, standard_load=0.1), NINE, 0.0) == 2
    assert needed_replicas(replace(IDLE, express_seats=30, light_seats=0.0), NINE, 0.0) == 0.0


def test_calls_that_wait_are_served_within_a_start_and_more_will_come() -> None:
    waiting = replace(IDLE, standard_load=0.9, standard_held=144)
    # 144 calls of 20 s are 180 s of work for a replica with 16 seats.
    assert needed_replicas(waiting, NINE, 0.0) == pytest.approx(2.0)
    assert needed_replicas(waiting, NINE, 0.8) == pytest.approx(3.0)


def test_a_full_fleet_orders_what_the_growing_queue_needs() -> None:
    policy = ScalingPolicy(RULES)
    follow(policy, lambda _: 10.0, 3600.0)
    for step in range(30):  # two more calls each second than ten full replicas serve
        demand = replace(IDLE, standard_load=10.0, replicas=11, standard_held=10 * step)
        wanted = policy.wanted(demand, 11, 3600.0 + step * EVERY_S)
    assert wanted >= 13


def test_flex_counts_only_once_it_is_late() -> None:
    flex = replace(IDLE, flex_load=1.8, standard_load=0.9)
    assert needed_replicas(flex, NINE, 0.0) == pytest.approx(1.0)
    assert needed_replicas(replace(flex, flex_late=144), NINE, 0.0) == pytest.approx(4.0)


def test_a_step_of_demand_is_reached_in_one_order() -> None:
    policy = ScalingPolicy(RULES)
    follow(policy, lambda _: 10.0, 3600.0)
    running = policy.wanted(None, 0, 3600.0)
    (at, wanted), *_ = follow(policy, lambda _: 30.0, 3900.0, running, begin_s=3600.0)
    assert (at, wanted) == (3600.0 + RECENT * RULES.start_s - EVERY_S, 30)


def test_with_a_short_start_fewer_readings_suffice() -> None:
    policy = ScalingPolicy(replace(RULES, start_s=6.0))  # a reading each second, and a third of a start has two
    for at in range(60):
        policy.wanted(replace(IDLE, standard_load=10.0, replicas=12), 12, float(at))
    policy.wanted(replace(IDLE, standard_load=30.0, replicas=12), 12, 60.0)
    assert policy.wanted(replace(IDLE, standard_load=30.0, replicas=12), 12, 61.0) >= 30


def test_a_burst_that_is_soon_over_orders_nothing() -> None:
    policy = ScalingPolicy(RULES)
    follow(policy, lambda _: 10.0, 3600.0)
    running = policy.wanted(None, 0, 3600.0)
    assert follow(policy, lambda at: 20.0 if at < 3620.0 else 10.0, 4500.0, running, begin_s=3600.0) == []


def test_a_rise_is_followed_with_room_to_spare() -> None:
    """Its errors widen what is kept."""
    policy = ScalingPolicy(RULES)
    changes = follow(policy, lambda at: 10.0 + max(0.0, at - 3600.0) / 240.0, 7200.0)
    assert changes[-1][1] >= 25


def test_demand_that_falls_is_followed_a_quarter_at_a_time() -> None:
    policy = ScalingPolicy(RULES)
    changes = follow(policy, lambda at: 40.0 if at < 3600.0 else 10.0, 14_400.0, 40)
    falls = [(at, wanted) for at, wanted in changes if at > 3600.0]
    assert falls[0][0] >= 3600.0 + COOL_DOWN_S
    before = [falls[0][1] + 10, *[wanted for _, wanted in falls]]
    assert all(after >= 0.75 * one - 1 for one, after in pairwise(before[1:]))
    assert 10 <= falls[-1][1] <= 12


def test_nothing_leaves_while_a_replica_is_not_there_yet() -> None:
    policy = ScalingPolicy(RULES)
    for step in range(1000):
        assert policy.wanted(needing(5.0, 9), 10, step * EVERY_S) == 10
    assert policy.wanted(needing(5.0, 10), 10, 5000.0) < 10


def test_a_reading_that_is_missing_changes_nothing() -> None:
    policy = ScalingPolicy(RULES)
    assert policy.wanted(None, 7, 0.0) == 7
    policy.wanted(needing(12.0, 7), 7, 5.0)
    for step in range(2, 1000):
        assert policy.wanted(None, 12, step * EVERY_S) >= 12
    unknown = replace(IDLE, seats=0.0, light_seats=0.0, replicas=0)  # all replicas are gone
    assert policy.wanted(unknown, 12, 6000.0) >= 12


def test_a_replica_that_fails_is_replaced() -> None:
    """It is not counted as running, and what is wanted stays."""
    policy = ScalingPolicy(RULES)
    follow(policy, lambda _: 10.0, 3600.0)
    wanted = policy.wanted(needing(10.0, 10), 10, 3600.0)
    assert policy.wanted(needing(10.0, 8), 8, 3605.0) == wanted


def test_a_costlier_shortage_keeps_more_replicas() -> None:
    def kept(shortage_cost: float) -> int:
        policy = ScalingPolicy(replace(RULES, shortage_cost=shortage_cost))
        follow(policy, lambda at: 20.0 + (3.0 if int(at / 400.0) % 2 else -3.0), 14_400.0, 20)
        return policy.wanted(None, 0, 14_400.0)

    assert kept(0.5) < kept(5.0) < kept(500.0)


LOADS = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=400)
TIMES = st.floats(0.1, 400.0)


@given(LOADS, TIMES, st.integers(0, 60))
def test_never_outside_of_the_bounds(loads: list[float], every_s: float, running: int) -> None:
    policy = ScalingPolicy(RULES)
    for step, load in enumerate(loads):
        running = policy.wanted(needing(load, running), running, step * every_s)
        assert RULES.min_replicas <= running <= RULES.max_replicas


@given(LOADS, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_more_demand_never_wants_fewer_replicas(loads: list[float], load: float, more: float) -> None:
    wanted = []
    for last in (load, load + more):
        policy, running = ScalingPolicy(RULES), 10
        for step, one in enumerate([*loads, last]):
            running = policy.wanted(needing(one, running), running, step * EVERY_S)
        wanted.append(running)
    assert wanted[0] <= wanted[1]


@given(LOADS)
def test_never_in_faster_than_the_cool_down(loads: list[float]) -> None:
    policy, running, fell_at = ScalingPolicy(replace(RULES, start_s=30.0)), 10, 0.0
    for step, load in enumerate(loads):
        now = step * 1.0
        wanted = policy.wanted(needing(load, running), running, now)
        if wanted < min(running, RULES.max_replicas):
            assert now - fell_at >= policy.cool_down_s
            fell_at = now
        running = wanted


@settings(max_examples=30)
@given(st.floats(0.0, 45.0), st.integers(1, 50))
def test_constant_demand_changes_nothing_once_it_is_settled(load: float, running: int) -> None:
    """The spread that is assumed at first goes to 0, so that one replica may still leave later."""
    policy = ScalingPolicy(RULES)
    changes = follow(policy, lambda _: load, 80 * RULES.start_s, running)
    settled = [wanted for at, wanted in changes if at > 30 * RULES.start_s]
    assert len(settled) <= 1
    assert all(wanted < before for (_, before), (_, wanted) in pairwise(changes) if wanted in settled)
    assert load - 0.1 <= policy.wanted(None, 0, 0.0) <= max(RULES.min_replicas, load + 3)
