"""What if: a fleet, its policy, its prices, a workload and what goes wrong, played for some seeds.

Tallies by the tier that was asked for: what callers got of what they asked. Waits and speeds are kept as a sample that
is bounded however long the run, so a day of millions of calls takes no more memory than an hour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headway.core.machine import Machine
from headway.core.price import Price, bill
from headway.core.types import EXPRESS, MIN_TOKENS_FOR_PROMISE, ModelPolicy, Replica, Tier
from headway.sim.loop import Fault, Job, Simulation, Trip

SAMPLE = 20_000


class Sample:
    """So many values of a stream of them, each as likely to be kept as any other."""

    def __init__(self, seed: str) -> None:
        self.values: list[float] = []
        self._seen = 0
        self._chance = random.Random(seed)

    def add(self, value: float) -> None:
        self._seen += 1
        if len(self.values) < SAMPLE:
            self.values.append(value)
        elif (place := int(self._chance.random() * self._seen)) < SAMPLE:
            self.values[place] = value

    def quantile(self, share: float) -> float:
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Tally:
    """What became of the calls that asked for one tier."""

    waits_s: Sample
    first_tokens_s: Sample
    speeds_tps: Sample
    calls: int = 0
    finished: int = 0
    downgraded: int = 0
    refused: int = 0
    cut: int = 0
    promised: int = 0
    kept: int = 0
    tokens: int = 0
    billed: int = 0  # micro-units
    refunded: int = 0

    def add(self, trip: Trip, floor_tps: float, price: Price) -> None:
        job = trip.job
        self.calls += 1
        self.downgraded += trip.tier != job.call.tier
        if trip.how == "refused":
            self.refused += 1
            return
        self.waits_s.add(trip.waited_s)
        if trip.how == "cut":
            self.cut += 1
            return
        self.finished += 1
        self.tokens += job.tokens
        self.first_tokens_s.add(trip.first_at - job.at)
        is_missed = False
        if job.tokens >= MIN_TOKENS_FOR_PROMISE:
            self.speeds_tps.add(trip.speed_tps)
            if trip.tier in EXPRESS:
                self.promised += 1
                is_missed = trip.speed_tps < floor_tps
                self.kept += not is_missed
        due = bill(price, job.call.prompt_tokens, job.tokens, is_missed=is_missed)
        self.billed += due.amount
        self.refunded += due.refund


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet at one time of a run."""

    at_s: float
    aboard: int
    held: int
    light: int  # replicas
    open: int


@dataclass(frozen=True)
class Scenario:
    """One model on one fleet. `jobs` makes the calls of a seed."""

    policy: ModelPolicy
    replicas: list[Replica]
    jobs: Callable[[int], Iterator[Job]]
    seconds: float
    prices: dict[Tier, Price]
    replica_hour: int = 0  # micro-units
    faults: tuple[Fault, ...] = ()
    first_token_s: float = 0.0
    moments: int = 200


@dataclass
class Outcome:
    seed: int
    seconds: float
    tallies: dict[Tier, Tally]
    seat_us: dict[Tier, int] = field(default_factory=dict)  # by the tier served
    reserve_us: int = 0
    moments: list[Moment] = field(default_factory=list)
    cost: int = 0  # of the whole fleet for the time, in micro-units


def play(scenario: Scenario, seed: int) -> Outcome:
    [model] = {replica.model for replica in scenario.replicas}
    machine = Machine({model: scenario.policy})
    simulation = Simulation(machine, scenario.replicas, scenario.first_token_s, scenario.faults)
    tallies = {
        tier: Tally(Sample(f"{seed} {tier} wait"), Sample(f"{seed} {tier} first"), Sample(f"{seed} {tier} speed"))
        for tier in scenario.policy.tiers
    }
    boarding = machine.boarding[model]
    outcome = Outcome(seed, scenario.seconds, tallies)
    every_s = scenario.seconds / scenario.moments
    look_at = every_s
    for trip in simulation.run(scenario.jobs(seed), scenario.seconds):
        floor_tps = scenario.policy.tiers[trip.tier].floor_tps
        tallies[trip.job.call.tier].add(trip, floor_tps, scenario.prices[trip.tier])
        if simulation.now >= look_at:
            aboard = sum(boarding.aboard(replica.name) for replica in scenario.replicas)
            held = boarding.waiting.held
            moment = Moment(simulation.now, aboard, held, boarding.light_replicas, boarding.open_replicas)
            outcome.moments.append(moment)
            look_at = simulation.now + every_s
    outcome.seat_us = dict(boarding.seat_us)
    outcome.reserve_us = boarding.reserve_us
    outcome.cost = round(len(scenario.replicas) * scenario.replica_hour * scenario.seconds / 3600)
    return outcome
