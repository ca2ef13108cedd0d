"""The gates of auto models, decided about in the gateway's own process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import Metric

from headway.core.trust import AskFull, TrustDecision
from headway.dispatch.base import NOT_WATCHED, CallEvent, GateDriver, GateEvent, RecalledRow
from headway.dispatch.policy_metrics import gate_metrics
from headway.dispatch.watched import TrustRecord, WatchedModel


class LocalGates:
    epoch = 0

    def __init__(self, record: TrustRecord | None = None, clock: Callable[[], float] = time.time) -> None:
        self.watched: dict[str, WatchedModel] = {}  # by model
        self._gates: dict[str, GateDriver] = {}
        self._record = record
        self._clock = clock

    def may_send(self, epoch: int) -> bool:
        return epoch == self.epoch

    def join(self, gate: GateDriver) -> None:
        self._gates[gate.model] = gate
        self.watched[gate.model] = WatchedModel(gate.model, gate.policy, self._record, self._clock)
        gate.recall(0)

    def tell(self, model: str, event: GateEvent) -> None:
        watched = self.watched.get(model)
        if watched is not None and watched.is_rebuilt:
            self._carry_out(model, watched.step(event))
        elif isinstance(event, CallEvent):
            self._gates[model].decide(AskFull(event.call_id, NOT_WATCHED))

    def recalled(self, model: str, after: int, rows: Sequence[RecalledRow], *, is_all: bool) -> None:
        watched = self.watched[model]
        self._carry_out(model, watched.recall(after, rows, is_all=is_all))
        if is_all:
            self._gates[model].ask_audits(list(watched.trust.waiting))
        else:
            self._gates[model].recall(watched.recalled_to)

    def written(self, model: str, numbers: Sequence[int]) -> None:
        """Not needed: the process that decides is the one that writes."""

    def tick(self) -> None:
        for model, watched in self.watched.items():
            self._carry_out(model, watched.tick())

    def metrics(self) -> Iterable[Metric]:
        return gate_metrics({model: watched.trust for model, watched in self.watched.items()})

    def _carry_out(self, model: str, decisions: list[TrustDecision]) -> None:
        for decision in decisions:
            self._gates[model].decide(decision)
