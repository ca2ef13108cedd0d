"""Several gateways before one fleet: nobody's seats are lost, calls find the room that siblings have."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from headway.core.types import Call, ModelPolicy, Replica, Tier
from headway.price import Price
from headway.sim.cell import Cell
from headway.sim.loop import Fault, GatewayFault, Job, SimTrip, Simulation
from headway.sim.rungs import STUDENT, SimRungs
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.siblings import roomier
from headway.sim.workload import Lengths, Recipe, synthesize
from tests.sim.test_loop import CURVE, TIERS, check

PRICE = Price(1_000_000, 2_000_000)
PRICES: dict[Tier, Price] = dict.fromkeys(TIERS, PRICE)


def fleet(count: int, seats: int = 8) -> list[Replica]:
    return [Replica(f"r{n}", "m", seats, CURVE) for n in range(count)]


def trips_of(cell: Cell, jobs: list[Job], count: int, faults: tuple[Fault | GatewayFault, ...] = ()) -> list[SimTrip]:
    simulation, trips = Simulation(cell, fleet(count, seats=1), faults=faults), []
    for trip in simulation.run(iter(jobs), 1e6):
        trips.append(trip)
        check(simulation)
    return trips


def test_of_two_the_roomier_and_nobody_without_room() -> None:
    rooms: list[dict[Tier, int]] = [{"standard": 1}, {"standard": 5}, {"standard": 0}, {}]
    assert roomier("standard", 0, 1, rooms) == 1
    assert roomier("standard", 2, 0, rooms) == 0
    assert roomier("standard", 2, 3, rooms) is None
    assert roomier("fast", 0, 1, rooms) is None


def test_a_call_without_room_at_home_is_handed_to_a_sibling() -> None:
    # Four calls come to two gateways in turn; each owns two replicas of one seat.
    cell = Cell({"m": ModelPolicy(TIERS)}, gateways=2)
    jobs = [Job(1.0 + n / 100, Call(f"c{n}", "m", "standard"), 101) for n in range(4)]
    assert Counter(trip.gateway for trip in trips_of(cell, jobs, 4)) == {0: 2, 1: 2}
    assert cell.handed_on == 0
    # Two replicas fall out: the calls of their owner go to the sibling, once a summary has told of its room.
    cell = Cell({"m": ModelPolicy(TIERS)}, gateways=2)
    down = (Fault(0.1, "r0", 100.0), Fault(0.1, "r2", 100.0))
    jobs = [Job(1.0 + n, Call(f"c{n}", "m", "standard"), 11) for n in range(100)]
    trips = trips_of(cell, jobs, 4, down)
    assert {trip.how for trip in trips} == {"finished"}
    handed = [trip for trip in trips if trip.how == "finished" and trip.waited_s == 0.0]
    assert cell.handed_on == 50
    assert len(handed) == 100


def test_a_gateway_dies_and_its_replicas_are_taken_over() -> None:
    cell = Cell({"m": ModelPolicy(TIERS)}, gateways=2)
    faults = (GatewayFault(2.0, 0, lasts_s=20.0, lease_s=10.0), Fault(5.0, "r2", 2.0))
    jobs = [Job(1.0 + n, Call(f"c{n}", "m", "standard"), 101) for n in range(40)]
    trips = {trip.job.call.id: trip for trip in trips_of(cell, jobs, 4, faults)}
    assert len(trips) == 40
    cut = [name for name, trip in trips.items() if trip.how == "cut"]
    assert cut == ["c1"]  # the one that was aboard there
    assert all(trip.how == "finished" for name, trip in trips.items() if name not in cut)
    assert cell.machines[1].pools["m"].open_replicas == 4
    assert cell.machines[0].pools["m"].open_replicas == 0
    assert cell.handed_on > 0  # what comes to it after its return finds no room of its own


def outcome(gateways: int, rungs: SimRungs | None = None, replicas: int = 8) -> Outcome:
    recipe = Recipe(15.0, tiers={"standard": 0.8, "fast": 0.2}, answers=Lengths(60, 1.0, 500))
    policy = ModelPolicy(TIERS)
    jobs = partial(synthesize, recipe)
    return play(Scenario(policy, fleet(replicas), jobs, 600.0, PRICES, gateways=gateways, rungs=rungs), 1)


def test_more_gateways_keep_the_same_promises_for_more_reserve() -> None:
    one, four = outcome(1), outcome(4)
    assert one.calls == pytest.approx(four.calls, rel=0.01)
    assert one.handed_on == 0 < four.handed_on
    for each in (one, four):
        assert each.tallies["fast"].kept == each.tallies["fast"].promised > 500


@pytest.mark.parametrize(("escalated", "caught"), [(0.3, 0.9), (0.0, 0.0), (1.0, 1.0)])
def test_rungs(escalated: float, caught: float) -> None:
    students = [Replica(f"s{n}", STUDENT, 16, CURVE.slower(0.2)) for n in range(4)]
    policy = ModelPolicy({"standard": TIERS["standard"]})
    # Without audits there are no doubts: the rates show as they are.
    rungs = SimRungs(
        0.5,
        policy,
        students,
        Price(1, 1),
        escalated,
        caught,
        mistakes=0.2,
        full_mistakes=0.05,
        audit_share=0.0,
    )
    result = outcome(1, rungs, replicas=32)
    auto = result.auto
    assert auto is not None
    assert auto.calls == pytest.approx(0.4 * result.calls, rel=0.1)
    answered = auto.calls - auto.refused
    assert auto.by_student / auto.calls == pytest.approx(1 - escalated, abs=0.03)
    assert auto.mistakes / answered == pytest.approx(0.2 * (1 - caught) + 0.05 * escalated, abs=0.02)
    assert auto.audits == 0
    auto.trust.check()


@pytest.mark.parametrize(("mistakes", "is_closed"), [(0.01, False), (0.2, True)])
def test_core_decides_in_the_simulation_too(mistakes: float, is_closed: bool) -> None:
    """A gate that catches nothing: the student's own rate of mistakes decides whether it stays open."""
    students = [Replica(f"s{n}", STUDENT, 16, CURVE.slower(0.2)) for n in range(4)]
    policy = ModelPolicy({"standard": TIERS["standard"]})
    rungs = SimRungs(0.5, policy, students, Price(1, 1), 0.0, 0.0, mistakes, full_mistakes=0.0, budget=0.05)
    auto = outcome(1, rungs, replicas=32).auto
    assert auto is not None
    assert auto.trust.is_closed == is_closed
    assert auto.audits > 0
    assert auto.mistakes / (auto.calls - auto.refused) < 0.05
    auto.trust.check()


def test_without_idle_seats_for_audits_the_student_is_not_used() -> None:
    """A fleet that cannot serve all calls: audits, which are served last, get no seat."""
    students = [Replica(f"s{n}", STUDENT, 16, CURVE.slower(0.2)) for n in range(4)]
    rungs = SimRungs(0.5, ModelPolicy({"standard": TIERS["standard"]}), students, Price(1, 1), audit_share=1.0)
    auto = outcome(1, rungs).auto
    assert auto is not None
    assert (auto.audits, len(auto.trust.waiting)) == (0, 5)
    assert auto.by_student == 5
