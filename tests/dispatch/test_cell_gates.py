"""One watch over an auto model for all relays: the dispatcher counts as one process would, whoever comes and goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.core.machine import Machine
from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditEnded,
    AuditNotKept,
    AuditRecalled,
    AutoArrived,
    AutoLeft,
    CloseGate,
    ComparisonLost,
    LimitPolicy,
    StudentAnswered,
    StudentFailed,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustPolicy,
    Verdict,
    WriteVerdict,
)
from headway.dispatch.base import NOT_WATCHED, GateEvent
from headway.dispatch.cell_gates import CellGate
from headway.dispatch.codec import decode_from_dispatcher, decode_from_relay, encode
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.engine_counts import MARGIN_S
from headway.dispatch.frames import (
    PROTOCOL,
    Beat,
    DealAudits,
    FromRelay,
    GateDecided,
    GateJoined,
    GateRecalled,
    GateTold,
    Hello,
    Message,
    Recall,
    Reported,
    VerdictsWritten,
)
from headway.dispatch.record import EventLog, replay
from headway.dispatch.sessions import LEASE_S, RelaySession

MODEL = "m-auto"
LIMITS = [LimitPolicy(0.02, 0.5, 0.05, 0.4), LimitPolicy(0.1, 0.2, 0.12, 0.3)]
POLICY = TrustPolicy(LIMITS, {"key-b": 1}, max_waiting=6)
GONE_S = LEASE_S + MARGIN_S


@dataclass
class Store:
    """The rows of the sample: budget and verdict, by number. None: it waits."""

    rows: dict[int, tuple[float, Verdict | None]] = field(default_factory=dict)

    def rebuilt(self) -> Trust:
        trust = Trust(POLICY)
        for number in sorted(self.rows):
            budget, verdict = self.rows[number]
            trust.step(AuditRecalled(number, budget, 0.0, verdict), 0.0)
        return trust


class OneEnd:
    """A link whose other end is the test. What is sent is encoded and decoded, as on a real one."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_closed = False

    def send(self, message: Message) -> None:
        if not self.is_closed:
            self.sent.append(decode_from_dispatcher(encode(message)))

    def close(self, _reason: str) -> None:
        self.is_closed = True


@dataclass
class Relay:
    name: str
    store: Store
    calibration: str = "calibration"
    policy: TrustPolicy = field(default_factory=lambda: POLICY)
    last_number: int = 0
    decided: list[TrustDecision] = field(default_factory=list)  # about calls
    audits: set[int] = field(default_factory=set)
    to_write: list[WriteVerdict] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    compared: set[int] = field(default_factory=set)
    closed: str = ""
    session: RelaySession | None = None
    link: OneEnd = field(default_factory=OneEnd)

    def connect(self, dispatcher: Dispatcher) -> None:
        self.link = OneEnd()
        self.session = dispatcher.make_session(self.link)  # type: ignore[arg-type]
        self.say(Hello(PROTOCOL, self.name, f"run of {self.name}", 0, ""))
        policy = replace(self.policy, is_closed=bool(self.closed))
        text = msgspec.json.encode(policy).decode()
        self.say(GateJoined(MODEL, self.calibration, text, self.last_number, sorted(self.audits)))
        self.say(Reported())

    def disconnect(self) -> None:
        assert self.session is not None
        self.read()
        self.link.is_closed = True
        self.session.on_lost("cut off")
        self.session = None
        self.asked.clear()
        self.compared.clear()

    def say(self, message: FromRelay) -> None:
        assert self.session is not None
        self.session.on_message(decode_from_relay(encode(message)))

    def tell(self, event: GateEvent) -> list[TrustDecision]:
        """Returns what was decided about calls."""
        self.say(GateTold(MODEL, [event]))
        self.read()
        decided, self.decided = self.decided, []
        return decided

    def read(self) -> None:
        sent, self.link.sent = self.link.sent, []
        for message in sent:
            if isinstance(message, GateDecided):
                for decision in message.decisions:
                    self._read_decision(decision)
            elif isinstance(message, Recall):
                rows = [
                    (number, budget, 0.0, verdict)
                    for number, (budget, verdict) in sorted(self.store.rows.items())
                    if number > message.after
                ]
                self.say(GateRecalled(MODEL, message.after, rows[:3], is_all=len(rows) <= 3))
                self.read()
            elif isinstance(message, DealAudits):
                self.audits -= set(message.drop)
                self.audits |= set(message.ask)

    def _read_decision(self, decision: TrustDecision) -> None:
        if isinstance(decision, WriteVerdict):
            self.to_write.append(decision)
            self.audits.discard(decision.number)
            self.last_number = max(self.last_number, decision.number)
        elif isinstance(decision, CloseGate):
            self.closed = decision.reason
        else:
            self.decided.append(decision)

    def write(self) -> None:
        for one in self.to_write:
            before = self.store.rows.get(one.number, (one.budget, None))[1]
            self.store.rows[one.number] = one.budget, before or one.verdict
        if self.session is not None and self.to_write:
            self.say(VerdictsWritten(MODEL, [one.number for one in self.to_write]))
        self.to_write.clear()


