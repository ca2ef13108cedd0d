"""One auto model in service: tells core what happens, and carries out what core decides about audits.

Core decides (core/trust.py), in this process or in the dispatcher of all relays (dispatch/base.py, `GateDispatch`).
This module draws no conclusions: it keeps the audits that are due (audits.py), asks them one after another on idle
seats, writes their verdicts, and keeps a closed gate closed over restarts.

An audit that finds no seat is asked again until core lets it expire. It is never dropped: the client gets an answer
that is to be audited only after the audit has been kept.

With relays, whoever decides may be away or change. Then what is under way is not taken: a question that is not answered
is answered with the full model, and a decision that comes too late is undone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import msgspec

from headway.auto.audits import AuditedCall, Audits
from headway.auto.calibration import calibration_id
from headway.auto.gate import GateCalibration, differ
from headway.auto.held_answer import HeldAnswer
from headway.auto.requests import read_answer
from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AuditNotKept,
    AutoLeft,
    CloseGate,
    ComparisonLost,
    TakeAnswer,
    TrustDecision,
    TrustPolicy,
    Verdict,
    WriteVerdict,
)
from headway.core.types import Tier
from headway.dispatch.base import NOT_WATCHED, CallEvent, GateDispatch, GateEvent
from headway.errors import AnswerTooLarge, EngineAnswered, HeadwayError, InvalidRequest
from headway.gateway.metrics import Metrics
from headway.ledger.audits import PAGE, AuditRow
from headway.ledger.sealing import SealBroken
from headway.ledger.store import StoreRefused, StoreUnavailable
from headway.supervise import Supervisor
from headway.wire import Client, Receipt, Request

log = logging.getLogger("headway.gateway")

AT_ONCE = 8  # audits that are asked at the same time
RETRY_S = 1.0  # after an audit found no seat, or the store was away
ANSWER_S = 1.0  # for which a call waits for a decision
TICK_S = 5.0
UNREADABLE = (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError)

Handle = Callable[[Request, Client], Awaitable[Receipt]]
ReadChat = Callable[[bytes, str], Request]
CallDecision = AskStudent | AskFull | TakeAnswer


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
        dispatch: GateDispatch,
        clock: Callable[[], float] = time.time,  # audits outlive a process, so their age is by the clock on the wall
    ) -> None:
        self.model = settings.model
        self.scores = settings.calibration
        self.calibration = calibration_id(settings.calibration)
        self.policy = settings.policy
        self.last_number = 0
        self._settings = settings
        self._audits = audits
        self._read_chat = read_chat
        self._metrics = metrics
        self._dispatch = dispatch
        self._clock = clock
        self._questions: dict[str, asyncio.Future[CallDecision]] = {}  # by call
        self._asked: set[str] = set()  # calls that the student is asked, until its answer is weighed
        self._mine: dict[int, asyncio.Event] = {}  # audits to ask; set when the audit is over
        self._due: asyncio.Queue[int] = asyncio.Queue()
        self._ended: list[AuditRow] = []
        self._recall_after: int | None = None
        self._has_store_work = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: dict[int, asyncio.Task[AskFull | None]] = {}  # by number of the audit

    # --- questions ---

    @property
    def can_keep(self) -> bool:
        """Whether an audit can be kept now."""
        return self._audits.is_available

    async def ask(self, event: CallEvent) -> CallDecision:
        """Returns what to do with the call that the event is about."""
        call_id, is_heard = event.call_id, False
        self._asked.discard(call_id)
        question: asyncio.Future[CallDecision] = asyncio.get_running_loop().create_future()
        self._questions[call_id] = question
        self._dispatch.tell(self.model, event)
        try:
            async with asyncio.timeout(ANSWER_S):
                decision = await question
            is_heard = True
        except TimeoutError:
            decision = AskFull(call_id, NOT_WATCHED)
        finally:
            del self._questions[call_id]
            if not is_heard and question.done() and not question.cancelled():
                self._undo(question.result())  # the client left in the same moment
        if isinstance(decision, TakeAnswer) and not self._dispatch.may_send(self._dispatch.epoch):
            self._undo(decision)  # this process was stopped for a while, and the gate may be closed since
            decision = AskFull(call_id, NOT_WATCHED)
        if isinstance(decision, AskStudent):
            self._asked.add(call_id)
        return decision

    def tell(self, event: GateEvent) -> None:
        self._dispatch.tell(self.model, event)

    def leave(self, call_id: str) -> None:
        """Forget a call that ended before the student's answer was weighed."""
        if call_id in self._asked:
            self._asked.discard(call_id)
            self.tell(AutoLeft(call_id))

    # --- from the one who decides ---

    def decide(self, decision: TrustDecision) -> None:
        if isinstance(decision, WriteVerdict):
            self._saw(decision.number)
            row = AuditRow(decision.number, decision.budget, round(self._clock() * 1e6), decision.verdict)
            self._ended.append(row)
            self._has_store_work.set()
            self._metrics.auto_audits.labels(self.model, decision.verdict).inc()
            self.drop_audits([decision.number])
        elif isinstance(decision, CloseGate):
            self._close(decision.reason)
        else:
            self._saw(decision.audit if isinstance(decision, TakeAnswer) else 0)
            self._saw(decision.compare if isinstance(decision, AskFull) else 0)
            question = self._questions.get(decision.call_id)
            if question is None or question.done():
                self._undo(decision)
            else:
                question.set_result(decision)

    def _saw(self, number: int) -> None:
        self.last_number = max(self.last_number, number)

    def _undo(self, decision: CallDecision) -> None:
        """Nobody waits for this decision any more, so it is not carried out."""
        if isinstance(decision, AskStudent):
            self.tell(AutoLeft(decision.call_id))
        elif isinstance(decision, TakeAnswer):
            if decision.audit:
                self.tell(AuditNotKept(decision.call_id, decision.audit))
        elif decision.compare:
            self.tell(ComparisonLost(decision.compare))

    def _close(self, reason: str) -> None:
        log.error("the gate of %s is closed: %s", self.model, reason)
        self.policy = replace(self.policy, is_closed=True)
        try:
            self._settings.closed_file.write_text(reason + "\n", encoding="utf-8")
        except OSError as error:
            log.error("the gate may be open again after a restart, because its state cannot be written: %s", error)

    def forget_calls(self) -> None:
        self._asked.clear()
        for call_id, question in self._questions.items():
            if not question.done():
                question.set_result(AskFull(call_id, NOT_WATCHED))

    def audits(self) -> list[int]:
        return sorted({*self._mine, *self._keeping})

    def ask_audits(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._saw(number)
            if number not in self._mine and number not in self._keeping:
                self._mine[number] = asyncio.Event()
                self._due.put_nowait(number)

    def drop_audits(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (is_over := self._mine.pop(number, None)) is not None:
                is_over.set()

    def recall(self, after: int) -> None:
        self._recall_after = after
        self._has_store_work.set()

    # --- keeping audits ---

    async def keep(self, take: TakeAnswer, call: AuditedCall) -> AskFull | None:
        """Keep an audit. Returns None when it is kept, or what to do instead. Goes on if the client leaves."""
        task = asyncio.get_running_loop().create_task(self._keep(take, call, self._dispatch.epoch))
        self._keeping[take.audit] = task
        return await asyncio.shield(task)

    async def _keep(self, take: TakeAnswer, call: AuditedCall, epoch: int) -> AskFull | None:
        number, is_kept = take.audit, False
        try:
            is_kept = await self._audits.keep(AuditRow(number, take.budget, round(self._clock() * 1e6)), call)
            if is_kept and not self._dispatch.may_send(epoch):
                # Another one may decide now, who has read the rows before this one was there.
                is_kept = False
                await self._audits.withdraw(number)
        except (StoreUnavailable, StoreRefused) as error:
            log.warning("an audit of %s cannot be kept: %s", self.model, str(error).strip())
        finally:
            del self._keeping[number]
        if is_kept:
            self.ask_audits([number])
            return None
        decision = await self.ask(AuditNotKept(take.call_id, number))
        return decision if isinstance(decision, AskFull) else AskFull(take.call_id, NOT_WATCHED)

    # --- asking and writing, in the background ---

    def start(self, handle: Handle, supervisor: Supervisor) -> None:
        self._dispatch.join(self)
        self._tasks = {supervisor.start(f"verdicts of {self.model}", self._use_store)}
        for number in range(AT_ONCE):
            self._tasks.add(supervisor.start(f"audits of {self.model} {number}", lambda: self._ask_waiting(handle)))

    async def stop(self) -> None:
        """What waits goes on waiting in the store. A verdict that cannot be written is found again by the next run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._keeping.values(), return_exceptions=True)
        with suppress(StoreUnavailable, StoreRefused):
            await self._write_ended()

    async def _use_store(self) -> None:
        while True:
            self._has_store_work.clear()
            try:
                await self._audits.expire()
                await self._write_ended()
                await self._read_page()
            except (StoreUnavailable, StoreRefused) as error:
                log.warning("the audits of %s are not written: %s", self.model, str(error).strip())
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._has_store_work.wait()

    async def _write_ended(self) -> None:
        """Write the verdicts that are not written yet. What fails is written the next time."""
        while ended := self._ended[:PAGE]:
            await self._audits.end(ended)
            del self._ended[: len(ended)]
            self._dispatch.written(self.model, [row.number for row in ended])

    async def _read_page(self) -> None:
        """Read rows for whoever decides, if it has asked for them."""
        if (after := self._recall_after) is None:
            return
        rows, now = await self._audits.page(after), self._clock()
        if self._recall_after == after:
            self._recall_after = None
        recalled = [
            (row.number, row.budget, now - row.asked_us / 1e6, cast(Verdict | None, row.verdict)) for row in rows
        ]
        self._dispatch.recalled(self.model, after, recalled, is_all=len(rows) < PAGE)

    async def _ask_waiting(self, handle: Handle) -> None:
        while True:
            number, is_over = await self._due.get(), False
            try:
                await self._ask_until_over(number, handle)
                is_over = True
            finally:
                if not is_over:
                    self._due.put_nowait(number)  # for the next task that asks

    async def _ask_until_over(self, number: int, handle: Handle) -> None:
        """Ask an audit until core has its verdict, or until it is not this gateway's any more."""
        verdict: Verdict | None = None
        while (is_over := self._mine.get(number)) is not None:
            if verdict is None:
                verdict = await self._ask_once(number, handle)
            if verdict is not None:
                self.tell(AuditEnded(number, verdict))
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await is_over.wait()

    async def _ask_once(self, number: int, handle: Handle) -> Verdict | None:
        """Returns None if there is no verdict yet."""
        try:
            found = await self._audits.read(number)
            if found is None:  # it was not kept, so its answer was not delivered
                self.drop_audits([number])
                self.tell(AuditNotKept("", number))
                return None
            return await self._compare(found, handle) if isinstance(found, AuditedCall) else found
        except SealBroken:
            return "expired"  # the secret has changed: nobody can ask it any more
        except (StoreUnavailable, StoreRefused, HeadwayError) as error:
            return "refused" if _is_refusal(error) else None

    async def _compare(self, call: AuditedCall, handle: Handle) -> Verdict:
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
