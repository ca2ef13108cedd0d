"""Whether a student's answers are used: all decisions of one auto model. Events in, decisions out.

    AutoArrived      -> is the student asked, and is the call sampled for an audit?
    StudentAnswered  -> is its answer taken, or is the call escalated to the full model?
    AuditEnded       -> what does the verdict do? Enough that differ close the gate for good
    Ticked           -> which audits have waited for too long?

The sample is drawn when the call arrives, by `dice` in the event, before anything is known of the answer. A sampled
call ends in one verdict: the two answers are the same or differ, or the full model served the call, so that nothing
could differ. The watch counts verdicts in the order of the sample; one that comes earlier waits for those before it. An
audit that the full model refuses, or that is not asked in time, counts as differing.

While audits raise doubts, nothing is taken: the student is asked, the full model serves, and the two are compared.
While more than `max_waiting` audits wait for a seat, the student is not asked at all.

Knows no prompt, model, engine or store. Time and dice are arguments. `check` states the invariants.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from headway.core.types import Ticked
from headway.core.watch import Watch

Verdict = Literal["same", "differs", "escalated", "refused", "expired"]
AGREEING = ("same", "escalated")
KEEP_S = 24 * 3600.0  # an audit that is not asked by then counts as differing
NEVER = 2.0  # a level that no score reaches
MAX_UNCOUNTED = 10_000  # sampled calls that wait for a verdict, their own or an earlier one's


@dataclass(slots=True)
class LimitPolicy:
    """What a mistake budget allows."""

    budget: float
    level: float  # the lowest score of an answer that is used
    may_differ: float  # share of the sampled calls that may differ while the budget is kept
    audit_share: float  # share of the calls that are sampled


@dataclass(slots=True)
class TrustPolicy:
    limits: list[LimitPolicy]  # the first one is for all tenants that `tenants` does not name
    tenants: dict[str, int] = field(default_factory=dict)  # place of a tenant's limit in `limits`
    max_waiting: int = 4
    free_text: bool = False
    is_closed: bool = False


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AutoArrived:
    """A call to the auto model. `dice`, in [0, 1), decides whether it is sampled."""

    call_id: str
    tenant: str
    dice: float
    can_weigh: bool = True  # the gate can weigh answers to such a call
    is_calibrated: bool = True  # the calibration covers its temperature and its tools
    can_keep: bool = True  # an audit can be kept until it is asked
    prompt_score: float | None = None  # of free text, which is decided on before its first token


@dataclass(slots=True)
class StudentAnswered:
    call_id: str
    score: float
    doubt: str = ""  # why the score is 0


@dataclass(slots=True)
class StudentFailed:
    call_id: str
    why: str


@dataclass(slots=True)
class AutoLeft:
    """The client left before the student's answer was weighed."""

    call_id: str


@dataclass(slots=True)
class AuditNotKept:
    """The audit of an answer that is not delivered yet could not be kept."""

    call_id: str
    number: int


@dataclass(slots=True)
class AuditEnded:
    """The full model has answered (same, differs) or has refused the call for good (refused)."""

    number: int
    verdict: Verdict


@dataclass(slots=True)
class ComparisonLost:
    """The full model did not serve a call in doubt: its client left, or it got no seat. Nothing was taken."""

    number: int


@dataclass(slots=True)
class AuditRecalled:
    """After a restart, in the order of the sample: a sampled call of the time before. No verdict: it is waiting."""

    number: int
    budget: float
    asked_at: float
    verdict: Verdict | None = None


@dataclass(slots=True)
class NumbersUsed:
    """Numbers up to this one are in use, also by sampled calls of which nothing was written."""

    up_to: int


TrustEvent = (
    AutoArrived
    | StudentAnswered
    | StudentFailed
    | AutoLeft
    | AuditNotKept
    | AuditEnded
    | ComparisonLost
    | AuditRecalled
    | NumbersUsed
    | Ticked
)

# --- decisions -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AskStudent:
    call_id: str


@dataclass(slots=True)
class AskFull:
    """The full model serves the call. If `compare` is not 0, the student's answer is compared with what it serves, and
    the result is reported as the end of this audit."""

    call_id: str
    why: str
    compare: int = 0


@dataclass(slots=True)
class TakeAnswer:
    """The client gets the student's answer. If `audit` is not 0, the call is kept under this number first."""

    call_id: str
    audit: int = 0
    budget: float = 0.0


@dataclass(slots=True)
class WriteVerdict:
    number: int
    budget: float
    verdict: Verdict


