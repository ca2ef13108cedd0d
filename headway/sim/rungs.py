"""Simulation of the auto tier: a student answers first, and core decides what is taken, audited and escalated.

How good the student is, and how well its scores show it, are inputs. All decisions are those of core/trust.py, with
seeded dice: what is sampled, when there are doubts, when too many audits wait, when the gate closes. Rungs and audits
take seats like other calls; rungs are billed, audits are not. An audit that finds no seat is asked again when the next
rung ends.

Whether the student is asked is decided when the call before arrives, which is when the simulation fetches a call.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AutoArrived,
    ComparisonLost,
    LimitPolicy,
    StudentAnswered,
    StudentFailed,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustPolicy,
)
from headway.core.types import Call, ModelPolicy, Replica, Tier
from headway.price import Price
from headway.sim.loop import Job, SimTrip
from headway.sim.sample import Sample

STUDENT = "student"
LEVEL, SURE, UNSURE = 0.5, 1.0, 0.25  # scores of answers: those below the level are escalated


@dataclass(slots=True)
class SimRungs:
    share: float  # of the standard calls that are auto
    policy: ModelPolicy  # of the student's pool
    replicas: list[Replica]
    price: Price  # of the student's tokens
    escalated: float = 0.3  # share of the student's answers with a score below the level
    caught: float = 0.9  # share of the student's mistakes with a score below the level
    mistakes: float = 0.1  # share of the student's answers that are wrong
    full_mistakes: float = 0.02  # share of the full model's answers that are wrong
    budget: float = 0.02  # share of calls that may end in a mistake that the full model would not make
    audit_share: float = 0.25


@dataclass(slots=True)
class _Audit:
    """An audit that is due: what the full model will say is drawn when the student answers."""

    number: int
    differs: bool
    job: Job


@dataclass(slots=True)
class _OnFull:
    """A call that the full model serves."""

    came_at: float
    compare: int = 0  # number of the audit that its answer decides
    differs: bool = False


class AutoTally:
    """The results of the auto calls. Each call is counted once, even if both rungs served it."""

    def __init__(self, rungs: SimRungs, seed: int, full_model: str, audit_tier: Tier) -> None:
        self.rungs = rungs
        self.calls = 0
        self.by_student = 0
        self.mistakes = 0
        self.refused = 0
        self.audits = 0
        self.billed = 0  # micro-units, both rungs
        self.seconds = Sample(f"{seed} auto")
        # A full model that is wrong differs too, and does no harm: calibration counts such differences.
        limit = LimitPolicy(rungs.budget, LEVEL, min(0.99, rungs.budget + rungs.full_mistakes), rungs.audit_share)
        self.trust = Trust(TrustPolicy([limit]))
        self._full_model = full_model
        self._audit_tier = audit_tier
        self._chance = random.Random(f"{seed} gate")
        self._on_full: dict[str, _OnFull] = {}
        self._under_way: dict[str, _Audit] = {}  # audits that have been sent to the full model, by call
        self._without_seat: deque[_Audit] = deque()

    def jobs(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield the same jobs; some of them are auto calls, which go to the student if core asks it."""
        chance = random.Random(f"{self._chance.random()} auto")
        for job in jobs:
            if job.call.tier != "standard" or chance.random() >= self.rungs.share:
                yield job
                continue
            self.calls += 1
            [decision] = self.trust.step(AutoArrived(job.call.id, job.call.tenant, chance.random()), job.at)
            if isinstance(decision, AskStudent):
                yield Job(job.at, replace(job.call, model=STUDENT), job.tokens)
            else:
                yield self._to_full(job, job.at, job.at)

    def is_auto(self, call: Call) -> bool:
        return call.model == STUDENT or call.id in self._on_full or call.id in self._under_way

    def ended(self, trip: SimTrip, full_price: Price, now: float) -> list[Job]:
        """Count the trip. Returns the jobs that follow: on the full model, for the call or for audits."""
        call = trip.job.call
        is_finished = trip.how == "finished"
        if (audit := self._under_way.pop(call.id, None)) is not None:
            self._end_audit(audit, now, is_finished=is_finished)
            return []
        if is_finished:
            price = self.rungs.price if call.model == STUDENT else full_price
            self.billed += price.amount(call.prompt_tokens, trip.job.tokens)
        jobs = self._student_ended(trip, now) if call.model == STUDENT else self._full_ended(trip, now)
        if self._without_seat:
            jobs.append(self._send(self._without_seat.popleft(), now))
        return jobs

    def _student_ended(self, trip: SimTrip, now: float) -> list[Job]:
        rungs, chance, call_id = self.rungs, self._chance.random, trip.job.call.id
        is_wrong, is_full_wrong = chance() < rungs.mistakes, chance() < rungs.full_mistakes
        of_right = max(0.0, rungs.escalated - rungs.caught * rungs.mistakes) / (1.0 - rungs.mistakes)
        is_sure = chance() >= (rungs.caught if is_wrong else of_right)
        if trip.how == "finished":
            decisions = self.trust.step(StudentAnswered(call_id, SURE if is_sure else UNSURE), now)
        else:
            decisions = self.trust.step(StudentFailed(call_id, trip.how), now)
        return self._do(decisions[0], trip, now, is_wrong=is_wrong, differs=is_wrong or is_full_wrong)

    def _do(self, decision: TrustDecision, trip: SimTrip, now: float, *, is_wrong: bool, differs: bool) -> list[Job]:
        if isinstance(decision, AskFull):
            return [self._to_full(trip.job, now, trip.job.at, decision.compare, differs=differs)]
        assert isinstance(decision, TakeAnswer)
        self.by_student += 1
        self._note(trip, trip.job.at, float(is_wrong))
        return [self._send(_Audit(decision.audit, differs, trip.job), now)] if decision.audit else []

    def _full_ended(self, trip: SimTrip, now: float) -> list[Job]:
        served = self._on_full.pop(trip.job.call.id)
        self._note(trip, served.came_at, self.rungs.full_mistakes)
        if served.compare:
            verdict = AuditEnded(served.compare, "differs" if served.differs else "same")
            self.trust.step(verdict if trip.how == "finished" else ComparisonLost(served.compare), now)
        return []

    def _end_audit(self, audit: _Audit, now: float, *, is_finished: bool) -> None:
        if not is_finished:
            self._without_seat.append(audit)
            return
        self.audits += 1
        self.trust.step(AuditEnded(audit.number, "differs" if audit.differs else "same"), now)

    def _to_full(self, job: Job, at: float, came_at: float, compare: int = 0, *, differs: bool = False) -> Job:
        call = replace(job.call, id=f"{job.call.id} full", model=self._full_model)
        self._on_full[call.id] = _OnFull(came_at, compare, differs)
        return Job(at, call, job.tokens)

    def _send(self, audit: _Audit, now: float) -> Job:
        named = replace(audit.job.call, id=f"audit {audit.number}", tenant="")
        call = replace(named, model=self._full_model, tier=self._audit_tier)
        self._under_way[call.id] = audit
        return Job(now, call, audit.job.tokens)

    def _note(self, trip: SimTrip, came_at: float, mistakes: float) -> None:
        if trip.how != "finished" or trip.ended_at is None:
            self.refused += 1
            return
        self.mistakes += self._chance.random() < mistakes
        self.seconds.add(trip.ended_at - came_at)
