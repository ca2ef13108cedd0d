"""A scenario: a fleet with its policy, prices and cells, a workload and faults. It is simulated for several seeds.

Results are tallied by the requested tier. Waits and speeds are kept as a bounded sample, so a day with millions of
calls takes no more memory than an hour.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headway.core.types import EXPRESS, MIN_TOKENS_FOR_PROMISE, ModelPolicy, Replica, Tier
from headway.price import Price, bill
from headway.sim.dispatched import DispatchedSimulation
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes, Takeover
from headway.sim.loop import Fault, Job, SimTrip, Simulation
from headway.sim.noise import Noise
from headway.sim.rungs import STUDENT, AutoTally, SimRungs
from headway.sim.sample import Sample


@dataclass
class Tally:
    """The results of the calls that requested one tier."""

    waits_s: Sample
    first_tokens_s: Sample
    speeds_tps: Sample
    added_s: Sample  # by the pauses of each stream that was moved
    calls: int = 0
    finished: int = 0
    downgraded: int = 0
    refused: int = 0
    cut: int = 0
    moved: int = 0  # calls that went on at another replica after they had begun
    promised: int = 0
    kept: int = 0
    longest_wait_s: float = 0.0  # of the calls that boarded
    tokens: int = 0
    billed: int = 0  # micro-units
    refunded: int = 0

    @classmethod
    def empty(cls, seed: str) -> Tally:
        return cls(Sample(f"{seed} wait"), Sample(f"{seed} first"), Sample(f"{seed} speed"), Sample(f"{seed} added"))

    def add(self, trip: SimTrip, floor_tps: float, price: Price) -> None:
        job = trip.job
        self.calls += 1
        self.downgraded += trip.tier != job.call.tier
        if trip.how == "refused":
            self.refused += 1
            return
        if trip.has_begun:
            self.moved += 1
            self.added_s.add(trip.paused_s)
        self.waits_s.add(trip.waited_s)
        self.longest_wait_s = max(self.longest_wait_s, trip.waited_s)
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
    aboard: int  # calls
    held: int  # calls
    light: int  # replicas
    open: int


@dataclass(frozen=True)
class Scenario:
    """One model on one fleet. `jobs` generates the calls of a seed."""

    policy: ModelPolicy
    replicas: list[Replica]
    jobs: Callable[[int], Iterator[Job]]
    seconds: float
    prices: dict[Tier, Price]
    replica_hour: int = 0  # micro-units
    faults: tuple[Fault, ...] = ()
    first_token_s: float = 0.0
    dispatcher: DispatcherTimes | None = None  # None: core is called directly, in one process
    dispatcher_faults: tuple[DispatcherFault, ...] = ()
    cells: tuple[float, ...] = (1.0,)  # the share of the demand that comes to each; several have dispatchers
    summary_s: float = 0.5  # seconds between the summaries that cells send each other
    tallied_from_s: float = 0.0  # calls that arrive before are not tallied
    rungs: SimRungs | None = None
    moments: int = 200
    noise: Sequence[float] = ()  # factors of step times (noise.py)

    @property
    def fleet(self) -> list[Replica]:
        return self.replicas + (self.rungs.replicas if self.rungs else [])


@dataclass
class Outcome:
    seed: int
    seconds: float
    tallies: dict[Tier, Tally]  # without auto calls
    seat_us: dict[Tier, int] = field(default_factory=dict)  # by the tier served
    reserve_us: int = 0
    moments: list[Moment] = field(default_factory=list)
    cost: int = 0  # of the whole fleet over the run, in micro-units
    handed_on: int = 0  # calls that went from one cell to another
    unled: int = 0  # calls that relays refused because no dispatcher had answered
    over_limit: int = 0  # calls that boarded a replica beyond what a floor aboard allows, by the replicas' own counts
    takeovers: list[Takeover] = field(default_factory=list)
    auto: AutoTally | None = None

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self.tallies.values()) + (self.auto.calls if self.auto else 0)


def play(scenario: Scenario, seed: int) -> Outcome:
    [model] = {replica.pool for replica in scenario.replicas}
    policies, rungs = {model: scenario.policy}, scenario.rungs
    jobs = scenario.jobs(seed)
    auto = None
    if rungs is not None:
        auto = AutoTally(rungs, seed, model, "flex" if "flex" in scenario.policy.tiers else "standard")
        policies[STUDENT] = rungs.policy
        jobs = auto.jobs(jobs)
    simulation = _simulation(scenario, policies, seed)
    outcome = Outcome(seed, scenario.seconds, {tier: Tally.empty(f"{seed} {tier}") for tier in scenario.policy.tiers})
    outcome.auto = auto
    # Calls create no reference cycles, and garbage collection takes a quarter of the run time of a large fleet.
    gc.disable()
    try:
        _run(simulation, jobs, scenario, model, outcome)
    finally:
        gc.enable()
    for machine in simulation.machines:
        pool = machine.pool_of(model)
        outcome.reserve_us += pool.reserve_us
        for tier, seat_us in pool.seat_us[model].items():
            outcome.seat_us[tier] = outcome.seat_us.get(tier, 0) + seat_us
    outcome.cost = round(len(scenario.fleet) * scenario.replica_hour * scenario.seconds / 3600)
    outcome.over_limit = simulation.over_limit
    if isinstance(simulation, DispatchedSimulation):
        outcome.handed_on, outcome.unled = simulation.handed_on, simulation.unled
        outcome.takeovers = simulation.takeovers
    return outcome


def _simulation(scenario: Scenario, policies: dict[str, ModelPolicy], seed: int) -> Simulation:
    noise = Noise(scenario.noise, seed) if scenario.noise else None
    if scenario.dispatcher is None and not scenario.dispatcher_faults and len(scenario.cells) == 1:
        return Simulation(policies, scenario.fleet, scenario.first_token_s, scenario.faults, noise)
    return DispatchedSimulation(
        policies,
        scenario.fleet,
        scenario.dispatcher or DispatcherTimes(),
        scenario.cells,
        seed,
        scenario.first_token_s,
        scenario.faults,
        scenario.dispatcher_faults,
        noise,
        scenario.summary_s,
    )


def _run(simulation: Simulation, jobs: Iterator[Job], scenario: Scenario, model: str, outcome: Outcome) -> None:
    auto = outcome.auto
    every_s = scenario.seconds / scenario.moments
    look_at = every_s
    for ended in simulation.run(jobs, scenario.seconds):
        trips = [ended]
        while trips:  # a trip that ends may cause another job, which may end at once
            trip = trips.pop()
            price = scenario.prices[trip.tier]
            if trip.job.at < scenario.tallied_from_s:
                continue
            if auto is None or not auto.is_auto(trip.job.call):
                outcome.tallies[trip.job.call.tier].add(trip, scenario.policy.tiers[trip.tier].floor_tps, price)
            else:
                for job in auto.ended(trip, price, simulation.now):
                    trips += simulation.arrive(job)
        if simulation.now >= look_at:
            outcome.moments.append(_look(simulation, model))
            look_at = simulation.now + every_s


def _look(simulation: Simulation, model: str) -> Moment:
    pools = [machine.pool_of(model) for machine in simulation.machines]
    return Moment(
        simulation.now,
        simulation.aboard,
        len(simulation.trips) - simulation.aboard,
        sum(pool.light_replicas for pool in pools),
        sum(pool.open_replicas for pool in pools),
    )
