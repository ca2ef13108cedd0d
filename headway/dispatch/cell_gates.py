"""The gates of auto models, decided about in the dispatcher: one core/trust.py for each model, over all relays.

It holds nothing that its relays cannot tell it, or read from the store that they share. A dispatcher that starts knows
no verdict. It waits until nobody can deliver what an earlier one let through, lets one relay read the rows of the
sample, and decides nothing before it has all: until then the full model answers.

Each relay asks the audits of the answers that it took. Those of a relay that is gone, or of an earlier dispatcher, are
dealt out. A verdict is written by the relay that caused it, and by another one if that is gone before it has said that
it is written.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
from prometheus_client.core import Metric

from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AuditNotKept,
    AutoArrived,
    AutoLeft,
    CloseGate,
    ComparisonLost,
    NumbersUsed,
    StudentFailed,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustPolicy,
    WriteVerdict,
)
from headway.dispatch.base import NOT_WATCHED, CallEvent, GateEvent
from headway.dispatch.frames import (
    DealAudits,
    FromRelay,
    GateDecided,
    GateJoined,
    GateRecalled,
    GateTold,
    Message,
    Recall,
    VerdictsWritten,
)
from headway.dispatch.policy_metrics import gate_metrics
from headway.dispatch.rows import build
from headway.dispatch.watched import TrustRecord, WatchedModel

log = logging.getLogger("headway.dispatch")

RECALL_S = 5.0  # for one page of rows; then another relay is asked for it


class SendingLink(Protocol):
    def send(self, message: Message) -> None: ...


class GateSession(Protocol):
    """A relay, as long as it is connected (sessions.py)."""

    relay: str
    run: str

    @property
    def link(self) -> SendingLink: ...


@dataclass(slots=True)
class _Member:
    """The gate of one relay."""

    session: GateSession
    joined: GateJoined
    policy: TrustPolicy  # as if the gate were open
    is_closed: bool
    lost_at: float | None = None

    def send(self, message: Message) -> None:
        self.session.link.send(message)


class CellGates:
    """All auto models of a cell."""

    def __init__(
        self,
        record: TrustRecord | None,
        gone_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """A relay that has been lost for `gone_s` delivers nothing: its lease has ended."""
        self.models: dict[str, CellGate] = {}
        self._record = record
        self._gone_s = gone_s
        self._clock = clock
        self._wall_clock = wall_clock

    def on_message(self, session: GateSession, message: FromRelay) -> None:
        if isinstance(message, GateJoined):
            if message.model not in self.models:
                self.models[message.model] = CellGate(
                    message.model, self._record, self._gone_s, self._clock, self._wall_clock
                )
            self.models[message.model].join(session, message)
        elif isinstance(message, GateTold):
            for event in message.events:
                self._tell(session, message.model, event)
        elif isinstance(message, GateRecalled) and (gate := self.models.get(message.model)) is not None:
            gate.recalled(session, message)
        elif isinstance(message, VerdictsWritten) and (gate := self.models.get(message.model)) is not None:
            gate.written(message.numbers)

    def _tell(self, session: GateSession, model: str, event: GateEvent) -> None:
        if (gate := self.models.get(model)) is not None and gate.is_watched_for(session):
            gate.tell(session.run, event)
        elif isinstance(event, CallEvent):
            session.link.send(GateDecided(model, [AskFull(event.call_id, NOT_WATCHED)]))

    def on_lost(self, session: GateSession) -> None:
        for gate in self.models.values():
            gate.lose(session)

    def tick(self, *, may_begin: bool) -> None:
        """`may_begin`: nobody can deliver any more what an earlier dispatcher decided."""
        for gate in self.models.values():
            gate.tick(may_begin=may_begin)

    def metrics(self) -> Iterable[Metric]:
        return gate_metrics({model: gate.trust for model, gate in self.models.items()})


@dataclass(slots=True)
class CellGate:
    """One auto model. All numbers are those of sampled calls."""

    model: str
    record: TrustRecord | None
    gone_s: float
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    members: dict[str, _Member] = field(default_factory=dict)  # by run
    watched: WatchedModel | None = None
    asked: dict[str, str] = field(default_factory=dict)  # calls that the student is asked: call -> run
    compared: dict[int, str] = field(default_factory=dict)  # calls in doubt: number -> run
    asker: dict[int, str] = field(default_factory=dict)  # audits that wait: number -> run of the relay that asks it
    unwritten: dict[int, tuple[WriteVerdict, str]] = field(default_factory=dict)  # number -> verdict, run
    _pattern: _Member | None = None  # whose calibration and policy are those of the cell
    _reader: str = ""  # run of the relay that reads the rows
    _read_at: float = 0.0

    @property
    def trust(self) -> Trust | None:
        """None until it knows all verdicts."""
        return self.watched.trust if self.watched is not None and self.watched.is_rebuilt else None

    def is_watched_for(self, session: GateSession) -> bool:
        member = self.members.get(session.run)
        return self.trust is not None and member is not None and self._is_alike(member)

    def _is_alike(self, member: _Member) -> bool:
        return self._pattern is not None and (
            (member.joined.calibration, member.policy) == (self._pattern.joined.calibration, self._pattern.policy)
        )

    def _present(self) -> list[_Member]:
        present = [one for one in self.members.values() if one.lost_at is None]
        return sorted(present, key=lambda one: one.session.relay)

    # --- relays ---

    def join(self, session: GateSession, joined: GateJoined) -> None:
        try:
            policy: TrustPolicy = build(TrustPolicy, msgspec.json.decode(joined.policy))
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
            log.warning("relay %s has no valid policy of %s: %s", session.relay, self.model, error)
            return
        if (earlier := self.members.get(session.run)) is not None and earlier.session is not session:
            self.lose(earlier.session)
        member = _Member(session, joined, replace(policy, is_closed=False), policy.is_closed)
        self.members[session.run] = member
        if self._pattern is not None and not self._is_alike(member):
            log.warning(
                "relay %s has another calibration of %s than the others, or other budgets: it uses the full model "
                "until all relays have been restarted",
                session.relay,
                self.model,
            )
            self._deal(member, [], joined.audits)
        elif self.watched is not None and self.trust is not None:
            self.watched.step(NumbersUsed(joined.last_number))
            own = {number for number, run in self.asker.items() if run == session.run}
            self._deal(member, sorted(own.difference(joined.audits)), sorted(set(joined.audits) - own))
            for verdict, run in self.unwritten.values():
                if run == session.run:
                    self._decide(member, verdict)

    def lose(self, session: GateSession) -> None:
        """Nothing of its calls under way is taken. Its audits stay its own until it is gone for good."""
        member = self.members.get(session.run)
        if member is None or member.session is not session:
            return
        member.lost_at = self.clock()
        for call_id in [call_id for call_id, run in self.asked.items() if run == session.run]:
            self.tell(session.run, AutoLeft(call_id))
        for number in [number for number, run in self.compared.items() if run == session.run]:
            self.tell(session.run, ComparisonLost(number))

    def tick(self, *, may_begin: bool) -> None:
        now = self.clock()
        for run, member in list(self.members.items()):
            if member.lost_at is not None and now - member.lost_at >= self.gone_s:
                del self.members[run]
        if not any(map(self._is_alike, self.members.values())):
            self._pattern = self.watched = None
        if self.watched is None:
            if may_begin and self._present():
                self._begin()
        elif self.trust is None:
            if now - self._read_at >= RECALL_S or self._reader not in self.members:
                self._read()
        else:
            self._carry_out(self.watched.tick(), "")
            self._deal_orphans()

    # --- the rows of the sample ---

    def _begin(self) -> None:
        self._pattern = self._present()[0]
        alike = [one for one in self.members.values() if self._is_alike(one)]
        policy = replace(self._pattern.policy, is_closed=any(one.is_closed for one in alike))
        self.watched = WatchedModel(self.model, policy, self.record, self.wall_clock)
        self.watched.step(NumbersUsed(max(one.joined.last_number for one in alike)))
        for table in (self.asked, self.compared, self.asker, self.unwritten):
            table.clear()
        self._read()

    def _read(self) -> None:
        """Ask a relay for the next page: the one after the last that was asked for this page."""
        assert self.watched is not None
        alike = [one for one in self._present() if self._is_alike(one)]
        if alike:
            runs = [one.session.run for one in alike]
            member = alike[(runs.index(self._reader) + 1) % len(runs) if self._reader in runs else 0]
            self._ask_page(member)

    def _ask_page(self, member: _Member) -> None:
        assert self.watched is not None
        self._reader, self._read_at = member.session.run, self.clock()
        member.send(Recall(self.model, self.watched.recalled_to))

    def recalled(self, session: GateSession, page: GateRecalled) -> None:
        watched, member = self.watched, self.members.get(session.run)
        if watched is None or watched.is_rebuilt or member is None or not self._is_alike(member):
            return
        if page.after != watched.recalled_to:
            return
        self._carry_out(watched.recall(page.after, page.rows, is_all=page.is_all), session.run)
        if not watched.is_rebuilt:
            self._ask_page(member)
            return
        log.info("the watch over %s goes on after number %d", self.model, watched.recalled_to)
        for one in self.members.values():
            free = watched.trust.waiting.keys() - self.asker.keys() if self._is_alike(one) else set()
            own = free.intersection(one.joined.audits)
            self.asker.update(dict.fromkeys(own, one.session.run))
            self._deal(one, [], sorted(set(one.joined.audits) - own))
        self._deal_orphans()

    # --- events ---

    def tell(self, run: str, event: GateEvent) -> None:
        if not self._is_known(run, event):
            member = self.members[run]
            if isinstance(event, CallEvent):
                self._decide(member, AskFull(event.call_id, NOT_WATCHED))
            elif isinstance(event, AuditEnded):
                self._deal(member, [], [event.number])
            return
        assert self.watched is not None
        if isinstance(event, ComparisonLost | AuditEnded):
            self.compared.pop(event.number, None)
        elif isinstance(event, AuditNotKept):
            self.asker.pop(event.number, None)
        elif not isinstance(event, AutoArrived):
            self.asked.pop(event.call_id, None)
        self._carry_out(self.watched.step(event), run)

    def _is_known(self, run: str, event: GateEvent) -> bool:
        """Whether the event is about something that this relay was told. If not, it belongs to the time before the
        relay was lost, or before this dispatcher."""
        trust = self.trust
        if trust is None:
            return False
        if isinstance(event, AutoArrived):
            return event.call_id not in self.asked
        if isinstance(event, StudentFailed):
            return self.asked.get(event.call_id, run) == run  # of free text, nothing is known
        if isinstance(event, AuditNotKept):
            return event.number in trust.waiting and self.asker.get(event.number) == run
        if isinstance(event, ComparisonLost):
            return self.compared.get(event.number) == run
        if isinstance(event, AuditEnded):
            return event.number in trust.waiting or self.compared.get(event.number) == run
        return self.asked.get(event.call_id) == run

    def _carry_out(self, decisions: Sequence[TrustDecision], run: str) -> None:
        """`run` is the relay that caused them; empty: none did."""
        for decision in decisions:
            if isinstance(decision, CloseGate):
                log.error("the gate of %s is closed: %s", self.model, decision.reason)
                for member in self._present():
                    self._decide(member, decision)
            elif isinstance(decision, WriteVerdict):
                by = run or self.asker.get(decision.number, "")
                self.asker.pop(decision.number, None)
                self.unwritten[decision.number] = decision, by
                self._decide(self.members.get(by), decision)
            else:
                self._note(decision, run)
                self._decide(self.members.get(run), decision)

    def _note(self, decision: AskStudent | AskFull | TakeAnswer, run: str) -> None:
        if isinstance(decision, AskStudent):
            self.asked[decision.call_id] = run
        elif isinstance(decision, TakeAnswer):
            if decision.audit:
                self.asker[decision.audit] = run
        elif decision.compare:
            self.compared[decision.compare] = run

    def written(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.unwritten.pop(number, None)

    # --- to relays ---

    def _decide(self, member: _Member | None, decision: TrustDecision) -> None:
        if member is not None:
            member.send(GateDecided(self.model, [decision]))

    def _deal(self, member: _Member, ask: list[int], drop: list[int]) -> None:
        if ask or drop:
            member.send(DealAudits(self.model, ask, drop))

    def _deal_orphans(self) -> None:
        """Give what nobody asks, or writes, to relays that are there: each to the one that asks the fewest."""
        present = {one.session.run: one for one in self._present() if self._is_alike(one)}
        if not present or self.trust is None:
            return
        load = Counter(dict.fromkeys(present, 0))
        load.update(run for run in self.asker.values() if run in present)
        for number in self.trust.waiting:
            if self.asker.get(number) not in self.members:
                run = min(present, key=lambda one: load[one])
                load[run] += 1
                self.asker[number] = run
                self._deal(present[run], [number], [])
        for number, (verdict, by) in self.unwritten.items():
            if by not in self.members:
                run = next(iter(present))
                self.unwritten[number] = verdict, run
                self._decide(present[run], verdict)
