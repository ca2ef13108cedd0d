"""A fleet whose replicas have one of two curves, beside fleets of one: the same floors, and more for standard calls."""

from __future__ import annotations

from heapq import merge

from headway.core.types import ModelPolicy, Replica
from headway.sim.loop import Simulation
from runs.express.demand import Demand, fast_jobs, standard_jobs
from runs.express.rule import FAST, FLOOR_TPS, SEATS, STANDARD
from tests.core.test_seat_cost import DRAFTER, PLAIN

REPLICAS, WITH_DRAFTER = 30, 18
SECONDS, WARM_UP_S = 90.0, 30.0


def simulate(drafters: int) -> tuple[float, float]:
    """Returns standard tokens per second and the share of floors that were kept."""
    replicas = [Replica(f"r{one}", "m", SEATS, DRAFTER if one < drafters else PLAIN) for one in range(REPLICAS)]
    simulation = Simulation({"m": ModelPolicy({"fast": FAST, "standard": STANDARD}, standard_share=0.1)}, replicas)
    jobs = merge(fast_jobs(Demand(1.0, 1.0), 7, "m", "fast"), standard_jobs(7, "m"), key=lambda job: job.at)
    tokens = served = kept = 0
    for trip in simulation.run(jobs, SECONDS):
        if trip.job.call.tier == "fast":
            served += 1
            kept += trip.speed_tps >= FLOOR_TPS
        elif simulation.now >= WARM_UP_S and not trip.refused:
            tokens += trip.job.tokens
    return tokens / (SECONDS - WARM_UP_S), kept / served


def test_fast_calls_board_where_their_seats_cost_least() -> None:
    mixed, plain, drafter = simulate(WITH_DRAFTER), simulate(0), simulate(REPLICAS)
    assert mixed[1] >= 0.99
    assert mixed[0] > 1.1 * max(plain[0], drafter[0])
