"""Find the smallest fleet whose simulation keeps every promise at the busiest hour with one replica dead.

A candidate is one kind of replica, planned or measured. Its fleet is found by simulating the serving policy with more
and fewer replicas until one fewer would break a promise. A large fleet is split into cells that each serve a part
of the demand alone, so only one cell is simulated. Does not know terminals.

Invariant: the returned fleet kept its promises with every seed, with one replica dead for the second half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from headway.core.curve import Curve, fit
from headway.core.types import EXPRESS, ModelPolicy, Replica, Tier, TierPolicy
from headway.errors import SetupError
from headway.plan.answers import CALIBRATED, Band, PlannedReplica, band_of
from headway.price import Price
from headway.sim.loop import Fault, Job
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, continuable, synthesize

MODEL = "m"
SECONDS = 600.0  # of the busiest hour, simulated once per seed
SEEDS = (1, 2)
CELL_REPLICAS = 64  # approximate size of a cell
MAX_REPLICAS = 4096  # of a cell; if they cannot serve the demand, no number can
UNPAID: dict[Tier, Price] = dict.fromkeys(("ultrafast", "fast", "standard", "flex"), Price(0, 0))


@dataclass(slots=True)
class Demand:
    """The demand at the busiest hour."""

    calls_per_s: float
    tiers: dict[Tier, float]  # share of the calls
    floors: dict[Tier, float]
    prompt_tokens: float  # on average
    answer_tokens: float
    moves_streams: bool = False  # all calls can go on at another replica, and the policy counts on it


@dataclass(slots=True)
class Promises:
    """What must hold: floors kept and calls downgraded in the express tiers, calls refused in every tier, and the wait
    of standard calls."""

    kept: float = 0.99
    downgraded: float = 0.01
    refused: float = 0.001
    wait_p99_s: float = 5.0


@dataclass(slots=True)
class Candidate:
    name: str
    curve: Curve
    seats: int
    prompt_tps: float
    price_hour: float | None  # per replica
    chips: int
    band: Band


@dataclass(slots=True)
class FleetPart:
    """The replicas of one kind in a cell."""

    candidate: Candidate
    replicas: int


@dataclass(slots=True)
class Fleet:
    """Replicas of one kind, or of two (two_profiles.py)."""

    parts: list[FleetPart]
    cells: int
    slow_replicas: int | None  # per cell if steps are as slow as the band allows; None if no number is enough
    outcomes: list[Outcome]  # of one cell, one per seed

    @property
    def cell_replicas(self) -> int:
        return sum(part.replicas for part in self.parts)

    @property
    def replicas(self) -> int:
        return self.cells * self.cell_replicas

    @property
    def chips(self) -> int:
        return self.cells * sum(part.replicas * part.candidate.chips for part in self.parts)

    @property
    def price_hour(self) -> float | None:
        prices = [part.candidate.price_hour for part in self.parts]
        if any(price is None for price in prices):
            return None
        return self.cells * sum(part.replicas * (part.candidate.price_hour or 0.0) for part in self.parts)

    @property
    def cost(self) -> float:
        """What fleets are compared by: the price, or the chips where it is not known."""
        return self.chips if self.price_hour is None else self.price_hour


def candidate_of(planned: PlannedReplica, standard_tps: float) -> Candidate | None:
    """Limit the seats so that every stream gets the standard speed. Returns None if not even one stream does."""
    setup, curve = planned.setup, fit(planned.points)
    name = f"{setup.chips} x {setup.chip.name}" + (f" {setup.gains.method}" if setup.gains else "")
    seats = curve.largest_batch(standard_tps, planned.seats, 0.0)
    if not seats:
        return None
    return Candidate(name, curve, seats, planned.prompt_tps, planned.price_hour, setup.chips, band_of(setup))


def measured_candidate(points: list[tuple[int, float]], price_hour: float | None, standard_tps: float) -> Candidate:
    """Make a candidate from points (streams, tok/s of each). Prompts take no time: bench.json has no prompt speed."""
    curve = fit([(streams, 1.0 / tps) for streams, tps in points])
    seats = curve.largest_batch(standard_tps, max(streams for streams, _ in points), 0.0)
    if not seats:
        raise SetupError(f"not even one stream reaches {standard_tps:g} tok/s: lower --standard.")
    return Candidate("measured", curve, seats, 0.0, price_hour, 1, CALIBRATED)


def smallest_fleet(candidate: Candidate, demand: Demand, promises: Promises) -> Fleet | None:
    """Return None if no number of these replicas keeps the floors."""
    cells = max(1, ceil(replicas_for(candidate, demand) / CELL_REPLICAS))
    part = replace(demand, calls_per_s=demand.calls_per_s / cells)
    found = _fewest(candidate, part, promises)
    if found is None:
        return None
    replicas, outcomes = found
    slow = None
    if candidate.band.nine_in_ten is not None:
        at_worst = _fewest(slowed(candidate), part, promises)
        slow = max(replicas, at_worst[0]) if at_worst is not None else None
    return Fleet([FleetPart(candidate, replicas)], cells, slow, outcomes)


def slowed(candidate: Candidate) -> Candidate:
    """With steps as slow as the band allows."""
    return replace(candidate, curve=candidate.curve.slower(1 / (1 - (candidate.band.nine_in_ten or 0.0))))


def replicas_for(candidate: Candidate, demand: Demand) -> float:
    """Return the number of replicas that would have every seat taken all the time: a lower bound."""
    per_call_s = demand.prompt_tokens / candidate.prompt_tps if candidate.prompt_tps else 0.0
    per_call_s += demand.answer_tokens * candidate.curve.seconds_per_token(candidate.seats) / candidate.seats
    return demand.calls_per_s * per_call_s


def _fewest(candidate: Candidate, demand: Demand, promises: Promises) -> tuple[int, list[Outcome]] | None:
    policy, curve = policy_of(demand), candidate.curve
    if not all(curve.largest_batch(floor, candidate.seats, policy.margin) for floor in demand.floors.values()):
        return None
    too_few = ceil(replicas_for(candidate, demand))  # not enough with one dead
    return fewest(lambda replicas, _: _scenario(candidate, demand, policy, replicas), too_few, promises)


def fewest(
    scenario: Callable[[int, int], Scenario], too_few: int, promises: Promises
) -> tuple[int, list[Outcome]] | None:
    """The smallest number with which every seed's scenario keeps the promises, and its outcomes. `scenario` makes one
    for a number and a seed."""
    enough: tuple[int, list[Outcome]] | None = None
    tried = too_few + 1
    while enough is None or enough[0] - too_few > 1:
        outcomes = []
        for seed in SEEDS:
            outcomes.append(play(scenario(tried, seed), seed))
            if not _keeps(outcomes[-1], promises):
                too_few = tried
                break
        else:
            enough = tried, outcomes
        if enough is None:
            tried = ceil(tried * 1.3) + 1
            if tried > MAX_REPLICAS:
                return None
        else:
            tried = (too_few + enough[0]) // 2
    return enough


def _keeps(outcome: Outcome, promises: Promises) -> bool:
    for tier, tally in outcome.tallies.items():
        if tally.refused > promises.refused * tally.calls:
            return False
        if tier in EXPRESS:
            if tally.downgraded > promises.downgraded * tally.calls or tally.kept < promises.kept * tally.promised:
                return False
        elif tally.waits_s.quantile(0.99) > promises.wait_p99_s:
            return False
    return True


def policy_of(demand: Demand) -> ModelPolicy:
    """Build the policy, fastest tier first."""
    by_floor = sorted(demand.floors.items(), key=lambda one: -one[1])
    tiers: dict[Tier, TierPolicy] = {tier: TierPolicy(10_000, 2.0, floor_tps) for tier, floor_tps in by_floor}
    return ModelPolicy({**tiers, "standard": TierPolicy(10_000, 30.0)}, moves_streams=demand.moves_streams)


def _recipe(demand: Demand) -> Recipe:
    return Recipe(
        demand.calls_per_s,
        prompts=Lengths.around(demand.prompt_tokens, 0.95, 128_000),
        answers=Lengths.around(demand.answer_tokens, 1.0, 16_000),
        tiers=demand.tiers,
    )


def _scenario(candidate: Candidate, demand: Demand, policy: ModelPolicy, replicas: int) -> Scenario:
    return scenario_of([FleetPart(candidate, replicas)], demand, policy, "0")


def scenario_of(parts: list[FleetPart], demand: Demand, policy: ModelPolicy, dead: str) -> Scenario:
    """The replicas are numbered from 0; `dead` is the one that dies half way."""
    kinds = [part.candidate for part in parts for _ in range(part.replicas)]
    fleet = [Replica(str(number), MODEL, kind.seats, kind.curve, kind.prompt_tps) for number, kind in enumerate(kinds)]
    dies = Fault(SECONDS / 2, dead, SECONDS)
    return Scenario(policy, fleet, partial(_jobs, demand), SECONDS, UNPAID, faults=(dies,))


def _jobs(demand: Demand, seed: int) -> Iterator[Job]:
    jobs = synthesize(_recipe(demand), seed)
    return continuable(jobs) if demand.moves_streams else jobs