@dataclass(slots=True)
class CloseGate:
    reason: str


TrustDecision = AskStudent | AskFull | TakeAnswer | WriteVerdict | CloseGate


@dataclass(slots=True)
class _LimitState:
    """A budget, its watch, and the sampled calls that the watch has not counted yet."""

    policy: LimitPolicy
    watch: Watch
    order: deque[int] = field(default_factory=deque)  # numbers, in the order of the sample
    verdicts: dict[int, bool | None] = field(default_factory=dict)  # whether it differs; None: withdrawn
    early: set[int] = field(default_factory=set)  # of `verdicts`: answers that were taken and differ

    @property
    def is_in_doubt(self) -> bool:
        """An audit that differs raises doubts at once. A comparison does when it counts: with many calls under way one
        of them always differs, and nothing was taken."""
        return self.watch.is_alert or bool(self.early)


@dataclass(slots=True)
class _Sampled:
    limit: _LimitState
    asked_at: float = 0.0


@dataclass(slots=True)
class _AskedCall:
    """A call that the student has been asked. `number` is 0 if it is not sampled."""

    limit: _LimitState
    number: int


class Trust:
    """The decisions for one auto model."""

    def __init__(self, policy: TrustPolicy) -> None:
        self.policy = policy
        self.is_closed = policy.is_closed
        self.waiting: dict[int, _Sampled] = {}  # audits of answers that were taken, by number
        self._limits = [_LimitState(limit, Watch(limit.may_differ)) for limit in policy.limits]
        self._calls: dict[str, _AskedCall] = {}  # from the question to the student to its answer
        self._compared: dict[int, _Sampled] = {}  # calls in doubt, until the full model has served them
        self._last_number = 0

    def watch_of(self, tenant: str) -> Watch:
        return self._limit(tenant).watch

    def is_in_doubt(self, tenant: str) -> bool:
        return self._limit(tenant).is_in_doubt

    def has_asked(self, call_id: str) -> bool:
        """Whether the student has been asked this call and its answer has not been weighed yet."""
        return call_id in self._calls

    def step(self, event: TrustEvent, now: float) -> list[TrustDecision]:
        if isinstance(event, AutoArrived):
            return self._arrived(event)
        if isinstance(event, StudentAnswered):
            return self._answered(event, now)
        if isinstance(event, StudentFailed):
            failed = self._calls.pop(event.call_id, None)  # None for free text
            return [AskFull(event.call_id, event.why), *(self._escalated(failed) if failed is not None else [])]
        if isinstance(event, AutoLeft):
            asked = self._calls.pop(event.call_id)
            return self._withdraw(asked.limit, asked.number)
        if isinstance(event, AuditNotKept):
            sampled = self.waiting.pop(event.number)
            return [AskFull(event.call_id, "audit not kept"), *self._withdraw(sampled.limit, event.number)]
        if isinstance(event, AuditEnded):
            return self._audited(event.number, event.verdict)
        if isinstance(event, ComparisonLost):
            return self._withdraw(self._compared.pop(event.number).limit, event.number)
        if isinstance(event, AuditRecalled):
            return self._recalled(event)
        if isinstance(event, NumbersUsed):
            self._last_number = max(self._last_number, event.up_to)
            return []
        expired = [number for number, audit in self.waiting.items() if now - audit.asked_at >= KEEP_S]
        return [decision for number in expired for decision in self._audited(number, "expired")]

    # --- calls ---

    def _limit(self, tenant: str) -> _LimitState:
        return self._limits[self.policy.tenants.get(tenant, 0)]

    def _arrived(self, event: AutoArrived) -> list[TrustDecision]:
        limit = self._limit(event.tenant)
        if why := self._obstacle(event, limit):
            return [AskFull(event.call_id, why)]
        if event.prompt_score is not None:
            return [TakeAnswer(event.call_id)]  # free text streams: nothing of it is weighed or sampled
        number = 0
        if limit.is_in_doubt or event.dice < limit.policy.audit_share:
            self._last_number += 1
            number = self._last_number
            limit.order.append(number)
        self._calls[event.call_id] = _AskedCall(limit, number)
        return [AskStudent(event.call_id)]

    def _obstacle(self, event: AutoArrived, limit: _LimitState) -> str:
        """Why the student is not asked; empty if it is."""
        if self.is_closed:
            return "closed"
        if not event.can_weigh:
            return "not weighed"
        if event.prompt_score is not None and not self.policy.free_text:
            return "free text"
        if not event.is_calibrated:
            return "not calibrated"
        if event.prompt_score is not None:
            if limit.is_in_doubt:
                return "in doubt"
            return "" if _reaches(event.prompt_score, limit) else "unsure"
        if not event.can_keep:
            return "audit not kept"
        return "audits waiting" if self._is_behind(limit) else ""

    def _is_behind(self, limit: _LimitState) -> bool:
        return len(self.waiting) > self.policy.max_waiting or len(limit.order) > MAX_UNCOUNTED

    def _answered(self, event: StudentAnswered, now: float) -> list[TrustDecision]:
        asked = self._calls.pop(event.call_id)
        limit, number = asked.limit, asked.number
        if not _reaches(event.score, limit):
            return [AskFull(event.call_id, event.doubt or "unsure"), *self._escalated(asked)]
        if self.is_closed or self._is_behind(limit):  # since the call arrived
            why = "closed" if self.is_closed else "audits waiting"
            return [AskFull(event.call_id, why), *self._withdraw(limit, number)]
        if limit.is_in_doubt:
            if number:
                self._compared[number] = _Sampled(limit)
            return [AskFull(event.call_id, "in doubt", number)]
        if number:
            self.waiting[number] = _Sampled(limit, now)
        return [TakeAnswer(event.call_id, number, limit.policy.budget)]

    # --- verdicts ---

    def _escalated(self, asked: _AskedCall) -> list[TrustDecision]:
        """The full model serves the call, so nothing can differ."""
        return self._end(asked.limit, asked.number, "escalated") if asked.number else []

    def _audited(self, number: int, verdict: Verdict) -> list[TrustDecision]:
        if (compared := self._compared.pop(number, None)) is not None:
            return self._end(compared.limit, number, verdict)
        if (audit := self.waiting.pop(number, None)) is None:
            return []  # it has expired
        if verdict not in AGREEING:
            audit.limit.early.add(number)
        return self._end(audit.limit, number, verdict)

    def _end(self, limit: _LimitState, number: int, verdict: Verdict) -> list[TrustDecision]:
        limit.verdicts[number] = verdict not in AGREEING
        return [WriteVerdict(number, limit.policy.budget, verdict), *self._count(limit)]

    def _withdraw(self, limit: _LimitState, number: int) -> list[TrustDecision]:
        """The call leaves the sample, because nothing of the student reached a client."""
        if not number:
            return []
        limit.verdicts[number] = None
        return self._count(limit)

    def _count(self, limit: _LimitState) -> list[TrustDecision]:
        """Let the watch see the verdicts that are next in the order of the sample."""
        order, verdicts = limit.order, limit.verdicts
        while order and order[0] in verdicts:
            number = order.popleft()
            limit.early.discard(number)
            differs = verdicts.pop(number)
            if differs is not None:
                limit.watch.see(differs)
        watch = limit.watch
        if not watch.is_broken or self.is_closed:
            return []
        self.is_closed = True
        return [CloseGate(f"{watch.excess} of {watch.audited} audited calls differ; at most {watch.budget:.2%} may")]

    def _recalled(self, event: AuditRecalled) -> list[TrustDecision]:
        limit = next((limit for limit in self._limits if limit.policy.budget == event.budget), None)
        self._last_number = max(self._last_number, event.number)
        if limit is None:  # no key has this budget any more
            return []
        limit.order.append(event.number)
        if event.verdict is None:
            self.waiting[event.number] = _Sampled(limit, event.asked_at)
            return []
        differs = event.verdict not in AGREEING
        limit.verdicts[event.number] = differs
        if differs:
            limit.early.add(event.number)
        return self._count(limit)

    def check(self) -> None:
        """The invariants: each sampled call is in exactly one place until its verdict, and none is counted early."""
        asked = [call.number for call in self._calls.values() if call.number]
        pending = sorted([*asked, *self.waiting, *self._compared])
        ordered = sorted(number for limit in self._limits for number in limit.order if number not in limit.verdicts)
        assert pending == ordered, "a sampled call is lost"
        for limit in self._limits:
            assert list(limit.order) == sorted(limit.order), "the sample is out of order"
            assert all(limit.verdicts[number] for number in limit.early), "a doubt without a difference"
            assert not limit.order or limit.order[0] not in limit.verdicts, "a verdict is not counted"
            assert not limit.watch.is_broken or self.is_closed, "a broken budget leaves the gate open"


def _reaches(score: float, limit: _LimitState) -> bool:
    """An answer with a score of 0 is never used, even if the budget allows any score."""
    return score > 0 and score >= limit.policy.level
