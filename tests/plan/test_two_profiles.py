"""Fleets of two profiles: which are light, and that one replica fewer breaks a promise."""

from __future__ import annotations

from dataclasses import replace

from headway.core.curve import Curve
from headway.plan import fleet
from headway.plan.answers import SRAM, Band
from headway.plan.fleet import Candidate, Demand, FleetPart, Promises, smallest_fleet
from headway.plan.two_profiles import cheapest_fleet, choose_heavy, choose_light
from headway.sim.scenario import play

SMALL = Candidate("small", Curve(a=0.015, c=0.0003, d=0.0), 32, 20_000.0, 1.0, 1, SRAM)  # 65 tok/s alone, 41 among 32
LARGE = Candidate("large", Curve(a=0.005, c=0.0005, d=0.0), 32, 20_000.0, 4.0, 4, SRAM)  # 182 alone, 48 among 32
DEMAND = Demand(8.0, {"standard": 0.8, "fast": 0.2}, {"fast": 80.0}, 500.0, 300.0)


def test_the_profiles_that_cost_least() -> None:
    assert choose_light([SMALL, LARGE], DEMAND) is LARGE
    assert choose_light([SMALL], DEMAND) is None
    assert choose_heavy([SMALL, LARGE]) is SMALL


def test_a_fleet_of_two_costs_less_than_one_of_either() -> None:
    found, of_one = cheapest_fleet(LARGE, SMALL, DEMAND, Promises()), smallest_fleet(LARGE, DEMAND, Promises())
    assert found is not None
    assert of_one is not None
    assert found.cost < of_one.cost
    assert smallest_fleet(SMALL, DEMAND, Promises()) is None
    light, heavy = found.parts
    assert (light.candidate, heavy.candidate) == (LARGE, SMALL)
    assert found.chips == 4 * light.replicas + heavy.replicas == found.price_hour
    assert all(fleet._keeps(outcome, Promises()) for outcome in found.outcomes)
    fewer = [light, FleetPart(SMALL, heavy.replicas - 1)]
    policy = fleet.policy_of(DEMAND)
    played = [
        play(fleet.scenario_of(fewer, DEMAND, policy, dead), seed)
        for seed, dead in zip(fleet.SEEDS, ("0", str(light.replicas)), strict=True)
    ]
    assert not all(fleet._keeps(outcome, Promises()) for outcome in played)


def test_a_slow_chip_needs_more_or_cannot() -> None:
    banded = Band(0.1, 0.2, "a fifth slower")
    found = cheapest_fleet(replace(LARGE, band=banded), replace(SMALL, band=banded), DEMAND, Promises())
    assert found is not None
    assert found.slow_replicas is not None
    assert found.slow_replicas >= found.cell_replicas
    broad = Band(0.1, 0.7, "more than twice as slow")
    found = cheapest_fleet(replace(LARGE, band=broad), replace(SMALL, band=broad), DEMAND, Promises())
    assert found is not None
    assert found.slow_replicas is None
