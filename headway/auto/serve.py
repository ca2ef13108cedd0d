"""Serves auto models: the student answers first, and the full model if the student is not trusted.

    tool calls, structured answers   the student's answer is held back and weighed (auto/gate.py). If the gate does not
                                     trust it, nothing of it reaches the client
    free text                        the gate decides on the prompt, before the first token; then the answer streams

Each rung is a separate call to `Gateway.handle`, with its own seat, proof and entries. If anything fails before the
client has received something (no student, an unreadable answer), the call escalates to the full model.

A random share of the weighed calls is audited: the full model answers them too, after the client has its answer. If the
answers differ more often than the budget allows, the gate closes: the full model serves every call, also after a
restart, until `headway auto calibrate` has run again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.auto.gate import GateAnswer, GateCalibration, GateCall, differ, weigh
from headway.auto.requests import CallRungs
from headway.auto.risk import Judged, threshold, watched_rate
from headway.core.types import Tier
from headway.core.watch import Watch
from headway.errors import HeadwayError
from headway.gateway.metrics import Metrics
from headway.price import Price
from headway.wire import Client, Grant, Receipt, Request, Rung

log = logging.getLogger("headway.gateway")

MAX_AUDITS = 8  # at once; further calls are not audited, whatever their content
Handle = Callable[[Request, Client], Awaitable[Receipt]]
PriceOf = Callable[[str, Tier], Price | None]


@dataclass(slots=True)
class _Limit:
    """The lowest score that a budget allows, and the watch over the budget."""

    level: float
    watch: Watch


@dataclass
class AutoGate:
    """Which answers of one student are trusted, and whether the gate is still open."""

    calibration: GateCalibration
    budget: float
    budgets: dict[str, float]  # budgets of single keys, by key id
    audit_share: float
    closed_file: Path  # exists while the gate is closed
    _limits: dict[float, _Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_closed = self.closed_file.exists()
        judged = self.calibration.judged
        for budget in {self.budget, *self.budgets.values()}:
            self._limits[budget] = _limit(judged, budget)

    def limit(self, tenant: str) -> _Limit:
        return self._limits[self.budgets.get(tenant, self.budget)]

    def see(self, limit: _Limit, differs: bool) -> None:
        limit.watch.see(differs)
        if limit.watch.is_broken and not self.is_closed:
            self.is_closed = True
            watch = limit.watch
            reason = f"{watch.excess} of {watch.audited} audited calls differ; at most {watch.budget:.2%} may"
            log.error("the gate of %s is closed: %s", self.calibration.student, reason)
            try:
                self.closed_file.write_text(reason + "\n", encoding="utf-8")
            except OSError as error:
                log.error(
                    "the gate would be open again after a restart, because its state cannot be written: %s", error
                )


def _limit(judged: list[Judged], budget: float) -> _Limit:
    level = threshold(judged, budget)
    return _Limit(level, Watch(watched_rate(judged, level, budget)))


@dataclass
class _HeldAnswer:
    """A client that holds the answer back; implements wire.Client for answers in one piece."""

    started: bool = False
    body: bytes = b""

    async def send_whole(self, _content_type: bytes, body: bytes, _grant: Grant) -> None:
        self.started, self.body = True, body

    async def start_stream(self, _content_type: bytes, _grant: Grant) -> None:
        raise NotImplementedError("a held answer is asked for in one piece")

    def write(self, _data: bytes) -> None:
        raise NotImplementedError("a held answer is asked for in one piece")

    def on_backpressure(self, _pause: Callable[[], None], _resume: Callable[[], None]) -> None:
        pass

    async def end_stream(self) -> None:
        pass

    def abandon(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Escalated:
    """The full model must be asked: why, and the receipt of the student's answer, if there was one."""

    why: str
    student: Receipt | None = None


