"""One auto model in service: tells core what happens, and carries out what core decides about audits.

Core decides (core/trust.py). This module draws no conclusions: it keeps the audits that are due (audits.py), asks them
one after another on seats that are idle, writes their verdicts, and keeps a closed gate closed over restarts.

An audit that finds no seat is asked again until core lets it expire. It is never dropped: the client gets an answer
that is to be audited only after the audit has been kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import msgspec

from headway.auto.audits import AuditedCall, Audits
from headway.auto.gate import GateCalibration, differ
from headway.auto.held_answer import HeldAnswer
from headway.auto.requests import read_answer
from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AuditNotKept,
    AuditRecalled,
    AutoLeft,
    CloseGate,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustEvent,
    TrustPolicy,
    Verdict,
    WriteVerdict,
)
from headway.core.types import Ticked, Tier
from headway.errors import AnswerTooLarge, EngineAnswered, HeadwayError, InvalidRequest
from headway.gateway.metrics import Metrics
from headway.ledger.audits import AuditRow
from headway.ledger.sealing import SealBroken
from headway.ledger.store import StoreRefused, StoreUnavailable
from headway.supervise import Supervisor
from headway.wire import Client, Receipt, Request

log = logging.getLogger("headway.gateway")

AT_ONCE = 8  # audits that are asked at the same time
RETRY_S = 1.0  # after an audit found no seat, or the store was away
TICK_S = 5.0
UNREADABLE = (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError)

Handle = Callable[[Request, Client], Awaitable[Receipt]]
ReadChat = Callable[[bytes, str], Request]


class Record(Protocol):
    """Writes what core was told and what it decided (dispatch/record.py)."""

    def begin_trust(self, model: str, policy: TrustPolicy) -> None: ...
    def append_trust(self, model: str, now: float, event: TrustEvent, decisions: list[TrustDecision]) -> None: ...


@dataclass(frozen=True, slots=True)
class GateSettings:
    model: str  # name of the auto model
    calibration: GateCalibration
    policy: TrustPolicy
    closed_file: Path  # exists while the gate is closed
    audit_tier: Tier


class LiveGate:
    def __init__(
        self,
        settings: GateSettings,
        audits: Audits,
        read_chat: ReadChat,
        metrics: Metrics,
        record: Record | None = None,
        clock: Callable[[], float] = time.time,  # audits outlive a process, so their age is by the clock on the wall
    ) -> None:
        self.calibration = settings.calibration
        self.trust = Trust(settings.policy)
        self._settings = settings
        self._audits = audits
        self._read_chat = read_chat
        self._metrics = metrics
        self._record = record
        self._clock = clock
        self._is_recalled = False
        self._due: asyncio.Queue[int] = asyncio.Queue()
        self._ended: list[AuditRow] = []
        self._has_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[AskFull | None]] = set()
        model = settings.model
        metrics.auto_gate.labels(model).set_function(lambda: float(not self.trust.is_closed))
        metrics.auto_waiting.labels(model).set_function(lambda: float(len(self.trust.waiting)))
        if record is not None:
            record.begin_trust(model, settings.policy)

    @property
    def can_keep(self) -> bool:
        """Whether an audit can be kept now. False until the audits of the last run are known."""
        return self._is_recalled and self._audits.is_available

    # --- core ---

    def tell(self, event: TrustEvent) -> AskStudent | AskFull | TakeAnswer | None:
        """Returns what to do with the call that the event is about; None if it is about none."""
        now = self._clock()
        decisions = self.trust.step(event, now)
        if self._record is not None:
            self._record.append_trust(self._settings.model, now, event, decisions)
        about_call: AskStudent | AskFull | TakeAnswer | None = None
        for decision in decisions:
            if isinstance(decision, WriteVerdict):
                row = AuditRow(decision.number, decision.budget, round(now * 1e6), decision.verdict)
                self._ended.append(row)
                self._has_ended.set()
                self._metrics.auto_audits.labels(self._settings.model, decision.verdict).inc()
            elif isinstance(decision, CloseGate):
                self._close(decision.reason)
            else:
                about_call = decision
        return about_call

    def leave(self, call_id: str) -> None:
        """Forget a call that ended before the student's answer was weighed."""
        if self.trust.has_asked(call_id):
            self.tell(AutoLeft(call_id))

    def _close(self, reason: str) -> None:
        log.error("the gate of %s is closed: %s", self._settings.model, reason)
        try:
            self._settings.closed_file.write_text(reason + "\n", encoding="utf-8")
        except OSError as error:
            log.error("the gate may be open again after a restart, because its state cannot be written: %s", error)

    # --- keeping audits ---

    async def keep(self, take: TakeAnswer, call: AuditedCall) -> AskFull | None:
        """Keep an audit. Returns None when it is kept, or what to do instead. Goes on if the client leaves."""
        task = asyncio.get_running_loop().create_task(self._keep(take, call))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        return await asyncio.shield(task)

    async def _keep(self, take: TakeAnswer, call: AuditedCall) -> AskFull | None:
        try:
            await self._audits.keep(AuditRow(take.audit, take.budget, round(self._clock() * 1e6)), call)
        except (StoreUnavailable, StoreRefused) as error:
            log.warning("an audit of %s cannot be kept: %s", self._settings.model, str(error).strip())
            return cast(AskFull, self.tell(AuditNotKept(take.call_id, take.audit)))
        self._due.put_nowait(take.audit)
        return None

    # --- asking and writing, in the background ---

    def start(self, handle: Handle, supervisor: Supervisor) -> None:
        model = self._settings.model
        self._tasks = {supervisor.start(f"verdicts of {model}", self._write_verdicts)}
        for number in range(AT_ONCE):
            self._tasks.add(supervisor.start(f"audits of {model} {number}", lambda: self._ask_waiting(handle)))

    async def stop(self) -> None:
        """What waits goes on waiting in the store. A verdict that cannot be written is found again by the next run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._keeping, return_exceptions=True)
        with suppress(StoreUnavailable, StoreRefused):
            await self._write_ended()

    async def recall(self) -> None:
        """Tell core what the store knows of earlier runs. Does nothing if it has been told."""
        if self._is_recalled:
            return
        for row in await self._audits.begin():
            verdict = cast(Verdict | None, row.verdict)
            self.tell(AuditRecalled(row.number, row.budget, row.asked_us / 1e6, verdict))
        for number in self.trust.waiting:
            self._due.put_nowait(number)
        self._is_recalled = True

    async def _write_verdicts(self) -> None:
        while True:
            try:
                await self.recall()
                self.tell(Ticked())
                await self._audits.expire()
                await self._write_ended()
            except (StoreUnavailable, StoreRefused) as error:
                log.warning("the audits of %s are not written: %s", self._settings.model, str(error).strip())
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with asyncio.timeout(TICK_S):
                    await self._has_ended.wait()
            except TimeoutError:
                pass

    async def _write_ended(self) -> None:
        """Write the verdicts that are not written yet. What fails is written the next time."""
        self._has_ended.clear()
        ended = self._ended[:]
        if ended:
            await self._audits.end(ended)
            del self._ended[: len(ended)]

    async def _ask_waiting(self, handle: Handle) -> None:
        while True:
            number, is_asked = await self._due.get(), False
            try:
                verdict = await self._ask_until_answered(number, handle)
                is_asked = True
            finally:
                if not is_asked:
                    self._due.put_nowait(number)  # for the next task that asks
            if verdict is not None:
                self.tell(AuditEnded(number, verdict))

    async def _ask_until_answered(self, number: int, handle: Handle) -> Verdict | None:
        """Returns None if core has ended the audit meanwhile."""
        while number in self.trust.waiting:
            try:
                call = await self._audits.read(number)
                if call is None:
                    return "expired"  # another gateway has found that it waited for too long
                return await self._ask(call, handle)
            except SealBroken:
                return "expired"  # the secret has changed: nobody can ask it any more
            except (StoreUnavailable, StoreRefused, HeadwayError) as error:
                if _is_refusal(error):
                    return "refused"
            await asyncio.sleep(RETRY_S)
        return None

    async def _ask(self, call: AuditedCall, handle: Handle) -> Verdict:
        request = self._read_chat(call.asked, f"{call.call_id}-audit")
        held = HeldAnswer()
        await handle(replace(request, call=replace(request.call, tier=self._settings.audit_tier)), held)
        return compare(call, held.body)


def compare(call: AuditedCall, full: bytes) -> Verdict:
    """Whether the full model's answer has the same effect as the student's."""
    try:
        student = read_answer(msgspec.json.decode(call.answered), wants_json=call.wants_json)
        other = read_answer(msgspec.json.decode(full), wants_json=call.wants_json)
    except UNREADABLE:
        return "differs"
    return "differs" if differ(student, other) else "same"


def _is_refusal(error: Exception) -> bool:
    """Whether the full model would refuse the call every time."""
    if isinstance(error, EngineAnswered):
        return 400 <= error.status < 500 and error.status not in (408, 429)
    return isinstance(error, InvalidRequest | AnswerTooLarge)
