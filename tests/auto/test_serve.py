"""The auto models: what is released was weighed, what is not taken is never seen, and the full model is always there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import PermissionDeniedError

from headway.api import anthropic, openai
from headway.auto import live_gate as live_gate_module
from headway.auto.audits import Audits, MemoryAudits, StoredAudits
from headway.auto.calibration import write_calibration
from headway.auto.gate import Evidence, Gate, GateCalibration, Isotonic, PromptGuess, Seen, tool_id
from headway.auto.live_gate import GateSettings, LiveGate
from headway.auto.requests import CallRungs
from headway.auto.risk import Judged, limit_of
from headway.auto.serve import Auto
from headway.config import AutoTable, Config, ModelTable, ReplicaTable
from headway.core.trust import NEVER, AuditRecalled, Trust, TrustPolicy
from headway.dispatch.local_gates import LocalGates
from headway.dispatch.record import EventLog, replay
from headway.dispatch.watched import WatchedModel
from headway.engines.scripted import Script, running
from headway.errors import EngineAnswered, Refused
from headway.gateway.billing import make_receipt
from headway.gateway.metrics import Metrics
from headway.ledger.audits import AuditStore
from headway.ledger.bill import make_bill
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import StoreUnavailable
from headway.ledger.verify import verify
from headway.price import Price
from headway.run import gate_of
from headway.supervise import Supervisor
from headway.wire import Client, Grant, Receipt, Request, at_tier
from tests.running import running_gateway

pytestmark = pytest.mark.anyio

TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    },
}
TIMER_ID = tool_id("set_timer", TIMER["function"]["parameters"])  # type: ignore[index]
ASK = {"model": "m-auto", "messages": [{"role": "user", "content": "timer of 5 minutes"}], "tools": [TIMER]}
SURE = [Judged(1.0, is_excess=False)] * 1000
PRICES = {"m": Price(10_000_000, 10_000_000), "m-spark": Price(1_000_000, 1_000_000)}


class Screen:
    """A client that shows what it was sent."""

    def __init__(self) -> None:
        self.started = False
        self.seen = b""

    async def send_whole(self, _content_type: bytes, body: bytes, receipt: Receipt) -> None:
        self.started, self.seen, self.grant = True, body, receipt.grant

    async def start_stream(self, _content_type: bytes, grant: Grant) -> None:
        self.started, self.grant = True, grant

    def write(self, data: bytes) -> None:
        self.seen += data

    async def end_stream(self) -> None:
        self.seen += b"<end>"

    def on_backpressure(self, pause: Any, resume: Any) -> None:
        pass

    def abandon(self) -> None:
        pass


def tool_answer(arguments: str, margin: float | None, name: str = "set_timer", finish: str = "tool_calls") -> bytes:
    """As vLLM answers: every token with the likeliest two."""
    tokens = ["<tool_call>", name, arguments]
    top = [{"token": "else", "logprob": -1.0 - (margin or 0.0)}]
    said = [{"token": one, "logprob": -1.0, "top_logprobs": [{"token": one, "logprob": -1.0}, *top]} for one in tokens]
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    logprobs = {"content": said} if margin is not None else None
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return json.dumps(
        {"id": "a", "object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}
    ).encode()


class Engines:
    """Stands for Gateway.handle: answers for both models, and remembers what it was asked."""

    def __init__(self, student: bytes | Exception, full: bytes = b"") -> None:
        self.answers: dict[str, bytes | Exception] = {
            "m-spark": student,
            "m": full or tool_answer('{"minutes": 7}', 9.0),
        }
        self.asked: list[Request] = []

    async def handle(self, request: Request, client: Client) -> Receipt:
        self.asked.append(request)
        answer = self.answers[request.call.model]
        if isinstance(answer, Exception):
            raise answer
        tier = request.call.tier
        grant = Grant(tier, tier, "r0", price=PRICES[request.call.model], rung=request.rung)
        meter = request.form.meter(grant)
        if not request.streaming:
            meter.read_whole(answer, lambda _: None)
        receipt = make_receipt(
            grant,
            "finished",
            meter,
            is_delivered=True,
            reader_was_slow=False,
            seat_us=0,
            answer_s=0.0,
            boardings=1,
        )
        if request.streaming:
            await client.start_stream(b"text/event-stream", grant)
            client.write(b"streamed by " + request.call.model.encode())
            await client.end_stream()
        else:
            await client.send_whole(b"application/json", meter.end(receipt), receipt)
        return receipt


def calibration(judged: list[Judged] | None = None) -> GateCalibration:
    """A gate that believes margins of 1 and more, and prompts that say hello."""
    gate = Gate.fit([Seen("x", Evidence("call", 1.0 + n / 100), is_excess=False) for n in range(400)])
    gate.prompts = PromptGuess.fit([("hello", True), ("integral", False)] * 20)
    gate.rising["text"] = Isotonic([0.0, 0.1], [0.5, 1.0])
    rows = SURE if judged is None else judged
    return GateCalibration("m-spark", "m", "2026-11-15", gate, rows, temperatures=[0.0, 1.0], tools=[TIMER_ID])


def live_gate(
    tmp_path: Path,
    audits: Audits | None = None,
    *,
    share: float = 0.0,
    level: float | None = None,
    record: EventLog | None = None,
    **more: Any,
) -> LiveGate:
    made = calibration()
    limit = limit_of(made.judged, 0.02, share)
    limit = replace(limit, level=level if level is not None else limit.level)
    closed = tmp_path / "closed"
    policy = TrustPolicy([limit], is_closed=closed.exists(), **more)
    settings = GateSettings("m-auto", made, policy, closed, "flex")
    return LiveGate(settings, audits or MemoryAudits(), openai.read_chat, metrics(), LocalGates(record))


def watched(gate: LiveGate) -> WatchedModel:
    assert isinstance(gate._dispatch, LocalGates)
    return gate._dispatch.watched[gate.model]


def trust_of(gate: LiveGate) -> Trust:
    return watched(gate).trust


async def recall(gate: LiveGate) -> None:
    """As the gate does in the background when it has been started. Does nothing if it has."""
    assert isinstance(gate._dispatch, LocalGates)
    if gate.model not in gate._dispatch.watched:
        gate._dispatch.join(gate)
        await gate._audits.expire()
        await gate._read_page()


def is_ready(gate: LiveGate) -> bool:
    return watched(gate).is_rebuilt and gate.can_keep


def metrics() -> Metrics:
    return Metrics(lambda: (), Supervisor())


def auto_of(engines: Engines, gate: LiveGate, seed: int = 0) -> Auto:
    prices = {"m": Price(10_000_000, 10_000_000)}
    return Auto(engines.handle, {"m-auto": gate}, lambda model, _: prices[model], metrics(), dice=random.Random(seed))


@asynccontextmanager
async def asking(engines: Engines, gate: LiveGate) -> AsyncIterator[Auto]:
    """An auto model whose audits are asked in the background."""
    auto = auto_of(engines, gate)
    auto.start(Supervisor())
    try:
        yield auto
    finally:
        await auto.stop()


async def until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_done():
            await asyncio.sleep(0.001)


def rungs_of(asked: dict[str, Any], dialect: Any = None) -> CallRungs:
    read = dialect or openai.read_chat
    body = msgspec.json.encode(asked)
    return CallRungs(body, read(body, "id1"), read, openai.read_chat, lambda one: one, ("m-spark", "m"), ["standard"])


async def ask(engines: Engines, gate: LiveGate, asked: dict[str, Any] | None = None, dialect: Any = None) -> Screen:
    screen = Screen()
    await recall(gate)
    await auto_of(engines, gate).handle(rungs_of(asked or ASK, dialect), screen)
    trust_of(gate).check()
    return screen


def said_by(screen: Screen) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(screen.seen)
    return {"rung": answer["usage"]["headway"]["rung"], "why": answer["usage"]["headway"]["escalated"], **answer}


async def test_a_certain_call_is_the_students(tmp_path: Path) -> None:
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))
    answer = said_by(await ask(engines, live_gate(tmp_path)))
    assert (answer["rung"], answer["why"]) == ("student", None)
    assert answer["choices"][0]["logprobs"] is None  # the gate wanted them, not the client
    [student] = engines.asked
    sent = json.loads(student.body)
    assert sent["model"] == "m-spark"
    assert sent["logprobs"] is True
    assert sent["top_logprobs"] == 2
    assert student.call.id == "id1-student"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (tool_answer('{"minutes": 5}', 0.1), "unsure"),
        (tool_answer('{"minutes": 6}', 9.0), "unsure"),  # nobody said six: a kind that was never seen
        (tool_answer('{"minutes": "5"}', 9.0), "not the schema"),
        (tool_answer('{"minutes": 5', 9.0), "unparsable"),
        (tool_answer('{"minutes": 5}', 9.0, name="start"), "unknown tool"),
        (tool_answer('{"minutes": 5}', None), "no margins"),
        (tool_answer('{"minutes": 5}', 9.0, finish="length"), "cut off"),
        (b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}', "gate failed"),
        (Refused("full", 1), "student failed"),
    ],
)
async def test_all_else_is_the_full_models(answer: bytes | Exception, why: str, tmp_path: Path) -> None:
    engines = Engines(answer)
    said = said_by(await ask(engines, live_gate(tmp_path)))
    assert (said["rung"], said["why"]) == ("full", why)
    assert said["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"minutes": 7}'
    assert [one.call.model for one in engines.asked] == ["m-spark", "m"]


async def test_both_rungs_are_billed_and_the_answer_says_so(tmp_path: Path) -> None:
    taken = said_by(await ask(Engines(tool_answer('{"minutes": 5}', 9.0)), live_gate(tmp_path)))
    escalated = said_by(await ask(Engines(tool_answer('{"minutes": 5}', 0.0)), live_gate(tmp_path)))
    assert taken["usage"]["headway"]["billed_micro"] == 110
    assert escalated["usage"]["headway"]["billed_micro"] == 110 + 1100


async def test_a_held_answer_streams_as_the_client_asked(tmp_path: Path) -> None:
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    screen = await ask(Engines(tool_answer('{"minutes": 5}', 9.0)), live_gate(tmp_path), asked)
    events = screen.seen.removesuffix(b"<end>").decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(one.removeprefix("data: ")) for one in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[2]["usage"]["headway"]["rung"] == "student"
    no_usage = await ask(Engines(tool_answer('{"minutes": 5}', 9.0)), live_gate(tmp_path), {**ASK, "stream": True})
    assert no_usage.seen.count(b"data: ") == 3


@settings(max_examples=100)
@given(
    arguments=st.one_of(st.text(max_size=12), st.integers(0, 9).map(lambda n: json.dumps({"minutes": n}))),
    margin=st.floats(-5, 12),
    name=st.sampled_from(["set_timer", "other"]),
    finish=st.sampled_from(["tool_calls", "length", "stop"]),
    streaming=st.booleans(),
    closed=st.booleans(),
)
def test_no_tool_call_is_ever_released_unverified(
    tmp_path_factory: pytest.TempPathFactory,
    arguments: str,
    margin: float,
    name: str,
    finish: str,
    streaming: bool,
    closed: bool,
) -> None:
    engines = Engines(tool_answer(arguments, margin, name, finish))

    async def run() -> Screen:
        gate = live_gate(tmp_path_factory.getbasetemp() / "none", level=0.5)
        await recall(gate)
        trust_of(gate).is_closed = closed
        return await ask(engines, gate, {**ASK, "stream": streaming})

    screen = asyncio.run(run())
    if engines.asked[-1].call.model == "m-spark":
        assert not closed
        assert name == "set_timer"
        assert finish != "length"
        assert margin >= 1.0
        assert json.loads(arguments) == {"minutes": 5}  # the schema's, and the client's own word
        assert "minutes" in screen.seen.decode()
    else:
        assert screen.seen == b"streamed by m<end>" if streaming else b'minutes\\": 7' in screen.seen


async def test_free_text_is_decided_before_the_first_token_and_streams(tmp_path: Path) -> None:
    def asked(text: str) -> dict[str, Any]:
        return {"model": "m-auto", "messages": [{"role": "user", "content": text}], "stream": True}

    def gate() -> LiveGate:
        return live_gate(tmp_path, free_text=True, share=1.0)

    student = await ask(Engines(b""), gate(), asked("hello"))
    full = await ask(Engines(b""), gate(), asked("solve this integral"))
    assert student.seen == b"streamed by m-spark<end>"
    assert full.seen == b"streamed by m<end>"
    away = await ask(Engines(Refused("no_replica", 1)), gate(), asked("hello"))
    assert away.seen == b"streamed by m<end>"


async def test_free_text_is_the_full_models_unless_the_owner_allows_it(tmp_path: Path) -> None:
    asked = {"model": "m-auto", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    screen = await ask(Engines(b""), live_gate(tmp_path), asked)
    assert screen.seen == b"streamed by m<end>"
    assert screen.grant.rung is not None
    assert screen.grant.rung.escalated == "free text"


async def test_what_can_not_be_weighed_is_the_full_models(tmp_path: Path) -> None:
    thinking = {**MESSAGE, "thinking": {"type": "enabled", "budget_tokens": 4}, "stream": True}
    screen = await ask(Engines(b""), live_gate(tmp_path), thinking, anthropic.read_messages)
    assert screen.seen == b"streamed by m<end>"
    assert screen.grant.rung is not None
    assert screen.grant.rung.escalated == "not weighed"
    several = await ask(Engines(b""), live_gate(tmp_path), {**ASK, "n": 2, "stream": True})
    assert several.seen == b"streamed by m<end>"
    plain = {"model": "m-auto", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}], "stream": True}
    free = await ask(Engines(b""), live_gate(tmp_path, free_text=True), plain, anthropic.read_messages)
    assert free.seen.endswith(b"m-spark<end>")


MESSAGE = {
    "model": "m-auto",
    "max_tokens": 50,
    "messages": ASK["messages"],
    "tools": [{"name": "set_timer", "input_schema": TIMER["function"]["parameters"]}],  # type: ignore[index]
}


async def test_tool_calls_of_the_messages_dialect_are_weighed_too(tmp_path: Path) -> None:
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))
    screen = await ask(engines, live_gate(tmp_path), {**MESSAGE, "speed": "fast"}, anthropic.read_messages)
    [student] = engines.asked
    assert (student.path, json.loads(student.body)["logprobs"]) == ("/v1/chat/completions", True)
    message = json.loads(screen.seen)
    assert (message["type"], message["stop_reason"]) == ("message", "tool_use")
    [call] = message["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "set_timer", {"minutes": 5})
    proof = message["usage"]["headway"]
    assert (proof["rung"], proof["tier_asked"], message["usage"]["output_tokens"]) == ("student", "fast", 10)
    unsure = Engines(tool_answer('{"minutes": 5}', 0.1))
    escalated = await ask(unsure, live_gate(tmp_path), {**MESSAGE, "stream": True}, anthropic.read_messages)
    assert escalated.seen == b"streamed by m<end>"
    assert unsure.asked[-1].path == "/v1/messages"


async def test_a_message_streams_in_doubt_and_is_audited_as_chat(tmp_path: Path) -> None:
    same = tool_answer('{"minutes": 5}', 9.0)
    gate, engines = live_gate(tmp_path), Engines(same, same)
    await recall(gate)
    watched(gate).step(AuditRecalled(1, 0.02, 0.0, "differs"))
    screen = await ask(engines, gate, {**MESSAGE, "stream": True, "speed": "fast"}, anthropic.read_messages)
    assert trust_of(gate).watch_of("").audited == 2
    assert [(one.path, one.call.tier) for one in engines.asked][-1] == ("/v1/chat/completions", "fast")
    names = [line for line in screen.seen.decode().splitlines() if line.startswith("event: ")]
    assert names[0] == "event: message_start"
    assert names[-1] == "event: message_stop"
    lines = screen.seen.decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert json.loads(events[2]["delta"]["partial_json"]) == {"minutes": 5}
    assert events[-2]["usage"]["headway"]["escalated"] == "in doubt"
    audited = live_gate(tmp_path, share=1.0)
    async with asking(Engines(same, same), audited) as auto:
        await until(lambda: is_ready(audited))
        await auto.handle(rungs_of(MESSAGE, anthropic.read_messages), Screen())
        await until(lambda: not trust_of(audited).waiting)
    assert (trust_of(audited).watch_of("").audited, trust_of(audited).watch_of("").excess) == (1, 0)


async def test_a_call_that_the_calibration_does_not_cover_is_the_full_models(tmp_path: Path) -> None:
    other = json.loads(json.dumps(TIMER))
    other["function"]["parameters"]["properties"]["seconds"] = {"type": "integer"}
    described = json.loads(json.dumps(TIMER))
    described["function"]["description"] = "Sets a timer."
    for change, why in (
        ({"temperature": 1.1}, "not calibrated"),
        ({"tools": [TIMER, other]}, "not calibrated"),
        ({"temperature": 0.3, "tools": [described]}, None),
        ({}, None),  # a call that names no temperature has 1
    ):
        answer = said_by(await ask(Engines(tool_answer('{"minutes": 5}', 9.0)), live_gate(tmp_path), {**ASK, **change}))
        assert answer["why"] == why, change


def test_keys_have_budgets_of_their_own(tmp_path: Path) -> None:
    """10 excess mistakes of 1,000: within 2 % for sure, within 0.5 % not."""
    judged = [Judged(1.0, is_excess=number < 10) for number in range(1000)]
    path = tmp_path / "auto.json"
    write_calibration(path, calibration(judged))
    auto = AutoTable(calibration=str(path), budgets={"strict": 0.005, "same": 0.02})
    model = ModelTable(name="m", replicas=[ReplicaTable(url="http://127.0.0.1:1")], auto=auto)
    policy = gate_of(model, auto).policy
    assert [limit.budget for limit in policy.limits] == [0.02, 0.005]
    assert policy.tenants == {"strict": 1, "same": 0}
    assert policy.limits[0].level < 1 < policy.limits[1].level == NEVER
    assert [limit.audit_share for limit in policy.limits] == [0.25, 1.0]


async def test_differences_close_the_gate_also_after_a_restart(tmp_path: Path) -> None:
    gate = live_gate(tmp_path, share=1.0)
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))  # the full model says 7
    screens = []
    async with asking(engines, gate) as auto:
        await until(lambda: is_ready(gate))
        while not trust_of(gate).is_closed:
            screens.append(Screen())
            await auto.handle(rungs_of(ASK), screens[-1])
            await until(lambda: not trust_of(gate).waiting)
            assert len(screens) < 20
    audits = [one for one in engines.asked if one.call.id == "id1-audit"]
    assert all(one.call.tier == "flex" and one.call.tenant == "" for one in audits)
    # After the first difference nothing is taken, and the full model's answer is compared before it is served.
    assert len(audits) == 1
    assert [said_by(one)["rung"] for one in screens] == ["student"] + ["full"] * (len(screens) - 1)
    assert {said_by(one)["why"] for one in screens[1:]} == {"in doubt"}
    assert "differ" in (tmp_path / "closed").read_text()
    again = live_gate(tmp_path)
    assert again.policy.is_closed
    assert said_by(await ask(engines, again))["why"] == "closed"


async def test_a_call_in_doubt_streams_as_the_client_asked(tmp_path: Path) -> None:
    gate = live_gate(tmp_path)
    await recall(gate)
    watched(gate).step(AuditRecalled(1, 0.02, 0.0, "differs"))
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    same = tool_answer('{"minutes": 5}', 9.0)
    screen = await ask(Engines(same, same), gate, asked)
    events = screen.seen.removesuffix(b"<end>").decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["usage"]["headway"]["escalated"] == "in doubt"
    assert trust_of(gate).watch_of("").audited == 2


async def test_a_call_in_doubt_that_the_full_model_does_not_serve_counts_for_nothing(tmp_path: Path) -> None:
    gate = live_gate(tmp_path)
    await recall(gate)
    watched(gate).step(AuditRecalled(1, 0.02, 0.0, "differs"))
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))
    engines.answers["m"] = Refused("full", 1)
    with pytest.raises(Refused):
        await ask(engines, gate)
    trust_of(gate).check()
    assert trust_of(gate).watch_of("").audited == 1


async def test_a_student_that_agrees_stays_trusted(tmp_path: Path) -> None:
    gate = live_gate(tmp_path, share=0.5)
    same = tool_answer('{"minutes": 5}', 9.0)
    async with asking(Engines(same, same), gate) as auto:
        await until(lambda: is_ready(gate))
        for _ in range(200):
            await auto.handle(rungs_of(ASK), Screen())
            await until(lambda: not trust_of(gate).waiting)
    assert not trust_of(gate).is_closed
    assert 60 < trust_of(gate).watch_of("").audited < 140


async def test_an_audit_without_a_seat_waits_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_gate_module, "RETRY_S", 0.001)
    gate = live_gate(tmp_path, share=1.0, max_waiting=2)
    same = tool_answer('{"minutes": 5}', 9.0)
    engines = Engines(same)
    engines.answers["m"] = Refused("hold_timeout", 1)
    async with asking(engines, gate) as auto:
        await until(lambda: is_ready(gate))
        for _ in range(3):
            await auto.handle(rungs_of(ASK), Screen())
        with pytest.raises(Refused):  # too many wait: the student is not asked, and the full model has no seat
            await auto.handle(rungs_of(ASK), Screen())
        await until(lambda: sum(one.call.id == "id1-audit" for one in engines.asked) > 6)
        assert len(trust_of(gate).waiting) == 3
        engines.answers["m"] = same
        await until(lambda: not trust_of(gate).waiting)
    assert (trust_of(gate).watch_of("").audited, trust_of(gate).watch_of("").excess) == (3, 0)


@pytest.mark.parametrize(
    "refusal",
    [EngineAnswered(400, b"too long"), b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}'],
)
async def test_what_the_full_model_refuses_differs(refusal: bytes | Exception, tmp_path: Path) -> None:
    gate = live_gate(tmp_path, share=1.0)
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))
    engines.answers["m"] = refusal
    async with asking(engines, gate) as auto:
        await until(lambda: is_ready(gate))
        await auto.handle(rungs_of(ASK), Screen())
        await until(lambda: not trust_of(gate).waiting)
    assert trust_of(gate).watch_of("").excess == 1


def stored(tmp_path: Path) -> AuditStore:
    return AuditStore(lambda: SQLiteStore(tmp_path / "books.db"), "gw-a", b"s" * 32)


async def test_audits_wait_in_the_store_over_a_restart(tmp_path: Path) -> None:
    store, same = stored(tmp_path), tool_answer('{"minutes": 5}', 9.0)
    first = live_gate(tmp_path, StoredAudits(store, "m-auto", "cal"), share=1.0)
    for _ in range(3):
        await ask(Engines(same), first)
    await first.stop()  # nobody has asked them
    again = live_gate(tmp_path, StoredAudits(store, "m-auto", "cal"), share=1.0)
    engines = Engines(b"", same)
    async with asking(engines, again):
        await until(lambda: is_ready(again) and not trust_of(again).waiting)
    assert [one.call.id for one in engines.asked] == ["id1-audit"] * 3
    assert trust_of(again).watch_of("").audited == 3
    third = live_gate(tmp_path, StoredAudits(store, "m-auto", "cal"), share=1.0)
    await recall(third)
    assert trust_of(third).watch_of("") == trust_of(again).watch_of("")
    assert trust_of(third).waiting == {}
    store.close()


async def test_without_the_store_the_student_is_not_asked(tmp_path: Path) -> None:
    def away() -> SQLiteStore:
        raise StoreUnavailable("away")

    store = AuditStore(away, "gw-a", b"s" * 32)
    gate = live_gate(tmp_path, StoredAudits(store, "m-auto", "cal"), share=1.0)
    engines = Engines(tool_answer('{"minutes": 5}', 9.0))
    screen = Screen()
    gate._dispatch.join(gate)
    await auto_of(engines, gate).handle(rungs_of(ASK), screen)
    assert said_by(screen)["why"] == "not watched"
    watched(gate).is_rebuilt, store.is_available = True, True  # it is lost between the question and the answer
    screen = Screen()
    await auto_of(engines, gate).handle(rungs_of(ASK), screen)
    assert said_by(screen)["why"] == "audit not kept"
    assert [one.call.model for one in engines.asked] == ["m", "m-spark", "m"]
    trust_of(gate).check()
    store.close()


async def test_a_client_that_leaves_takes_nothing_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, engines = live_gate(tmp_path, share=1.0), Engines(b"")

    async def never(_request: Request, _client: Client) -> Receipt:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(engines, "handle", never)
    await recall(gate)
    call = asyncio.create_task(ask(engines, gate))
    await until(lambda: trust_of(gate).has_asked("id1"))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert not trust_of(gate).has_asked("id1")
    trust_of(gate).check()


async def test_the_proof_names_the_tier_asked(tmp_path: Path) -> None:
    """The student offers standard only."""
    asked = {**ASK, "service_tier": "fast"}
    answer = said_by(await ask(Engines(tool_answer('{"minutes": 5}', 9.0)), live_gate(tmp_path), asked))
    proof = answer["usage"]["headway"]
    assert (proof["rung"], proof["tier_asked"], proof["tier_served"]) == ("student", "fast", "standard")


@pytest.mark.parametrize(("asked", "read"), [(ASK, openai.read_chat), (MESSAGE, anthropic.read_messages)])
def test_a_tier_that_no_field_asks_for_reaches_every_rung(asked: dict[str, Any], read: Any) -> None:
    body = msgspec.json.encode(asked)
    request, names = at_tier(read(body, "id1"), "fast"), ("m-spark", "m")
    rungs = CallRungs(body, request, read, openai.read_chat, lambda one: one, names, ["standard", "fast"])
    for is_held in (False, True):
        assert rungs.to_student(is_held=is_held).call.tier == "fast"
        assert rungs.to_full(is_held=is_held).call.tier == "fast"


async def test_a_record_replays_the_decisions(tmp_path: Path) -> None:
    record = EventLog(tmp_path / "events", {}, {})
    gate = live_gate(tmp_path, share=0.5, record=record)
    async with asking(Engines(tool_answer('{"minutes": 5}', 9.0)), gate) as auto:
        await until(lambda: is_ready(gate))
        while not trust_of(gate).is_closed:
            await auto.handle(rungs_of(ASK), Screen())
            await until(lambda: not trust_of(gate).waiting)
    record.close()
    result = replay(tmp_path / "events")
    assert result.first_difference is None
    assert result.actions > 10
    changed = (tmp_path / "events").read_bytes().replace(b'"compare":2', b'"compare":3')
    (tmp_path / "events").write_bytes(changed)
    assert replay(tmp_path / "events").first_difference is not None


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    made = calibration()
    assert GateCalibration.from_plain(json.loads(json.dumps(made.as_plain()))) == made


async def test_through_the_whole_gateway_with_books(tmp_path: Path) -> None:
    """Scripted engines write free text: the student's, and the full model's where the student is away."""
    path, secret = tmp_path / "auto.json", "hw-a-key-for-tests"
    made = calibration()
    write_calibration(path, replace(made, student="scripted-spark", full="scripted"))
    quick = Script(model="scripted", first_token_s=0.005, step_s=((1, 0.002),))
    async with running(quick) as full, running(replace(quick, model="scripted-spark")) as small:
        config = Config.model_validate(
            {
                "gateway": {"port": 0, "probe_interval_s": 0.05},
                "ledger": {"store": f"sqlite:///{tmp_path / 'books.db'}", "spool": str(tmp_path / "spool")},
                "models": [
                    {
                        "name": "scripted",
                        "replicas": [{"url": full.url}],
                        "price": {"input": 10.0, "output": 100.0},
                        "auto": {"calibration": str(path), "free_text": True},
                    },
                    {
                        "name": "scripted-spark",
                        "replicas": [{"url": small.url}],
                        "price": {"input": 1.0, "output": 10.0},
                    },
                ],
            }
        )
        store = SQLiteStore(tmp_path / "books.db")
        store.migrate()
        store.put_key(Key(id="key-a", hash=key_hash(secret.encode()), models=["scripted-auto"]))
        async with running_gateway(config, key=secret) as here:
            listed = await here.openai.models.list()
            assert [one.id for one in listed.data] == ["scripted-auto"]
            hello: Any = [{"role": "user", "content": "hello"}]
            served = []
            for text in ("hello", "integral"):
                hello[0]["content"] = text
                answer = await here.openai.chat.completions.create(
                    model="scripted-auto", messages=hello, max_tokens=4, user="ada"
                )
                assert answer.usage is not None
                served.append(answer.usage.model_dump()["headway"]["rung"])
            assert served == ["student", "full"]
            with pytest.raises(PermissionDeniedError):
                await here.openai.chat.completions.create(model="scripted", messages=hello, max_tokens=4)
    entries = [entry for entry in store.entries() if entry.kind == "served"]
    assert verify(store.entries()).problems == []
    [row] = make_bill(store.entries(), ("auto", "session"), {})
    assert row.group == {"auto": "scripted-auto", "session": "ada"}
    student, other = sorted(entries, key=lambda entry: entry.amount)
    assert row.all_full == 10 * student.amount + other.amount
    assert row.saved == 9 * student.amount
