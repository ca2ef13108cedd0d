"""The simulator: exact where it can be worked out by hand, and the same run for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import inf

import pytest

from headway.core.curve import Curve
from headway.core.types import Call, ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.loop import Fault, Job, SimTrip, Simulation
from headway.sim.noise import Noise
from headway.sim.workload import Lengths, Recipe, synthesize

CURVE = Curve(a=0.010, c=0.010, d=0.0)  # 20 ms a token alone, 10 more for each other stream
TIERS: dict[Tier, TierPolicy] = {
    "fast": TierPolicy(100, 5.0, floor_tps=25.0),
    "standard": TierPolicy(1_000, 60.0),
    "flex": TierPolicy(1_000, 600.0),
}


def job(at: float, name: str, tokens: int, tier: Tier = "standard", prompt: int = 0) -> Job:
    return Job(at, Call(name, "m", tier, prompt_tokens=prompt), tokens)


def play(
    jobs: list[Job], replicas: int = 1, seats: int = 8, prompt_tps: float = 0.0, faults: tuple[Fault, ...] = ()
) -> dict[str, SimTrip]:
    policy = ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)
    fleet = [Replica(f"r{n}", "m", seats, CURVE, prompt_tps) for n in range(replicas)]
    simulation = Simulation({"m": policy}, fleet, faults=faults)
    trips = {}
    for trip in simulation.run(iter(jobs), 1e6):
        trips[trip.job.call.id] = trip
        check(simulation)
    return trips


def check(simulation: Simulation) -> None:
    for machine in simulation.machines:
        machine.check(simulation.now)


def test_one_stream_alone() -> None:
    trip = play([job(1.0, "a", 101)])["a"]
    assert (trip.boarded_at, trip.first_at) == (1.0, 1.0)
    assert trip.ended_at == pytest.approx(1.0 + 100 * 0.020)
    assert trip.speed_tps == pytest.approx(50.0)


def test_context_makes_the_steps_of_all_streams_longer() -> None:
    replica = Replica("r0", "m", 8, Curve(CURVE.a, CURVE.c, CURVE.d, e=1e-6))
    policy = ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)
    simulation = Simulation({"m": policy}, [replica])
    jobs = [job(0.0, "a", 101, prompt=9_950), job(1.5, "b", 21, prompt=9_990)]
    trips = {trip.job.call.id: trip for trip in simulation.run(iter(jobs), 1e6)}
    # Alone a reads 10,000 tokens on average, which takes 10 ms: 50 tokens in 1.5 s. Then both read 20,000 and take 50 ms.
    assert trips["b"].ended_at == pytest.approx(1.5 + 20 * 0.050)
    assert trips["a"].ended_at == pytest.approx(2.5 + 30 * 0.030)


def test_two_streams_share() -> None:
    trips = play([job(0.0, "a", 101), job(1.0, "b", 21)])
    # a is given 50 tokens in its first second, then both 20 in 0.6 s, then a its last 30 in 0.6 s.
    assert trips["b"].ended_at == pytest.approx(1.6)
    assert trips["a"].ended_at == pytest.approx(2.2)


def test_several_choices_are_as_many_streams() -> None:
    both = Job(0.0, Call("both", "m", "standard", choices=2), 101)
    trips = play([both, job(0.0, "a", 51)], seats=3)
    # Three streams get 50 tokens in 2 s, then two get the other 50 in 1.5 s.
    assert trips["a"].ended_at == pytest.approx(2.0)
    assert trips["both"].ended_at == pytest.approx(3.5)
    waits = play([both, job(0.0, "a", 51)], seats=2)["a"]
    assert waits.boarded_at == pytest.approx(3.0)


def test_a_prompt_takes_its_time_from_everyone() -> None:
    trips = play([job(0.0, "a", 101), job(1.0, "b", 21, prompt=500)], prompt_tps=1_000)
    assert trips["b"].first_at == pytest.approx(1.5)
    assert trips["b"].ended_at == pytest.approx(2.1)
    assert trips["a"].ended_at == pytest.approx(2.7)


def test_a_call_without_a_seat_waits() -> None:
    trips = play([job(0.0, "a", 101), job(0.5, "b", 101)], seats=1)
    assert trips["b"].waited_s == pytest.approx(1.5)


def test_a_replica_that_dies_cuts_what_was_begun_and_gives_on_what_was_not() -> None:
    jobs = [job(0.0, "begun", 101), job(0.9, "reading", 11, prompt=500)]
    trips = play(jobs, replicas=1, prompt_tps=1_000, faults=(Fault(1.0, "r0", 2.0),))
    assert (trips["begun"].how, trips["begun"].ended_at) == ("cut", 1.0)
    assert trips["reading"].how == "finished"
    assert trips["reading"].boarded_at == 3.0


def test_a_slow_replica_is_slow_for_its_time() -> None:
    trips = play([job(0.0, "a", 101)], faults=(Fault(1.0, "r0", 1.0, slowness=5.0),))
    assert trips["a"].ended_at == pytest.approx(1.0 + 1.0 + 0.8)  # 50 tokens, 10, 40


def test_flex_makes_way_and_goes_on_later() -> None:
    jobs = [job(0.0, "x", 51, "flex", prompt=3_000), job(0.1, "f", 51, "fast")]
    trips = play(jobs, seats=1, prompt_tps=1_000)
    assert trips["f"].boarded_at == pytest.approx(0.2)  # when the engine has stopped x
    assert trips["x"].how == "finished"
    assert (trips["x"].boarded_at or 0.0) >= (trips["f"].ended_at or 0.0)


def test_a_call_that_comes_back_gets_all_its_tokens() -> None:
    jobs = [job(0.0, "x", 101, "flex", prompt=3_000), job(0.1, "f", 51, "fast")]
    back = play(jobs, seats=1, prompt_tps=1_000)["x"]
    assert (back.ended_at or 0.0) - back.first_at == pytest.approx(100 * 0.020)


def test_no_call_boards_a_replica_while_a_stream_falls_behind_there() -> None:
    faults = (Fault(1.0, "r0", 3.0, slowness=5.0),)
    jobs = [job(0.0, "f", 150, "fast"), job(2.9, "early", 2), job(3.1, "late", 2)]
    trips = play(jobs, faults=faults)
    # It is ahead by 25 tokens when it gets only 10 of 25 tokens per second. From the fourth second on it catches up.
    assert trips["early"].boarded_at == pytest.approx(2.9)
    assert trips["late"].boarded_at == pytest.approx(4.25)


def test_noise_slows_each_replica_in_its_own_way_and_the_same_in_each_run() -> None:
    def ends(seed: int) -> list[float]:
        policy = ModelPolicy(TIERS, standard_share=0.0, express_wait_s=inf)
        fleet = [Replica(f"r{n}", "m", 1, CURVE) for n in range(3)]
        simulation = Simulation({"m": policy}, fleet, noise=Noise([1.0, 3.0, 0.5, 2.0, 1.0], seed))
        jobs = [job(0.0, f"s{n}", 101) for n in range(3)]
        return [trip.ended_at or 0.0 for trip in simulation.run(iter(jobs), 1e6)]

    assert ends(1) == ends(1) != ends(2)
    assert len(set(ends(1))) > 1
    assert 1.5 < min(ends(1)) < max(ends(1)) < 4.5


def test_the_same_seed_gives_the_same_run_to_the_last_digit() -> None:
    recipe = Recipe(20.0, tiers={"standard": 0.8, "fast": 0.2}, answers=Lengths(60, 1.0, 500))

    def once(seed: int) -> list[tuple[object, ...]]:
        policy = ModelPolicy(TIERS)
        fleet = [Replica(f"r{n}", "m", 8, CURVE, 10_000) for n in range(6)]
        faults = (Fault(30.0, "r1", 20.0), Fault(50.0, "r2", 20.0, slowness=2.0))
        simulation = Simulation({"m": policy}, fleet, faults=faults)
        ended: list[tuple[object, ...]] = []
        for number, trip in enumerate(simulation.run(synthesize(recipe, seed), 200.0)):
            ended.append((trip.job.call.id, trip.tier, trip.how, trip.first_at, trip.ended_at))
            if number % 20 == 0:
                check(simulation)
        return ended

    first = once(1)
    assert len(first) > 1_000
    assert first == once(1)
    assert first != once(2)


def until(jobs: Iterator[Job], seconds: float) -> list[Job]:
    return list(takewhile(lambda one: one.at < seconds, jobs))


def test_a_recipe_gives_what_it_says() -> None:
    recipe = Recipe(1.5, clients=50, hours=(0.5,) * 12 + (1.5,) * 12, tiers={"standard": 0.9, "fast": 0.1})
    jobs = until(synthesize(recipe, 3), 86_400.0)
    assert len(jobs) == pytest.approx(1.5 * 86_400, rel=0.15)
    assert [one.at for one in jobs] == sorted(one.at for one in jobs)
    morning = sum(one.at < 43_200 for one in jobs)
    assert morning / len(jobs) == pytest.approx(0.25, abs=0.05)
    assert sum(one.call.tier == "fast" for one in jobs) / len(jobs) == pytest.approx(0.1, abs=0.005)
    answers = sorted(one.tokens for one in jobs)
    assert answers[len(answers) // 2] == pytest.approx(49, abs=2)
    by_client: dict[str, int] = {}
    for one in jobs:
        by_client[one.call.tenant] = by_client.get(one.call.tenant, 0) + 1
    top_ten = sum(sorted(by_client.values())[-10:]) / len(jobs)
    assert 0.55 < top_ten < 0.9
