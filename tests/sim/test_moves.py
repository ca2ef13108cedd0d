"""Streams that go on at another replica, in virtual time: what they lose is worked out by hand."""

from __future__ import annotations

import pytest

from headway.core.types import MAX_MOVES, Call, ModelPolicy, Tier
from headway.price import Price
from headway.sim.dispatched import DispatchedSimulation
from headway.sim.dispatcher import DispatcherFault
from headway.sim.loop import Fault, Job, Simulation
from headway.sim.report import moved
from headway.sim.scenario import Scenario, play
from headway.sim.workload import Lengths, Recipe, continuable, synthesize
from tests.sim.test_dispatched import EXACT, fleet
from tests.sim.test_loop import TIERS, check
from tests.sim.test_loop import play as play_jobs


def job(at: float, name: str, tokens: int, tier: Tier = "standard", prompt: int = 0) -> Job:
    return Job(at, Call(name, "m", tier, prompt_tokens=prompt, is_continuable=True), tokens)


def test_a_stream_outlives_its_replica() -> None:
    trip = play_jobs([job(0.0, "a", 101, prompt=500)], 2, prompt_tps=1_000, faults=(Fault(1.5, "r0", 9.0),))["a"]
    # 51 tokens in the second after its prompt; the other replica reads 551 and gives the 50 that are left.
    assert (trip.how, trip.moves, trip.boarded_at, trip.first_at) == ("finished", 1, 0.0, 0.5)
    assert trip.paused_s == pytest.approx(0.551)
    assert trip.ended_at == pytest.approx(1.5 + 0.551 + 49 * 0.020)


def test_a_stream_waits_for_its_replica_to_come_back_but_not_for_ever() -> None:
    for lasts_s, how in ((3.0, "finished"), (9.0, "cut")):
        trip = play_jobs([job(0.0, "a", 101)], faults=(Fault(1.0, "r0", lasts_s),))["a"]
        assert trip.how == how
    assert trip.ended_at == pytest.approx(6.0, abs=0.2)


def test_a_flex_stream_that_has_begun_makes_way_and_goes_on() -> None:
    trips = play_jobs([job(0.0, "x", 51, "flex"), job(0.1, "f", 11, "fast")], seats=1)
    assert trips["f"].boarded_at == pytest.approx(0.2)  # when the engine has stopped x, which has six tokens
    assert trips["f"].ended_at == pytest.approx(0.4)
    assert trips["x"].paused_s == pytest.approx(0.3)
    assert trips["x"].ended_at == pytest.approx(0.4 + 44 * 0.020)


def test_a_stream_outlives_its_replica_and_its_dispatcher() -> None:
    simulation = DispatchedSimulation(
        {"m": ModelPolicy(TIERS)},
        fleet(2),
        EXACT,
        faults=(Fault(1.5, "r0", 9.0),),
        dispatcher_faults=(DispatcherFault(1.4, 1.0),),
    )
    [trip] = simulation.run(iter([job(0.0, "a", 101)]), 1e6)
    assert (trip.how, trip.moves) == ("finished", 1)
    assert 1.0 < trip.paused_s < 1.5
    check(simulation)


def test_all_calls_end_whatever_dies() -> None:
    recipe = Recipe(15.0, tiers={"standard": 0.7, "fast": 0.2, "flex": 0.1}, answers=Lengths(60, 1.0, 500))
    faults = tuple(Fault(10.0 + 7 * n, f"r{n % 6}", 5.0) for n in range(12))
    policy = ModelPolicy(TIERS, moves_streams=True)
    simulation = Simulation({"m": policy}, fleet(6), faults=faults)
    calls = moves = 0
    for trip in simulation.run(continuable(synthesize(recipe, 1)), 100.0):
        calls += 1
        moves += trip.moves
        assert trip.how != "cut" or trip.has_begun
        assert trip.moves <= MAX_MOVES + 1
        if calls % 10 == 0:
            check(simulation)
    assert calls > 500
    assert moves > 50


def test_a_scenario_tallies_moves_and_the_time_that_they_add() -> None:
    prices: dict[Tier, Price] = dict.fromkeys(TIERS, Price(1, 1))
    jobs = [job(0.0, "a", 101), job(0.0, "b", 101)]
    policy = ModelPolicy(TIERS, standard_share=0.0)
    scenario = Scenario(policy, fleet(2), lambda _seed: iter(jobs), 100.0, prices, faults=(Fault(1.0, "r0", 9.0),))
    outcome = play(scenario, 0)
    assert outcome.tallies["standard"].moved == 1
    shown = {name: f"{one:{form}}" for name, (one, form) in moved([outcome]).items()}
    assert shown["moved"] == "50.00%"
