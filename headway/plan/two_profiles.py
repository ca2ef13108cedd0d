"""Find the cheapest fleet of two profiles: some replicas speculate and are light, the others carry the standard calls.

Calls with a floor board the replicas whose light seats cost least (core/seat_cost.py), so nothing assigns them here.
Knows how to choose the profiles and how many of each; fleet.py plays them. One replica is dead for half of the time: a
light one with one seed, another one with the other.

Invariant: the returned fleet kept its promises with every seed.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from headway.plan.fleet import (
    CELL_REPLICAS,
    SEEDS,
    Candidate,
    Demand,
    Fleet,
    FleetPart,
    Promises,
    fewest,
    policy_of,
    replicas_for,
    scenario_of,
    slowed,
)
from headway.sim.scenario import Scenario

SPARE_LIGHT = (1.0, 1.3, 1.7)  # times the light replicas whose seats would all be taken by calls with a floor


def choose_light(candidates: list[Candidate], demand: Demand) -> Candidate | None:
    """The profile whose light seats cost least to rent. None if none keeps every floor."""
    able = [one for one in candidates if _light_seats(one, demand)]
    return min(able, key=lambda one: _rent(one) / _light_seats(one, demand), default=None)


def choose_heavy(candidates: list[Candidate]) -> Candidate | None:
    """The profile whose standard tokens cost least to rent."""
    return min(candidates, key=lambda one: _rent(one) / (one.seats * one.curve.speed_tps(one.seats)), default=None)


def cheapest_fleet(light: Candidate, heavy: Candidate, demand: Demand, promises: Promises) -> Fleet | None:
    """Return None if no number of these replicas keeps the promises. `light` must be able to keep every floor."""
    standard = replace(demand, calls_per_s=demand.calls_per_s * demand.tiers["standard"])
    cells = max(1, ceil((_light_needed(light, demand) + replicas_for(heavy, standard)) / CELL_REPLICAS))
    part = replace(demand, calls_per_s=demand.calls_per_s / cells)
    found = _cheapest_cell(light, heavy, part, promises)
    if found is None:
        return None
    slow = None
    if light.band.nine_in_ten is not None and _light_seats(slowed(light), demand):
        at_worst = _cheapest_cell(slowed(light), slowed(heavy), part, promises)
        slow = max(found.cell_replicas, at_worst.cell_replicas) if at_worst is not None else None
    return replace(found, cells=cells, slow_replicas=slow)


def _cheapest_cell(light: Candidate, heavy: Candidate, demand: Demand, promises: Promises) -> Fleet | None:
    needed = _light_needed(light, demand)
    found = [
        _with_light(FleetPart(light, number), heavy, demand, promises)
        for number in sorted({ceil(spare * needed) + 1 for spare in SPARE_LIGHT})
    ]
    return min((fleet for fleet in found if fleet is not None), key=lambda one: one.cost, default=None)


def _with_light(light: FleetPart, heavy: Candidate, demand: Demand, promises: Promises) -> Fleet | None:
    """Add as few heavy replicas as are enough."""
    policy = policy_of(demand)

    def scenario(heavy_replicas: int, seed: int) -> Scenario:
        dead = 0 if seed == SEEDS[0] else light.replicas
        return scenario_of([light, FleetPart(heavy, heavy_replicas)], demand, policy, str(dead))

    found = fewest(scenario, 0, promises)
    return None if found is None else Fleet([light, FleetPart(heavy, found[0])], 1, None, found[1])


def _light_seats(candidate: Candidate, demand: Demand) -> int:
    """For the strictest floor."""
    margin = policy_of(demand).margin
    return min(
        (candidate.curve.largest_batch(floor, candidate.seats, margin) for floor in demand.floors.values()), default=0
    )


def _light_needed(light: Candidate, demand: Demand) -> float:
    """The light replicas that would have every light seat taken by a call with a floor all the time."""
    margin, needed = policy_of(demand).margin, 0.0
    for tier, floor_tps in demand.floors.items():
        seats = light.curve.largest_batch(floor_tps, light.seats, margin)
        call_s = demand.answer_tokens * light.curve.seconds_per_token(seats)
        needed += demand.calls_per_s * demand.tiers[tier] * call_s / seats if seats else inf
    return needed


def _rent(candidate: Candidate) -> float:
    return candidate.chips if candidate.price_hour is None else candidate.price_hour
