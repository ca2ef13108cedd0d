"""What the calls of a pool need of replicas, by examples."""

from __future__ import annotations

from math import inf

import pytest

from headway.core.demand import TierSeats, first_to_drain, pool_demand, scaled_pools, tier_seats
from headway.core.machine import Machine
from headway.core.types import (
    Finished,
    Offer,
    PoolPolicy,
    Replica,
    ReplicaDraining,
    ReplicaUp,
    Ticked,
    Tier,
    TierPolicy,
)
from tests.core.test_express import CURVE, TIERS, arrive, board_many, machine


def seats(of: Machine, tier: Tier) -> tuple[int, int]:
    """Wanted and ready."""
    [one] = [one for one in tier_seats(of.pools, "m") if one.tier == tier]
    return one.wanted, one.ready


def test_an_idle_pool_wants_nothing_and_has_seats_for_every_tier() -> None:
    m = machine(replicas=4)
    # Of four replicas two may be light, each with three seats at the loosest floor.
    assert seats(m, "fast") == seats(m, "ultrafast") == (0, 6)
    assert seats(m, "standard") == seats(m, "flex") == (0, 40)


def test_calls_that_wait_are_wanted_and_have_no_seat() -> None:
    m = machine()
    board_many(m, 23)
    assert seats(m, "standard") == (23, 20)
    arrive(m, "f", "fast")
    wanted, ready = seats(m, "fast")
    assert wanted > ready == 0


def test_express_calls_want_what_the_reserve_keeps_ready() -> None:
    m = machine(replicas=6, express_wait_s=0.4)
    board_many(m, 4, "fast")
    for tick in range(1, 600):
        m.step(Ticked(), tick / 10)
    wanted, ready = seats(m, "fast")
    reserve = m.pools["m"].reserve
    assert wanted == reserve.last_wanted_seats > 4
    assert ready >= wanted
    assert pool_demand(m.pools, "m", 60.0).express_seats == wanted


def test_choices_count_as_seats_and_ended_calls_as_none() -> None:
    m = machine()
    arrive(m, "a", "standard", choices=4)
    assert seats(m, "standard") == (4, 20)
    m.step(Finished("a", 10, 100), 1.0)
    assert seats(m, "standard") == (0, 20)


def test_the_load_is_work_and_not_streams() -> None:
    m = machine(replicas=1)
    board_many(m, 10)
    assert pool_demand(m.pools, "m", 0.0).standard_load == pytest.approx(1.0)
    half = machine(replicas=1)
    board_many(half, 5)
    # Five streams take 30 ms for a token and ten take 55.
    assert pool_demand(half.pools, "m", 0.0).standard_load == pytest.approx(0.5 * 55 / 30)


def test_without_a_curve_the_load_is_the_share_of_the_seats() -> None:
    m = machine(replicas=0)
    m.step(ReplicaUp(Replica("r0", "m", 10)), 0.0)
    board_many(m, 5)
    demand = pool_demand(m.pools, "m", 0.0)
    assert (demand.standard_load, demand.light_seats) == (0.5, 0.0)


def test_a_draining_replica_has_no_seats_and_keeps_its_load() -> None:
    m = machine()
    board_many(m, 20)
    m.step(ReplicaDraining("r0"), 1.0)
    demand = pool_demand(m.pools, "m", 1.0)
    assert demand.replicas == 1
    assert demand.standard_load == pytest.approx(2.0)
    assert seats(m, "standard") == (20, 20)


def test_flex_calls_are_late_after_half_of_their_time() -> None:
    m = machine(replicas=1)
    board_many(m, 6)
    board_many(m, 8, "flex")  # four of them wait
    now = pool_demand(m.pools, "m", 0.0)
    assert now.flex_late == 0
    assert [now.standard_load, now.flex_load] == pytest.approx([0.6, 0.4])
    assert pool_demand(m.pools, "m", 151.0).flex_late == 4


def test_calls_in_an_overflow_pool_are_wanted_at_home() -> None:
    tiers: dict[Tier, TierPolicy] = {"standard": TierPolicy(100, 30.0, overflow_after_s=0.0)}
    m = Machine({"m": PoolPolicy(express_wait_s=inf), "hosted": PoolPolicy()}, {"m": Offer("m", tiers, "hosted")})
    m.step(ReplicaUp(Replica("r0", "m", 2, CURVE)), 0.0)
    m.step(ReplicaUp(Replica("h0", "hosted", 100)), 0.0)
    for number in range(5):
        arrive(m, f"s{number}", "standard", may_overflow=True)
    assert list(tier_seats(m.pools, "m")) == [TierSeats("m", "standard", 5, 2)]
    assert pool_demand(m.pools, "m", 0.0).standard_held == 3
    assert scaled_pools(m.pools) == ["m"]
    assert list(tier_seats(m.pools, "hosted")) == []


def test_reading_changes_nothing() -> None:
    one, other = machine(express_wait_s=0.4), machine(express_wait_s=0.4)
    for step in range(400):
        now = step / 7
        actions = []
        for m in (one, other):
            if step % 5 == 0:
                actions.append(arrive(m, f"c{step}", list(TIERS)[step % 4], now))
            elif step % 5 == 3:
                actions.append(m.step(Finished(f"c{step - 8}", 10, 50), now))
            else:
                actions.append(m.step(Ticked(), now))
        assert actions[0] == actions[1]
        pool_demand(one.pools, "m", now + 0.1)
        list(tier_seats(one.pools, "m"))
    assert one.learnt(60.0) == other.learnt(60.0)


def test_the_emptiest_heavy_replica_is_drained_first() -> None:
    m = machine(replicas=3)
    assert first_to_drain(machine(replicas=0).pools["m"]) is None
    arrive(m, "f", "fast")
    board_many(m, 5)
    light = m.replica_of("f")
    loads = {name: m.pools["m"].aboard(name) for name in ("r0", "r1", "r2") if name != light}
    assert first_to_drain(m.pools["m"]) == min(loads, key=lambda name: loads[name])
