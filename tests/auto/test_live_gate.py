"""A gate whose decisions come from another process: late, not at all, or from one that does not decide any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headway.api import openai
from headway.auto import live_gate as live_gate_module
from headway.auto.audits import AuditedCall, MemoryAudits
from headway.auto.live_gate import GateSettings, LiveGate
from headway.core.trust import (
    AskFull,
    AskStudent,
    AuditNotKept,
    AutoArrived,
    AutoLeft,
    CloseGate,
    ComparisonLost,
    LimitPolicy,
    StudentAnswered,
    TakeAnswer,
    TrustPolicy,
    WriteVerdict,
)
from headway.dispatch.base import NOT_WATCHED, GateDriver, GateEvent, RecalledRow
from tests.auto.test_serve import calibration, metrics

pytestmark = pytest.mark.anyio
ARRIVED, ANSWERED = AutoArrived("a", "", 0.5), StudentAnswered("a", 1.0)
CALL = AuditedCall("a", b"{}", b"{}", wants_json=False)


class Elsewhere:
    """Whoever decides, in another process: the test answers."""

    epoch = 1

    def __init__(self) -> None:
        self.told: list[GateEvent] = []
        self.is_leased = True

    def may_send(self, epoch: int) -> bool:
        return self.is_leased and epoch == self.epoch

    def join(self, gate: GateDriver) -> None: ...

    def tell(self, model: str, event: GateEvent) -> None:
        assert model == "m-auto"
        self.told.append(event)

    def recalled(self, model: str, after: int, rows: Sequence[RecalledRow], *, is_all: bool) -> None: ...

    def written(self, model: str, numbers: Sequence[int]) -> None: ...


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def gate(tmp_path: Path, elsewhere: Elsewhere) -> LiveGate:
    policy = TrustPolicy([LimitPolicy(0.02, 0.5, 0.03, 0.25)])
    settings = GateSettings("m-auto", calibration(), policy, tmp_path / "closed", "flex")
    return LiveGate(settings, MemoryAudits(), openai.read_chat, metrics(), elsewhere)


async def told(elsewhere: Elsewhere, event: GateEvent) -> None:
    while event not in elsewhere.told:
        await asyncio.sleep(0)


async def answered(gate: LiveGate, elsewhere: Elsewhere, event: AutoArrived | StudentAnswered, by: object) -> object:
    """What the gate does with a call about which this is decided."""
    asking = asyncio.create_task(gate.ask(event))
    await told(elsewhere, event)
    gate.decide(by)  # type: ignore[arg-type]
    return await asking


async def test_a_question_gets_the_decision_about_its_call(gate: LiveGate, elsewhere: Elsewhere) -> None:
    asking = asyncio.create_task(gate.ask(ARRIVED))
    await told(elsewhere, ARRIVED)
    gate.decide(AskStudent("another"))  # nobody waits for it
    gate.decide(AskStudent("a"))
    assert await asking == AskStudent("a")
    assert elsewhere.told == [ARRIVED, AutoLeft("another")]
    gate.leave("a")
    gate.leave("a")
    assert elsewhere.told[2:] == [AutoLeft("a")]


@pytest.mark.parametrize(
    ("late", "undone"),
    [
        (AskStudent("a"), [AutoLeft("a")]),
        (TakeAnswer("a", 3, 0.02), [AuditNotKept("a", 3)]),
        (TakeAnswer("a"), []),
        (AskFull("a", "in doubt", 4), [ComparisonLost(4)]),
        (AskFull("a", "unsure"), []),
    ],
    ids=["ask student", "take audited", "take", "compare", "ask full"],
)
async def test_a_decision_that_comes_too_late_is_undone(
    gate: LiveGate,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    late: AskStudent | TakeAnswer | AskFull,
    undone: list[GateEvent],
) -> None:
    monkeypatch.setattr(live_gate_module, "ANSWER_S", 0.001)
    assert await gate.ask(ARRIVED) == AskFull("a", NOT_WATCHED)
    gate.decide(late)
    assert elsewhere.told[1:] == undone


async def test_a_client_that_leaves_as_its_decision_comes_undoes_it(gate: LiveGate, elsewhere: Elsewhere) -> None:
    asking = asyncio.create_task(gate.ask(ARRIVED))
    await told(elsewhere, ARRIVED)
    gate.decide(AskStudent("a"))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert elsewhere.told[1:] == [AutoLeft("a")]


async def test_when_nobody_decides_any_more_nothing_under_way_is_taken(gate: LiveGate, elsewhere: Elsewhere) -> None:
    assert await answered(gate, elsewhere, ARRIVED, AskStudent("a")) == AskStudent("a")
    asking = asyncio.create_task(gate.ask(AutoArrived("b", "", 0.5)))
    await told(elsewhere, AutoArrived("b", "", 0.5))
    gate.forget_calls()
    assert await asking == AskFull("b", NOT_WATCHED)
    gate.leave("a")
    assert elsewhere.told == [ARRIVED, AutoArrived("b", "", 0.5)]


async def test_nothing_is_taken_after_the_lease(gate: LiveGate, elsewhere: Elsewhere) -> None:
    elsewhere.is_leased = False
    decided = await answered(gate, elsewhere, ANSWERED, TakeAnswer("a", 3, 0.02))
    assert decided == AskFull("a", NOT_WATCHED)
    assert elsewhere.told[1:] == [AuditNotKept("a", 3)]


async def test_an_audit_that_is_kept_after_the_lease_is_withdrawn(
    gate: LiveGate, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep: Callable[..., object] = gate._audits.keep

    async def keep_slowly(*arguments: object) -> object:
        elsewhere.epoch = 2  # another one decides meanwhile
        return await keep(*arguments)  # type: ignore[misc]

    take = await answered(gate, elsewhere, ANSWERED, TakeAnswer("a", 3, 0.02))
    assert isinstance(take, TakeAnswer)
    monkeypatch.setattr(gate._audits, "keep", keep_slowly)
    keeping = asyncio.create_task(gate.keep(take, CALL))
    await told(elsewhere, AuditNotKept("a", 3))
    gate.decide(AskFull("a", "audit not kept"))
    assert await keeping == AskFull("a", "audit not kept")
    assert await gate._audits.read(3) is None
    assert gate.audits() == []


async def test_it_says_what_the_next_one_who_decides_must_know(
    gate: LiveGate, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    take = await answered(gate, elsewhere, ANSWERED, TakeAnswer("a", 3, 0.02))
    assert isinstance(take, TakeAnswer)
    assert await gate.keep(take, CALL) is None
    gate.ask_audits([3, 5])
    assert (gate.audits(), gate.last_number) == ([3, 5], 5)
    gate.decide(WriteVerdict(7, 0.02, "escalated"))
    gate.decide(WriteVerdict(3, 0.02, "same"))
    gate.drop_audits([5, 9])
    assert (gate.audits(), gate.last_number) == ([], 7)
    assert not gate.policy.is_closed
    gate.decide(CloseGate("too many differ"))
    assert gate.policy.is_closed
    assert (tmp_path / "closed").read_text() == "too many differ\n"
