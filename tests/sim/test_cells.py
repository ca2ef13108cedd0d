"""Several cells: nobody's seats are lost, calls find the room that others have. And the rungs of auto calls."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from headway.core.machine import Machine
from headway.core.types import Call, ModelPolicy, Replica, ReplicaUp, Tier, own_pools
from headway.price import Price
from headway.sim.cells import Cells
from headway.sim.dispatched import DispatchedSimulation
from headway.sim.dispatcher import DispatcherTimes
from headway.sim.loop import Fault, Job, SimTrip
from headway.sim.rungs import STUDENT, SimRungs
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, synthesize
from tests.sim.test_loop import CURVE, TIERS, check

PRICE = Price(1_000_000, 2_000_000)
PRICES: dict[Tier, Price] = dict.fromkeys(TIERS, PRICE)


def fleet(count: int, seats: int = 8) -> list[Replica]:
    return [Replica(f"r{n}", "m", seats, CURVE) for n in range(count)]


def trips_of(
    jobs: list[Job], replicas: int, shares: tuple[float, ...], faults: tuple[Fault, ...] = ()
) -> tuple[dict[str, SimTrip], DispatchedSimulation]:
    policies = {"m": ModelPolicy(TIERS)}
    simulation = DispatchedSimulation(policies, fleet(replicas, seats=1), DispatcherTimes(), shares, faults=faults)
    trips = {trip.job.call.id: trip for trip in simulation.run(iter(jobs), 1e6)}
    check(simulation)
    return trips, simulation


def machine_with(seats: int) -> Machine:
    machine = Machine(*own_pools({"m": ModelPolicy(TIERS)}))
    for one in fleet(1, seats) if seats else ():
        machine.step(ReplicaUp(one), 0.0)
    return machine


def test_of_two_the_roomier_and_none_without_room() -> None:
    cells = Cells((1.0, 1.0, 1.0), seed=1)
    assert cells.roomier(0, "m", "standard") is None  # nobody has said anything
    for cell, seats in enumerate((3, 1, 5)):
        cells.tell(cell, machine_with(seats), 0.0)
    chosen = Counter(cells.roomier(0, "m", "standard") for _ in range(100))
    assert set(chosen) == {1, 2}
    assert chosen[2] > 60  # unless both of the two are cell 1
    cells.tell(2, machine_with(0), 0.0)
    cells.tell(1, None, 0.0)
    assert {cells.roomier(0, "m", "standard") for _ in range(100)} == {None}
    assert Cells((1.0,), seed=1).roomier(0, "m", "standard") is None


def test_calls_come_to_cells_by_their_shares() -> None:
    cells = Cells((3.0, 1.0), seed=1)
    assert Counter(cells.home() for _ in range(1_000))[0] == pytest.approx(750, abs=50)


def test_a_call_without_room_at_home_is_handed_to_another_cell() -> None:
    # All calls come to a cell of two seats; the other cell has two as well.
    jobs = [Job(1.0 + n / 10, Call(f"c{n}", "m", "standard"), 101) for n in range(4)]
    trips, simulation = trips_of(jobs, 4, (1.0, 0.0))
    assert simulation.handed_on == 2
    assert {trip.how for trip in trips.values()} == {"finished"}
    waits = sorted(trip.waited_s for trip in trips.values())
    assert max(waits[:2]) < 0.01
    assert 0.02 < waits[2] < waits[3] < 0.04  # the way to the other cell, and a link there and back on each side


def test_a_call_is_handed_on_once_and_then_held() -> None:
    jobs = [Job(1.0 + n / 100, Call(f"c{n}", "m", "standard"), 101) for n in range(6)]
    trips, simulation = trips_of(jobs, 4, (1.0, 0.0))
    # The summary said that there was room for two; four were sent.
    assert simulation.handed_on == 4
    assert {trip.how for trip in trips.values()} == {"finished"}
    assert sum(trip.waited_s > 1.0 for trip in trips.values()) == 2


def test_calls_of_a_cell_whose_replicas_are_dead_are_served_elsewhere() -> None:
    down = (Fault(0.1, "r0", 200.0), Fault(0.1, "r2", 200.0))
    jobs = [Job(1.0 + n, Call(f"c{n}", "m", "standard"), 11) for n in range(100)]
    trips, simulation = trips_of(jobs, 4, (0.5, 0.5), down)
    assert {trip.how for trip in trips.values()} == {"finished"}
    assert simulation.handed_on == pytest.approx(50, abs=15)
    assert max(trip.waited_s for trip in trips.values()) < 0.1


def outcome(cells: int, rungs: SimRungs | None = None, replicas: int = 8) -> Outcome:
    recipe = Recipe(15.0, tiers={"standard": 0.8, "fast": 0.2}, answers=Lengths(60, 1.0, 500))
    jobs = partial(synthesize, recipe)
    shares = (1 / cells,) * cells
    return play(Scenario(ModelPolicy(TIERS), fleet(replicas), jobs, 600.0, PRICES, cells=shares, rungs=rungs), 1)


def test_more_cells_keep_the_same_promises() -> None:
    one, four = outcome(1), outcome(4)
    assert one.calls == pytest.approx(four.calls, rel=0.01)
    assert one.handed_on == 0 < four.handed_on
    for each in (one, four):
        assert each.tallies["fast"].kept == each.tallies["fast"].promised > 500
        assert each.over_limit == 0


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