class Auto:
    def __init__(
        self,
        handle: Handle,
        trusts: dict[str, AutoGate],
        price_of: PriceOf,
        metrics: Metrics,
        dice: random.Random | None = None,
    ) -> None:
        self._handle = handle
        self._trusts = trusts
        self._price_of = price_of
        self._metrics = metrics
        self._dice = dice or random.Random()
        self._audits: set[asyncio.Task[None]] = set()
        for model, trust in trusts.items():
            metrics.auto_gate.labels(model).set_function(lambda trust=trust: float(not trust.is_closed))  # type: ignore[misc]

    async def handle(self, rungs: CallRungs, client: Client) -> Receipt:
        call, began = rungs.call, time.monotonic()
        trust = self._trusts[call.model]
        limit = trust.limit(call.tenant)
        full_price = self._price_of(trust.calibration.full, call.tier)
        if trust.is_closed or rungs.gate_call is None:
            outcome: Receipt | _Escalated = _Escalated("closed" if trust.is_closed else "not weighed")
        else:
            rung = Rung(call.model, "student", full_price=full_price)
            ask = self._stream_student if rungs.gate_call.is_free_text else self._hold_student
            outcome = await ask(trust, limit, rungs, rungs.gate_call, rung, client)
        if isinstance(outcome, Receipt):
            self._metrics.auto_calls.labels(call.model, "student", "").inc()
            return outcome
        earlier_s = time.monotonic() - began
        rung = Rung(call.model, "full", outcome.why, full_price, outcome.student, earlier_s)
        receipt = await self._handle(replace(rungs.to_full(), rung=rung), client)
        self._metrics.auto_calls.labels(call.model, "full", outcome.why).inc()
        return receipt

    async def _stream_student(
        self, trust: AutoGate, limit: _Limit, rungs: CallRungs, gate_call: GateCall, rung: Rung, client: Client
    ) -> Receipt | _Escalated:
        gate = trust.calibration.gate
        if not gate.takes(gate.before(gate_call), limit.level):
            return _Escalated("unsure")
        student = replace(rungs.to_student(is_held=False), rung=rung)
        try:
            return await self._handle(student, client)
        except HeadwayError as error:
            if client.started:
                raise
            log.info("the student did not answer call %s: %s", student.call.id, error)
            return _Escalated("student failed")

    async def _hold_student(
        self, trust: AutoGate, limit: _Limit, rungs: CallRungs, gate_call: GateCall, rung: Rung, client: Client
    ) -> Receipt | _Escalated:
        held, call_id = _HeldAnswer(), rungs.call.id
        try:
            # With the log-probabilities that the gate needs, the answer may be larger than a request may ask for.
            receipt = await self._handle(replace(rungs.to_student(is_held=True), rung=rung), held)
        except HeadwayError as error:
            log.info("the student did not answer call %s: %s", call_id, error)
            return _Escalated("student failed")
        try:
            answer = rungs.read(held.body)
            evidence = weigh(gate_call, answer)
            is_taken = trust.calibration.gate.takes(evidence, limit.level)
            whole = rungs.release(held.body) if is_taken else b""
        except Exception:
            # If the gate fails, the answer is not trusted, and the call does not fail.
            log.exception("the gate failed on the answer to call %s", call_id)
            return _Escalated("gate failed", receipt)
        self._audit(trust, limit, rungs, answer if is_taken else None, rung.auto)
        if not is_taken:
            return _Escalated(evidence.doubt or "unsure", receipt)
        await _deliver(client, whole, receipt.grant, is_stream=rungs.is_streaming)
        return receipt

    # --- audits ---

    def _audit(self, trust: AutoGate, limit: _Limit, rungs: CallRungs, taken: GateAnswer | None, model: str) -> None:
        if not limit.watch.is_alert and self._dice.random() >= trust.audit_share:
            return
        if taken is None:  # the full model serves the call, so nothing can differ
            self._metrics.auto_audits.labels(model, "escalated").inc()
            trust.see(limit, differs=False)
        elif len(self._audits) < MAX_AUDITS:
            task = asyncio.get_running_loop().create_task(self._ask_full(trust, limit, rungs, taken, model))
            self._audits.add(task)
            task.add_done_callback(self._on_audit_done)

    async def _ask_full(self, trust: AutoGate, limit: _Limit, rungs: CallRungs, taken: GateAnswer, model: str) -> None:
        held = _HeldAnswer()
        try:
            await self._handle(rungs.to_audit(), held)
            differs = differ(taken, rungs.read(held.body))
        except HeadwayError:
            return  # no seat was free for the audit
        self._metrics.auto_audits.labels(model, "differs" if differs else "same").inc()
        trust.see(limit, differs)

    def _on_audit_done(self, task: asyncio.Task[None]) -> None:
        self._audits.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an audit failed", exc_info=error)

    async def stop(self) -> None:
        for task in self._audits:
            task.cancel()
        await asyncio.gather(*self._audits, return_exceptions=True)


async def _deliver(client: Client, whole: bytes, grant: Grant, *, is_stream: bool) -> None:
    if not is_stream:
        await client.send_whole(b"application/json", whole, grant)
        return
    await client.start_stream(b"text/event-stream; charset=utf-8", grant)
    client.write(whole)
    await client.end_stream()
