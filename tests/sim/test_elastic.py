"""A fleet that scales, in virtual time: replicas come a start after their order and go when they are empty."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from headway.core.curve import Curve
from headway.core.scaling import ScalingPolicy, ScalingRules
from headway.core.types import Call, ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.elastic import ElasticSimulation
from headway.sim.loop import Job, SimTrip

KIND = Replica("", "m", 8, Curve(a=0.010, c=0.002, d=0.0))  # 308 tok/s with all seats taken
TIERS: dict[Tier, TierPolicy] = {"standard": TierPolicy(1_000, 300.0)}
START_S = 20.0


def jobs(rates: list[tuple[float, float]]) -> Iterator[Job]:
    """Calls of 308 tokens at even distances; each rate until a time."""
    at, number = 0.0, 0
    for until, per_s in rates:
        while at < until:
            yield Job(at, Call(f"c{number}", "m", "standard"), 308)
            number += 1
            at += 1 / per_s


def play(
    rates: list[tuple[float, float]], replicas: int, max_replicas: int = 20
) -> tuple[ElasticSimulation, list[SimTrip]]:
    policy = ScalingPolicy(ScalingRules(1, max_replicas, START_S))
    simulation = ElasticSimulation(ModelPolicy(TIERS), KIND, replicas, policy)
    trips = []
    for trip in simulation.run(jobs(rates), rates[-1][0]):
        trips.append(trip)
        simulation.machines[0].check(simulation.now)
    return simulation, trips


def test_replicas_come_a_start_after_their_order() -> None:
    simulation, trips = play([(100.0, 1.0), (300.0, 6.0)], 2)
    ordered = next(one.at_s for one in simulation.moments if one.wanted > 2)
    came = next(one.at_s for one in simulation.moments if one.open > 2)
    assert 100.0 < ordered < 120.0
    assert START_S <= came - ordered <= START_S + 2.0
    assert max(one.open for one in simulation.moments) >= 6
    assert all(trip.how == "finished" for trip in trips)


def test_replicas_that_are_not_needed_drain_and_no_stream_is_cut() -> None:
    simulation, trips = play([(600.0, 6.0), (1500.0, 1.0)], 8)
    assert simulation.moments[-1].open <= 3
    assert {trip.how for trip in trips} == {"finished"}
    falls = [after.at_s for before, after in pairwise(simulation.moments) if after.wanted < before.wanted]
    assert all(later - earlier >= START_S for earlier, later in pairwise(falls))


def test_a_fleet_that_does_not_change_is_paid_for_the_whole_time() -> None:
    simulation, _ = play([(200.0, 2.0)], 3, max_replicas=3)
    assert simulation.replica_s == pytest.approx(3 * simulation.now, rel=0.01)


def test_a_replica_is_paid_from_its_order_until_it_is_gone() -> None:
    simulation, _ = play([(100.0, 1.0), (600.0, 6.0), (1500.0, 1.0)], 2)
    paid = sum(
        (one.open + one.starting + one.draining) * (after.at_s - one.at_s)
        for one, after in pairwise(simulation.moments)
    )
    assert simulation.replica_s == pytest.approx(paid, rel=0.02)


def test_the_same_calls_give_the_same_run() -> None:
    one, other = (play([(100.0, 1.0), (300.0, 6.0), (600.0, 2.0)], 2)[0] for _ in range(2))
    assert one.moments == other.moments
