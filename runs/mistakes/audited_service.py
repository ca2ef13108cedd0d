"""Serves simulated calls with core's own trust (core/trust.py), where an audit does not always find a seat.

When an audit falls due, a seat is free for one audit with the probability `seats`; the audit that has waited longest
is asked on it. While nothing is taken no audit falls due, and seats become free as often as before. All calls fall
within a day, so no audit expires.

A call that is not sampled changes nothing in core unless there are doubts, and one that arrives while too many audits
wait changes nothing at all (tests/core/test_trust.py), so such calls are only counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AutoArrived,
    LimitPolicy,
    StudentAnswered,
    TakeAnswer,
    Trust,
    TrustPolicy,
)

Flags = NDArray[np.bool_]


@dataclass
class ServedCalls:
    closed_at: int | None  # the call at which the gate closed
    taken: int
    excess: Flags  # for each call: the client got an excess mistake


class _Next:
    """Finds the next place at which a flag is set; asked for places that never fall."""

    def __init__(self, flags: Flags) -> None:
        self._places = [*np.flatnonzero(flags).tolist(), len(flags)]
        self._index = 0

    def at(self, position: int) -> int:
        while self._places[self._index] < position:
            self._index += 1
        return int(self._places[self._index])


@dataclass
class AuditedService:
    limit: LimitPolicy
    seats: float  # share of the audits for which a seat is free
    max_waiting: int

    def serve(self, dice: np.random.Generator, passes: Flags, is_excess: Flags, differs: Flags) -> ServedCalls:
        """`passes`: the student's answer reaches the gate's level."""
        count = len(passes)
        trust = Trust(TrustPolicy([self.limit], max_waiting=self.max_waiting))
        is_sampled = dice.random(count) < self.limit.audit_share
        has_seat = passes & is_sampled & (dice.random(count) < self.seats)
        differing, delivered = differs.tolist(), np.zeros(count, dtype=np.bool_)
        asked: dict[int, bool] = {}  # audits that wait, oldest first: whether they differ
        passing, seated, sampled = passes.tolist(), has_seat.tolist(), is_sampled.tolist()
        next_sampled, next_seat = _Next(is_sampled), _Next(has_seat)
        position = 0
        while position < count and not trust.is_closed:
            is_behind = len(trust.waiting) > self.max_waiting
            if is_behind or not trust.is_in_doubt(""):
                until = (next_seat if is_behind else next_sampled).at(position)
                if until > position:
                    if not is_behind:
                        delivered[position:until] = passes[position:until]
                    position = until
                    continue
            number = self._ask(trust, position, sampled=sampled[position], passes=passing[position])
            if number == 0:
                delivered[position] = passing[position]
            elif number is not None and number > 0:
                delivered[position] = True
                asked[number] = differing[position]
            elif number is not None:
                trust.step(AuditEnded(-number, "differs" if differing[position] else "same"), 0.0)
            if seated[position] and asked:
                oldest = next(iter(asked))
                trust.step(AuditEnded(oldest, "differs" if asked.pop(oldest) else "same"), 0.0)
            position += 1
        taken = int(delivered.sum())
        return ServedCalls(position if trust.is_closed else None, taken, delivered & is_excess)

    def _ask(self, trust: Trust, call: int, *, sampled: bool, passes: bool) -> int | None:
        """Returns the number of the audit that is due, the negative number of a call that is compared, 0 if the answer
        is taken and not audited, or None if the full model serves."""
        call_id, dice = str(call), 0.0 if sampled else 1.0
        [arrived] = trust.step(AutoArrived(call_id, "", dice), 0.0)
        if not isinstance(arrived, AskStudent):
            return None
        decision = trust.step(StudentAnswered(call_id, 1.0 if passes else 0.0), 0.0)[0]
        if isinstance(decision, TakeAnswer):
            return decision.audit
        assert isinstance(decision, AskFull)
        return -decision.compare if decision.compare else None
