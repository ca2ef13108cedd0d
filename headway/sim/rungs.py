"""Simulation of the auto tier: a student answers first, and some of its calls are escalated to the full model.

The rates of escalations and mistakes are inputs; the gate itself is not simulated. A call that the student refuses or
fails to answer is escalated as well. Both rungs take seats and are billed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.core.types import Call, ModelPolicy, Replica
from headway.price import Price
from headway.sim.loop import Job, SimTrip
from headway.sim.sample import Sample

STUDENT = "student"


@dataclass(slots=True)
class SimRungs:
    share: float  # of the standard calls that are auto
    policy: ModelPolicy  # of the student's pool
    replicas: list[Replica]
    price: Price  # of the student's tokens
    escalated: float = 0.3  # share of the student's answers that are escalated
    caught: float = 0.9  # share of the student's mistakes that are escalated
    mistakes: float = 0.1  # share of the student's answers that are wrong
    full_mistakes: float = 0.02  # share of the full model's answers that are wrong


class AutoTally:
    """The results of the auto calls. Each call is counted once, even if both rungs served it."""

    def __init__(self, rungs: SimRungs, seed: int) -> None:
        self.rungs = rungs
        self.calls = 0
        self.by_student = 0
        self.mistakes = 0
        self.refused = 0
        self.billed = 0  # micro-units, both rungs
        self.seconds = Sample(f"{seed} auto")
        self._chance = random.Random(f"{seed} gate")
        self._came_at: dict[str, float] = {}  # arrival times of escalated calls

    def jobs(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield the same jobs; some of them go to the student first."""
        chance = random.Random(f"{self._chance.random()} auto")
        for job in jobs:
            if job.call.tier == "standard" and chance.random() < self.rungs.share:
                yield Job(job.at, replace(job.call, model=STUDENT), job.tokens)
            else:
                yield job

    def is_auto(self, call: Call) -> bool:
        return call.model == STUDENT or call.id in self._came_at

    def ended(self, trip: SimTrip, full_model: str, full_price: Price, now: float) -> Job | None:
        """Count the trip. If the call is escalated, returns its job on the full model."""
        call, rungs = trip.job.call, self.rungs
        if trip.how == "finished":
            price = rungs.price if call.model == STUDENT else full_price
            self.billed += price.amount(call.prompt_tokens, trip.job.tokens)
        if call.model != STUDENT:
            self._note(trip, self._came_at.pop(call.id), rungs.full_mistakes)
            return None
        self.calls += 1
        is_wrong = self._chance.random() < rungs.mistakes
        of_right = max(0.0, rungs.escalated - rungs.caught * rungs.mistakes) / (1.0 - rungs.mistakes)
        if trip.how == "finished" and self._chance.random() >= (rungs.caught if is_wrong else of_right):
            self.by_student += 1
            self._note(trip, trip.job.at, float(is_wrong))
            return None
        again = replace(call, id=f"{call.id} full", model=full_model)
        self._came_at[again.id] = trip.job.at
        return Job(now, again, trip.job.tokens)

    def _note(self, trip: SimTrip, came_at: float, mistakes: float) -> None:
        if trip.how != "finished" or trip.ended_at is None:
            self.refused += 1
            return
        self.mistakes += self._chance.random() < mistakes
        self.seconds.add(trip.ended_at - came_at)