class Cell:
    def __init__(self, relays: int, record: Path | None = None) -> None:
        self.now = 100.0
        self.store = Store()
        self.relays = [Relay(f"relay-{number}", self.store) for number in range(relays)]
        self.epoch = 0
        self.record: EventLog | None = None
        self.lead(record)

    def lead(self, record: Path | None = None) -> None:
        self.epoch += 1
        self.record = EventLog(record, {}, {}) if record is not None else None
        names = [relay.name for relay in self.relays]
        self.dispatcher = Dispatcher(Machine({}, {}), [], self.epoch, "", names, self.record, lambda: self.now)
        for relay in self.relays:
            relay.connect(self.dispatcher)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            for relay in self.relays:
                if relay.session is not None:
                    relay.say(Beat(1, 0))
            self.dispatcher.tick()
            for relay in self.relays:
                relay.read()

    @property
    def gate(self) -> CellGate:
        return self.dispatcher.gates.models[MODEL]

    @property
    def trust(self) -> Trust:
        assert self.gate.trust is not None
        return self.gate.trust


class Walk:
    """Random events of the relays of a cell, and the same ones told to one process."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.dice = random.Random(seed)
        self.alone = Trust(POLICY)
        self.alone_decided: list[TrustDecision] = []
        self.calls = 0

    def tell(self, relay: Relay, event: GateEvent) -> None:
        decided = relay.tell(event)
        expected = self.alone.step(event, 0.0)
        assert decided == [one for one in expected if not isinstance(one, WriteVerdict | CloseGate)]
        for one in decided:
            if isinstance(one, AskStudent):
                relay.asked.add(one.call_id)
            elif isinstance(one, TakeAnswer) and one.audit:
                self._keep(relay, one)
            elif isinstance(one, AskFull) and one.compare:
                relay.compared.add(one.compare)
                relay.last_number = max(relay.last_number, one.compare)
        self.check()

    def _keep(self, relay: Relay, take: TakeAnswer) -> None:
        relay.last_number = max(relay.last_number, take.audit)
        if self.dice.random() < 0.1:
            self.tell(relay, AuditNotKept(take.call_id, take.audit))
            return
        self.cell.store.rows[take.audit] = take.budget, None
        relay.audits.add(take.audit)

    def check(self) -> None:
        self.cell.trust.check()
        for tenant in ("", "key-b"):
            assert self.cell.trust.watch_of(tenant) == self.alone.watch_of(tenant)
            assert self.cell.trust.is_in_doubt(tenant) == self.alone.is_in_doubt(tenant)
        assert list(self.cell.trust.waiting) == list(self.alone.waiting)
        assert self.cell.trust.is_closed == self.alone.is_closed

    def step(self) -> None:
        dice = self.dice
        relay = dice.choice(self.cell.relays)
        often = ["call", "call", "answer", "answer", "answer", "audit", "audit", "audit", "compare", "compare"]
        what = dice.choice([*often, "write", "lose", "wait"])
        if relay.session is None:
            relay.connect(self.cell.dispatcher)
            relay.read()
        elif what == "call":
            self.calls += 1
            self.tell(relay, AutoArrived(f"call {self.calls}", dice.choice(["", "key-b"]), dice.random()))
        elif what == "answer" and relay.asked:
            call_id = dice.choice(sorted(relay.asked))
            relay.asked.discard(call_id)
            events: list[GateEvent] = [StudentAnswered(call_id, 0.9)] * 6
            events += [StudentAnswered(call_id, 0.1), StudentFailed(call_id, "student failed"), AutoLeft(call_id)]
            self.tell(relay, dice.choice(events))
        elif what == "audit" and relay.audits:
            number = dice.choice(sorted(relay.audits))
            self.tell(relay, AuditEnded(number, "differs" if dice.random() < 0.03 else "same"))
        elif what == "compare" and relay.compared:
            number = relay.compared.pop()
            self.tell(relay, AuditEnded(number, "same") if dice.random() < 0.8 else ComparisonLost(number))
        elif what == "write":
            relay.write()
        elif what == "lose" and dice.random() < 0.2:
            for call_id in list(self.cell.gate.asked):
                if call_id in relay.asked:
                    self.alone.step(AutoLeft(call_id), 0.0)
            for number in list(self.cell.gate.compared):
                if number in relay.compared:
                    self.alone.step(ComparisonLost(number), 0.0)
            relay.disconnect()
            self.check()
        elif what == "wait":
            self.cell.wait(1.0)


@pytest.mark.parametrize("seed", range(30))
def test_four_relays_count_as_one_process_with_the_same_events(seed: int, tmp_path: Path) -> None:
    record = tmp_path / "events"
    cell = Cell(4, record)
    cell.wait(GONE_S + 0.5)
    walk = Walk(cell, seed)
    for _ in range(600):
        walk.step()
    assert walk.alone.watch_of("").audited + walk.alone.watch_of("key-b").audited > 10
    for relay in cell.relays:
        if relay.session is None:
            relay.connect(cell.dispatcher)
    cell.wait(2.0)
    # Every audit that waits is asked by exactly one relay.
    asked = sorted(number for relay in cell.relays for number in relay.audits)
    assert asked == sorted(cell.trust.waiting)
    for relay in cell.relays:
        relay.write()
    assert cell.gate.unwritten == {}
    cell.dispatcher.close()
    assert replay(record).first_difference is None


@pytest.mark.parametrize("seed", range(30))
def test_the_next_dispatcher_rebuilds_the_watch_from_the_store(seed: int) -> None:
    cell = Cell(4)
    cell.wait(GONE_S + 0.5)
    walk = Walk(cell, seed)
    for _ in range(300):
        walk.step()
    for relay in cell.relays:
        if relay.session is None:
            relay.connect(cell.dispatcher)
    cell.wait(2.0)
    for relay in cell.relays:
        relay.write()
    before, highest = cell.trust, max(cell.store.rows, default=0)
    under_way = sorted({number for relay in cell.relays for number in relay.audits})
    for relay in cell.relays:
        relay.disconnect()
    cell.lead()
    relay = cell.relays[0]
    assert relay.tell(AutoArrived("early", "", 0.9)) == [AskFull("early", NOT_WATCHED)]
    cell.wait(GONE_S + 0.5)
    assert cell.trust.watch_of("") == cell.store.rebuilt().watch_of("")
    assert cell.trust.is_closed == before.is_closed
    assert sorted(number for one in cell.relays for number in one.audits) == sorted(cell.trust.waiting) == under_way
    if not cell.trust.is_closed and not cell.trust.is_in_doubt("") and len(cell.trust.waiting) <= POLICY.max_waiting:
        relay.tell(AutoArrived("next", "", 0.0))
        [taken] = relay.tell(StudentAnswered("next", 0.9))
        assert isinstance(taken, TakeAnswer)
        assert taken.audit > max(highest, *(one.last_number for one in cell.relays if one is not relay))


def started(relays: int = 2) -> Cell:
    cell = Cell(relays)
    cell.wait(GONE_S + 0.5)
    return cell


def take_audited(relay: Relay, call_id: str) -> int:
    relay.tell(AutoArrived(call_id, "", 0.0))
    [taken] = relay.tell(StudentAnswered(call_id, 0.9))
    assert isinstance(taken, TakeAnswer)
    relay.audits.add(taken.audit)
    relay.store.rows[taken.audit] = taken.budget, None
    return taken.audit


def test_nothing_is_decided_before_the_rows_are_read() -> None:
    cell = Cell(2)
    relay = cell.relays[0]
    free_text = AutoArrived("free", "", 0.5, prompt_score=1.0)
    for event in (AutoArrived("a", "", 0.5), free_text, StudentAnswered("b", 1.0), AuditNotKept("c", 1)):
        assert relay.tell(event) == [AskFull(event.call_id, NOT_WATCHED)]
    cell.wait(GONE_S + 0.5)
    assert relay.tell(AutoArrived("a", "", 0.9)) == [AskStudent("a")]


def test_a_close_reaches_every_relay_and_the_next_dispatcher() -> None:
    cell = started(4)
    number = take_audited(cell.relays[0], "first")
    cell.relays[0].tell(AuditEnded(number, "differs"))
    for count in range(60):
        relay = cell.relays[count % 4]
        relay.tell(AutoArrived(f"call {count}", "", 0.9))
        [decision] = relay.tell(StudentAnswered(f"call {count}", 0.9))
        if not isinstance(decision, AskFull) or not decision.compare:
            break
        relay.tell(AuditEnded(decision.compare, "differs"))
        if cell.trust.is_closed:
            break
    assert cell.trust.is_closed
    for relay in cell.relays:
        relay.read()
        assert "differ" in relay.closed
        assert relay.tell(AutoArrived(f"late {relay.name}", "", 0.9)) == [AskFull(f"late {relay.name}", "closed")]
        relay.disconnect()
    cell.store.rows.clear()  # even if no verdict was written
    cell.lead()
    cell.wait(GONE_S + 0.5)
    assert cell.trust.is_closed


def test_the_audits_and_verdicts_of_a_relay_that_is_gone_go_to_another() -> None:
    cell = started()
    gone, other = cell.relays
    number, ended = take_audited(gone, "a"), take_audited(gone, "b")
    gone.tell(AuditEnded(ended, "same"))
    gone.disconnect()
    cell.wait(1.0)
    assert other.audits == set()
    cell.wait(1.0)
    assert other.audits == {number}
    assert [one.number for one in other.to_write] == [ended]
    gone.connect(cell.dispatcher)  # it was cut off, and not dead
    gone.read()
    assert gone.audits == set()
    gone.tell(AuditEnded(number, "differs"))  # it had asked it already
    other.tell(AuditEnded(number, "same"))
    assert cell.trust.waiting == {}


def test_a_relay_with_another_calibration_uses_the_full_model_until_all_have_it() -> None:
    cell = started()
    old, new = cell.relays
    new.disconnect()
    new.calibration = "new"
    new.connect(cell.dispatcher)
    assert new.tell(AutoArrived("a", "", 0.9)) == [AskFull("a", NOT_WATCHED)]
    assert old.tell(AutoArrived("b", "", 0.9)) == [AskStudent("b")]
    old.disconnect()
    old.calibration = "new"
    cell.wait(GONE_S + 0.5)
    old.connect(cell.dispatcher)
    cell.wait(0.5)
    assert [relay.tell(AutoArrived(relay.name, "", 0.9)) for relay in cell.relays] == [
        [AskStudent(relay.name)] for relay in cell.relays
    ]


def test_another_relay_reads_the_rows_if_one_does_not() -> None:
    cell = Cell(2)
    cell.store.rows = dict.fromkeys(range(1, 9), (0.02, "same"))
    silent = cell.relays[0]
    read: Callable[[], None] = silent.read
    silent.read = lambda: None  # type: ignore[method-assign]
    cell.wait(GONE_S + 0.5)
    assert cell.gate.trust is None
    cell.wait(6.0)
    assert cell.trust.watch_of("").audited == 8
    silent.read = read  # type: ignore[method-assign]
    silent.read()  # its page comes too late
    assert cell.trust.watch_of("").audited == 8


def test_an_invalid_policy_is_not_taken() -> None:
    cell = started()
    relay = cell.relays[0]
    for policy in ("{}", "[]", '{"limits": [1]}', '{"limits": 7}', "no JSON"):
        relay.say(GateJoined(MODEL, "calibration", policy, 0, []))
    assert relay.tell(AutoArrived("a", "", 0.9)) == [AskStudent("a")]
