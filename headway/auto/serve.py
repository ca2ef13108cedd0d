"""Serves auto models: the student answers first, and the full model if the student is not trusted.

    tool calls, structured answers   the student's answer is held back and weighed (auto/gate.py). If it is not taken,
                                     nothing of it reaches the client
    free text                        if the owner allows it: the prompt decides, before the first token; then the answer
                                     streams

Whom to ask, what to take and what to audit is decided by core (core/trust.py), which auto/live_gate.py tells. Each rung
is a separate call to `Gateway.handle`, with its own seat, proof and entries. If anything fails before the client has
received something (no student, an unreadable answer), the call escalates to the full model.

While audits raise doubts, both models answer each call, the client gets the full model's answer, and the two are
compared: this shows at no risk whether the student can be used again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.auto.gate import GateCall, weigh
from headway.auto.held_answer import HeldAnswer, deliver
from headway.auto.live_gate import Handle, LiveGate, compare
from headway.auto.requests import CallRungs
from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AutoArrived,
    ComparisonLost,
    StudentAnswered,
    StudentFailed,
    TakeAnswer,
)
from headway.core.types import Tier
from headway.errors import HeadwayError
from headway.gateway.metrics import Metrics
from headway.ledger.audits import AuditStore
from headway.price import Price
from headway.supervise import Supervisor
from headway.wire import Client, Receipt, Rung

log = logging.getLogger("headway.gateway")

PriceOf = Callable[[str, Tier], Price | None]


@dataclass(frozen=True, slots=True)
class _Escalated:
    """The full model must be asked: why, and the student's answer and its receipt, if there are any."""

    ask: AskFull
    student: Receipt | None = None
    answer: bytes = b""


class Auto:
    def __init__(
        self,
        handle: Handle,
        gates: dict[str, LiveGate],
        price_of: PriceOf,
        metrics: Metrics,
        store: AuditStore | None = None,
        dice: random.Random | None = None,
    ) -> None:
        """`store` is where the gates keep their audits; closed when this stops."""
        self._handle = handle
        self._gates = gates
        self._price_of = price_of
        self._metrics = metrics
        self._store = store
        self._dice = dice or random.Random()

    def open_gates(self) -> dict[str, bool]:
        """Whether the gate of each auto model is open."""
        return {name: not gate.policy.is_closed for name, gate in self._gates.items()}

    def start(self, supervisor: Supervisor) -> None:
        for gate in self._gates.values():
            gate.start(self._handle, supervisor)

    async def stop(self) -> None:
        for gate in self._gates.values():
            await gate.stop()
        if self._store is not None:
            self._store.close()

    async def handle(self, rungs: CallRungs, client: Client) -> Receipt:
        call, began = rungs.call, time.monotonic()
        gate = self._gates[call.model]
        full_price = self._price_of(gate.scores.full, call.tier)
        rung = Rung(call.model, "student", full_price=full_price, tier_asked=call.tier)
        try:
            outcome = await self._ask_student(gate, rungs, rung, client)
        finally:
            gate.leave(call.id)
        if isinstance(outcome, Receipt):
            self._metrics.auto_calls.labels(call.model, "student", "").inc()
            return outcome
        why, earlier_s = outcome.ask.why, time.monotonic() - began
        rung = replace(rung, name="full", escalated=why, student=outcome.student, earlier_s=earlier_s)
        if outcome.ask.compare:
            receipt = await self._serve_compared(gate, rungs, rung, outcome, client)
        else:
            receipt = await self._handle(replace(rungs.to_full(), rung=rung), client)
        self._metrics.auto_calls.labels(call.model, "full", why).inc()
        return receipt

    async def _ask_student(self, gate: LiveGate, rungs: CallRungs, rung: Rung, client: Client) -> Receipt | _Escalated:
        gate_call = rungs.gate_call
        decision = await gate.ask(
            AutoArrived(
                rungs.call.id,
                rungs.call.tenant,
                self._dice.random(),
                can_weigh=gate_call is not None,
                is_calibrated=gate_call is not None and gate.scores.covers(gate_call),
                can_keep=gate.can_keep,
                prompt_score=_prompt_score(gate, gate_call),
            )
        )
        if isinstance(decision, AskFull):
            return _Escalated(decision)
        assert gate_call is not None
        if isinstance(decision, AskStudent):
            return await self._hold_student(gate, rungs, gate_call, rung, client)
        return await self._stream_student(gate, rungs, rung, client)

    async def _stream_student(
        self, gate: LiveGate, rungs: CallRungs, rung: Rung, client: Client
    ) -> Receipt | _Escalated:
        try:
            return await self._handle(replace(rungs.to_student(is_held=False), rung=rung), client)
        except HeadwayError as error:
            if client.started:
                raise
            log.info("the student did not answer call %s: %s", rungs.call.id, error)
            return await _failed(gate, rungs, "student failed")

    async def _hold_student(
        self, gate: LiveGate, rungs: CallRungs, gate_call: GateCall, rung: Rung, client: Client
    ) -> Receipt | _Escalated:
        held, call_id = HeldAnswer(), rungs.call.id
        try:
            # With the log-probabilities that the gate needs, the answer may be larger than a request may ask for.
            receipt = await self._handle(replace(rungs.to_student(is_held=True), rung=rung), held)
        except HeadwayError as error:
            log.info("the student did not answer call %s: %s", call_id, error)
            return await _failed(gate, rungs, "student failed")
        try:
            evidence = weigh(gate_call, rungs.read(held.body))
            score = gate.scores.gate.score(evidence)
            whole = rungs.release(held.body) if score > 0 else b""  # a score of 0 is never taken
        except Exception:
            # If the gate fails, the answer is not trusted, and the call does not fail.
            log.exception("the gate failed on the answer to call %s", call_id)
            return await _failed(gate, rungs, "gate failed", receipt)
        decision = await gate.ask(StudentAnswered(call_id, score, evidence.doubt))
        if isinstance(decision, TakeAnswer) and decision.audit:
            decision = await gate.keep(decision, rungs.to_audit(held.body)) or decision
        if isinstance(decision, AskFull):
            return _Escalated(decision, receipt, held.body)
        await deliver(client, whole, receipt, is_stream=rungs.is_streaming)
        return receipt

    async def _serve_compared(
        self, gate: LiveGate, rungs: CallRungs, rung: Rung, outcome: _Escalated, client: Client
    ) -> Receipt:
        """Serve the full model's answer, after comparing it with the student's."""
        held, number, is_compared = HeldAnswer(), outcome.ask.compare, False
        try:
            receipt = await self._handle(replace(rungs.to_full(is_held=True), rung=rung), held)
            gate.tell(AuditEnded(number, compare(rungs.to_audit(outcome.answer), held.body)))
            is_compared = True
        finally:
            if not is_compared:
                gate.tell(ComparisonLost(number))
        await deliver(client, rungs.release(held.body), receipt, is_stream=rungs.is_streaming)
        return receipt


def _prompt_score(gate: LiveGate, gate_call: GateCall | None) -> float | None:
    """Of free text; None for other calls."""
    if gate_call is None or not gate_call.is_free_text:
        return None
    return gate.scores.gate.score(gate.scores.gate.before(gate_call))


async def _failed(gate: LiveGate, rungs: CallRungs, why: str, receipt: Receipt | None = None) -> _Escalated:
    decision = await gate.ask(StudentFailed(rungs.call.id, why))
    assert isinstance(decision, AskFull)
    return _Escalated(decision, receipt)
