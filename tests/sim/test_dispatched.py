"""Relays, a link and a dispatcher: what each of them takes, and what its death does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import takewhile

import pytest

from headway.core.types import Call, ModelPolicy, Replica, Tier
from headway.price import Price
from headway.sim.dispatched import DispatchedSimulation
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes
from headway.sim.loop import Fault, Job, SimTrip
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, synthesize
from tests.sim.test_loop import CURVE, TIERS, check

PRICES: dict[Tier, Price] = dict.fromkeys(TIERS, Price(1, 1))
EXACT = DispatcherTimes(delay_s=0.01, spread_s=0.0, call_s=0.002, adopted_s=0.001, retry_s=0.0, probe_s=0.1)
RECIPE = Recipe(15.0, tiers={"standard": 0.7, "fast": 0.2, "flex": 0.1}, answers=Lengths(60, 1.0, 500))


def fleet(count: int, seats: int = 8) -> list[Replica]:
    return [Replica(f"r{n}", "m", seats, CURVE) for n in range(count)]


def trips_of(
    jobs: list[Job],
    times: DispatcherTimes = EXACT,
    deaths: tuple[DispatcherFault, ...] = (),
    faults: tuple[Fault, ...] = (),
    replicas: int = 1,
    seats: int = 1,
) -> tuple[dict[str, SimTrip], DispatchedSimulation]:
    simulation = DispatchedSimulation(
        {"m": ModelPolicy(TIERS)}, fleet(replicas, seats), times, faults=faults, dispatcher_faults=deaths
    )
    trips = {trip.job.call.id: trip for trip in simulation.run(iter(jobs), 1e6)}
    assert simulation.over_limit == 0
    check(simulation)
    return trips, simulation


def job(at: float, name: str, tokens: int = 101, tier: Tier = "standard", *, falls_back: bool = False) -> Job:
    return Job(at, Call(name, "m", tier, falls_back=falls_back), tokens)


def test_an_event_and_its_action_take_the_link_and_the_core() -> None:
    trips, _ = trips_of([job(1.0, "a"), job(1.5, "b")])
    a, b = trips["a"], trips["b"]
    assert a.waited_s == pytest.approx(0.01 + 0.001 + 0.01)
    assert a.ended_at == pytest.approx(1.021 + 100 * 0.020)
    assert b.boarded_at == pytest.approx(3.021 + 0.021)  # its seat is free when core has heard of it


def test_events_wait_for_one_core() -> None:
    trips, _ = trips_of([job(1.0, f"c{n}") for n in range(8)], seats=8)
    waits = sorted(trip.waited_s for trip in trips.values())
    assert waits == pytest.approx([0.02 + 0.001 * n for n in range(1, 9)])


def test_the_times_measured() -> None:
    jobs = [job(1.0 + n, f"c{n}", 11) for n in range(4_000)]
    for there_and_back_s in (0.41e-3, 5e-3):
        trips, _ = trips_of(jobs, DispatcherTimes.there_and_back(there_and_back_s))
        waits = sorted(trip.waited_s for trip in trips.values())
        assert waits[2_000] == pytest.approx(there_and_back_s, abs=0.05e-3)
        assert waits[3_960] - waits[2_000] == pytest.approx(1.0e-3, abs=0.2e-3)


def test_a_death_cuts_no_stream_and_held_calls_board_after_it() -> None:
    jobs = [job(1.0, "runs", 301), job(2.5, "ended meanwhile", 11), job(3.2, "comes", 11)]
    trips, simulation = trips_of(jobs, deaths=(DispatcherFault(2.6, 1.5),), seats=2)
    assert {trip.how for trip in trips.values()} == {"finished"}
    # A step takes 20 ms with one stream aboard and 30 with both.
    assert trips["runs"].ended_at == pytest.approx(7.021 + 20 * 0.010)
    [takeover] = simulation.takeovers
    assert takeover.adopted == 2  # one is aboard, one is held
    assert takeover.settled_at is not None
    assert takeover.opened_at is not None
    # The relays connect and report (three times the link), are asked to probe, and say what runs.
    assert takeover.settled_at == pytest.approx(4.1 + 0.03 + 0.002, abs=0.002)
    assert takeover.opened_at == pytest.approx(takeover.settled_at + 0.1 + 4 * 0.01, abs=0.003)
    assert takeover.boarded_at == trips["comes"].boarded_at == pytest.approx(takeover.opened_at + 0.01, abs=0.002)


def test_without_a_dispatcher_a_call_waits_until_its_own_deadline() -> None:
    jobs = [
        job(2.5, "fast", tier="fast"),
        job(2.6, "standard"),
        job(1.9999, "unanswered", tier="fast"),
    ]
    trips, simulation = trips_of(sorted(jobs, key=lambda one: one.at), deaths=(DispatcherFault(2.0, 20.0),))
    assert trips["fast"].how == trips["unanswered"].how == "refused"
    assert trips["fast"].ended_at == pytest.approx(7.5)
    assert trips["unanswered"].ended_at == pytest.approx(7.0)
    assert trips["standard"].how == "finished"
    assert simulation.unled == 2


def test_a_call_that_may_fall_back_waits_on_as_standard_without_a_dispatcher() -> None:
    jobs = [job(2.5, "served", tier="fast", falls_back=True)]
    trips, simulation = trips_of(jobs, deaths=(DispatcherFault(2.0, 20.0),))
    assert (trips["served"].how, trips["served"].tier, simulation.unled) == ("finished", "standard", 0)
    trips, simulation = trips_of(jobs, deaths=(DispatcherFault(2.0, 100.0),))
    assert (trips["served"].how, simulation.unled) == ("refused", 1)
    assert trips["served"].ended_at == pytest.approx(2.5 + sum(TIERS[one].max_hold_s for one in ("fast", "standard")))


def test_a_deadline_goes_on_over_a_change_of_dispatcher() -> None:
    jobs = [job(1.0, "long", 10_001), job(1.5, "held", tier="fast")]
    trips, _ = trips_of(jobs, deaths=(DispatcherFault(2.0, 1.5),))
    assert trips["held"].how == "refused"
    assert trips["held"].ended_at == pytest.approx(1.5 + TIERS["fast"].max_hold_s, abs=0.2)


def test_a_dispatcher_that_dies_before_it_has_settled() -> None:
    deaths = (DispatcherFault(2.0, 1.0), DispatcherFault(3.01, 1.0))
    trips, simulation = trips_of([job(1.0, "a"), job(2.2, "b")], deaths=deaths)
    assert {trip.how for trip in trips.values()} == {"finished"}
    assert [one.settled_at is None for one in simulation.takeovers] == [True, False]
    assert trips["b"].boarded_at == simulation.takeovers[1].boarded_at


def test_replicas_die_and_come_back_around_a_takeover() -> None:
    faults = (Fault(1.9, "r0", 0.5), Fault(2.2, "r1", 2.5), Fault(3.55, "r2", 0.5), Fault(1.0, "r3", 200.0))
    jobs = [*[job(0.5 + n / 10, f"c{n}", 51) for n in range(100)], job(100.0, "last")]
    trips, simulation = trips_of(jobs, DispatcherTimes(), (DispatcherFault(2.0, 1.5),), faults, replicas=6, seats=4)
    assert len(trips) == 101
    assert {trip.how for trip in trips.values()} == {"finished", "cut"}
    assert simulation.machines[0].pools["m"].open_replicas == 5
    assert simulation.machines[0].calls == 1  # that "last" has ended is still on its way


def outcome(times: DispatcherTimes | None, deaths: tuple[DispatcherFault, ...] = ()) -> Outcome:
    jobs = partial(synthesize, RECIPE)
    return play(
        Scenario(
            ModelPolicy(TIERS), fleet(16), jobs, 300.0, PRICES, dispatcher=times, dispatcher_faults=deaths,
            tallied_from_s=10.0,
        ),
        1,
    )  # fmt: skip


@pytest.mark.parametrize("takeover_s", [0.5, 3.0])
def test_no_floor_breaks_by_a_death(takeover_s: float) -> None:
    deaths = tuple(DispatcherFault(60.0 + 50 * n, takeover_s) for n in range(4))
    quiet, died = outcome(DispatcherTimes()), outcome(DispatcherTimes(), deaths)
    for one in (quiet, died):
        fast = one.tallies["fast"]
        assert one.over_limit == 0
        assert fast.kept == fast.promised > 300
        assert sum(tally.cut for tally in one.tallies.values()) == 0
    assert len(died.takeovers) == 4
    assert all(one.opened_at is not None for one in died.takeovers)
    assert died.tallies["fast"].longest_wait_s > takeover_s


def test_no_call_is_lost_or_ends_twice() -> None:
    jobs = [*takewhile(lambda one: one.at < 120.0, synthesize(RECIPE, 3)), job(500.0, "last")]
    deaths = tuple(DispatcherFault(7.0 + 11 * n, 0.1 + 0.3 * n, n % 2) for n in range(10))
    slow = replace(DispatcherTimes(), delay_s=0.02, spread_s=0.01)
    simulation = DispatchedSimulation(
        {"m": ModelPolicy(TIERS)},
        fleet(10),
        slow,
        (0.7, 0.3),
        faults=(Fault(33.0, "r1", 20.0),),
        dispatcher_faults=deaths,
    )
    ended = [trip.job.call.id for trip in simulation.run(iter(jobs), 1e6)]
    assert sorted(ended) == sorted(one.call.id for one in jobs)
    assert simulation.over_limit == 0
    assert simulation.handed_on > 0
    assert sum(machine.calls for machine in simulation.machines) == 1  # that "last" has ended is still on its way
