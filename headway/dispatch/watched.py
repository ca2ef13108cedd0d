"""One auto model's trust (core/trust.py), as whoever decides about it keeps it: recorded, and rebuilt from the store.

Verdicts are rows in the ledger's store. Whoever begins to decide is told them first, in the order of the sample, page
by page; until it has all, nothing is decided and nothing is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.trust import AuditRecalled, Trust, TrustDecision, TrustEvent, TrustPolicy
from headway.core.types import Ticked
from headway.dispatch.base import RecalledRow

EXPIRE_S = 5.0  # between two looks for audits that have waited for too long


class TrustRecord(Protocol):
    """Writes what core was told and what it decided (record.py)."""

    def begin_trust(self, model: str, policy: TrustPolicy) -> None: ...
    def append_trust(self, model: str, now: float, event: TrustEvent, decisions: list[TrustDecision]) -> None: ...


class WatchedModel:
    def __init__(
        self, model: str, policy: TrustPolicy, record: TrustRecord | None, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` is the clock on the wall: audits outlive a process."""
        self.trust = Trust(policy)
        self.is_rebuilt = False
        self.recalled_to = 0  # the last number that was read from the store
        self._model = model
        self._record = record
        self._clock = clock
        self._ticked_at = clock()
        if record is not None:
            record.begin_trust(model, policy)

    def step(self, event: TrustEvent) -> list[TrustDecision]:
        now = self._clock()
        decisions = self.trust.step(event, now)
        if self._record is not None:
            self._record.append_trust(self._model, now, event, decisions)
        return decisions

    def recall(self, after: int, rows: Sequence[RecalledRow], *, is_all: bool) -> list[TrustDecision]:
        """Take a page of rows. One that was not asked for, or for a second time, is left out."""
        if self.is_rebuilt or after != self.recalled_to:
            return []
        decisions: list[TrustDecision] = []
        now = self._clock()
        for number, budget, age_s, verdict in rows:
            decisions += self.step(AuditRecalled(number, budget, now - age_s, verdict))
            self.recalled_to = number
        self.is_rebuilt = is_all
        return decisions

    def tick(self) -> list[TrustDecision]:
        """Let audits expire. To be called often."""
        if not self.is_rebuilt or self._clock() - self._ticked_at < EXPIRE_S:
            return []
        self._ticked_at = self._clock()
        return self.step(Ticked())
