"""The fleet: the fewest replicas whose simulation keeps every promise at the busiest hour, one of them dead.

A candidate is one kind of replica, planned or measured. Its fleet is found by playing the very policy that serves, for
more and fewer replicas, until one fewer would break a promise. Beyond some size a fleet is cells: each serves its part
of the demand alone, so only one is played. Knows nothing of terminals.

Invariant: the fleet given kept its promises in every seed, with one replica dead for the second half of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from headway.core.curve import Curve, fit
from headway.core.types import EXPRESS, ModelPolicy, Replica, Tier, TierPolicy
from headway.errors import SetupError
from headway.plan.answers import CALIBRATED, Band, PlannedReplica, band_of
from headway.price import Price
from headway.sim.loop import Fault
from headway.sim.scenario import Outcome, Scenario, play
from headway.sim.workload import Lengths, Recipe, synthesize

MODEL = "m"
SECONDS = 600.0  # of the busiest hour, twice: SEEDS
SEEDS = (1, 2)
CELL_REPLICAS = 64  # about so many make a cell
MOST_REPLICAS = 4096  # of a cell; a demand that they do not serve is of calls that no number would
UNPAID: dict[Tier, Price] = dict.fromkeys(("ultrafast", "fast", "standard", "flex"), Price(0, 0))


@dataclass(slots=True)
class Demand:
    """At the busiest hour."""

    calls_per_s: float
    tiers: dict[Tier, float]  # the share of each
    floors: dict[Tier, float]
    prompt_tokens: float  # on average
    answer_tokens: float


@dataclass(slots=True)
class Promises:
    """What must hold: of the express tiers, floors kept and calls not downgraded; of all, calls not refused; of
    standard, the wait that 99 in 100 have at most."""

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
    price_hour: float | None  # of a replica
    chips: int
    band: Band


@dataclass(slots=True)
class Fleet:
    candidate: Candidate
    cells: int
    cell_replicas: int
    slow_replicas: int | None  # of a cell if steps take as much longer as the band allows; None: not kept at all
    outcomes: list[Outcome]  # of one cell

    @property
    def replicas(self) -> int:
        return self.cells * self.cell_replicas

    @property
    def price_hour(self) -> float | None:
        return None if self.candidate.price_hour is None else self.replicas * self.candidate.price_hour


def candidate_of(planned: PlannedReplica, standard_tps: float) -> Candidate | None:
    """It takes no more streams than get the speed of standard ones; None where a single one does not."""
    setup, curve = planned.setup, fit(planned.points)
    name, seats = f"{setup.chips} x {setup.chip.name}", curve.largest_batch(standard_tps, planned.seats, 0.0)
    if not seats:
        return None
    return Candidate(name, curve, seats, planned.prompt_tps, planned.price_hour, setup.chips, band_of(setup))


def measured_candidate(points: list[tuple[int, float]], price_hour: float | None, standard_tps: float) -> Candidate:
    """From points (streams, tok/s of each). Its prompts take no time: `headway bench` does not tell how long."""
    curve = fit([(streams, 1.0 / tps) for streams, tps in points])
    seats = curve.largest_batch(standard_tps, max(streams for streams, _ in points), 0.0)
    if not seats:
        raise SetupError(f"not even one stream of it gets {standard_tps:g} tok/s: ask for less with --standard.")
    return Candidate("measured", curve, seats, 0.0, price_hour, 1, CALIBRATED)


def smallest_fleet(candidate: Candidate, demand: Demand, promises: Promises) -> Fleet | None:
    """None if no number of such replicas keeps the floors."""
    cells = max(1, ceil(_replicas_for(candidate, demand) / CELL_REPLICAS))
    part = replace(demand, calls_per_s=demand.calls_per_s / cells)
    found = _fewest(candidate, part, promises)
    if found is None:
        return None
    replicas, outcomes = found
    slow = None
    if candidate.band.nine_in_ten is not None:
        slower = replace(candidate, curve=candidate.curve.slower(1 / (1 - candidate.band.nine_in_ten)))
        at_worst = _fewest(slower, part, promises)
        slow = max(replicas, at_worst[0]) if at_worst is not None else None
    return Fleet(candidate, cells, replicas, slow, outcomes)


def _replicas_for(candidate: Candidate, demand: Demand) -> float:
    """That would be busy to the last seat all the time: fewer cannot do."""
    per_call_s = demand.prompt_tokens / candidate.prompt_tps if candidate.prompt_tps else 0.0
    per_call_s += demand.answer_tokens * candidate.curve.seconds_per_token(candidate.seats) / candidate.seats
    return demand.calls_per_s * per_call_s


def _fewest(candidate: Candidate, demand: Demand, promises: Promises) -> tuple[int, list[Outcome]] | None:
    policy, curve = _policy(demand), candidate.curve
    if not all(curve.largest_batch(floor, candidate.seats, policy.margin) for floor in demand.floors.values()):
        return None
    enough: tuple[int, list[Outcome]] | None = None
    too_few = ceil(_replicas_for(candidate, demand))  # with one dead it cannot do
    tried = too_few + 1
    while enough is None or enough[0] - too_few > 1:
        outcomes = []
        for seed in SEEDS:
            outcomes.append(play(_scenario(candidate, demand, policy, tried), seed))
            if not _keeps(outcomes[-1], promises):
                too_few = tried
                break
        else:
            enough = tried, outcomes
        if enough is None:
            tried = ceil(tried * 1.3) + 1
            if tried > MOST_REPLICAS:
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


def _policy(demand: Demand) -> ModelPolicy:
    """The fastest tier boards first."""
    by_floor = sorted(demand.floors.items(), key=lambda one: -one[1])
    tiers: dict[Tier, TierPolicy] = {tier: TierPolicy(10_000, 2.0, floor_tps) for tier, floor_tps in by_floor}
    return ModelPolicy({**tiers, "standard": TierPolicy(10_000, 30.0)})


def _recipe(demand: Demand) -> Recipe:
    return Recipe(
        demand.calls_per_s,
        prompts=Lengths.around(demand.prompt_tokens, 0.95, 128_000),
        answers=Lengths.around(demand.answer_tokens, 1.0, 16_000),
        tiers=demand.tiers,
    )


def _scenario(candidate: Candidate, demand: Demand, policy: ModelPolicy, replicas: int) -> Scenario:
    fleet = [
        Replica(str(number), MODEL, candidate.seats, candidate.curve, candidate.prompt_tps)
        for number in range(replicas)
    ]
    dies = Fault(SECONDS / 2, "0", SECONDS)
    return Scenario(policy, fleet, partial(synthesize, _recipe(demand)), SECONDS, UNPAID, faults=(dies,))
