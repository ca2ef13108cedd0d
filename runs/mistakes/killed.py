"""Kills a process that audits an auto model with SIGKILL, again and again, between two verdicts. See mistake-budget.sh.

The process serves calls through the gateway's own code (auto/serve.py, auto/live_gate.py) with a real store, and
models that are a table: the full model's answer differs in one call of ten. It prints each answer that a client got and
that is to be audited, and each verdict. The next process goes on with the same store. At the end every printed answer
must have its verdict in the store, the right one, and the watch that a restart rebuilds must be the one that saw all.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.api.openai import read_chat
from headway.auto.audits import StoredAudits
from headway.auto.gate import Gate, GateCalibration, Isotonic, tool_id
from headway.auto.held_answer import HeldAnswer
from headway.auto.live_gate import GateSettings, LiveGate
from headway.auto.requests import CallRungs
from headway.auto.serve import Auto
from headway.core.trust import (
    AuditRecalled,
    LimitPolicy,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustEvent,
    TrustPolicy,
    WriteVerdict,
)
from headway.dispatch.local_gates import LocalGates
from headway.gateway.billing import make_receipt
from headway.gateway.metrics import Metrics
from headway.ledger.audits import AuditRow, AuditRows, AuditSample, AuditStore
from headway.ledger.sqlite import SQLiteStore
from headway.supervise import Supervisor
from headway.wire import Client, Grant, Receipt, Request

MODEL, GATEWAY, CALIBRATION, SECRET = "m-auto", "gw-killed", "calibration", b"k" * 32
LIMIT = LimitPolicy(budget=0.2, level=0.5, may_differ=0.25, audit_share=0.5)
POLICY = TrustPolicy([LIMIT])
PARAMETERS = {"type": "object", "properties": {"n": {}}}
TOOL = {"type": "function", "function": {"name": "set", "parameters": PARAMETERS}}
FULL_S = 0.03  # how long the full model takes at the most: a kill finds several audits waiting


@dataclass(frozen=True)
class Killed:
    kills: int
    audits: int  # answers that clients got and that were to be audited
    lost: int  # of these: without a verdict in the store, or with a wrong one
    is_same_watch: bool


def differs(number: int) -> bool:
    return random.Random(f"differs {number}").random() < 0.1


def answer_of(number: int, model: str) -> bytes:
    value = number + 1 if model == "m" and differs(number) else number
    call = {"id": "c", "type": "function", "function": {"name": "set", "arguments": json.dumps({"n": value})}}
    token = {"token": "set", "logprob": 0.0, "top_logprobs": [{"token": "x", "logprob": -9.0}]}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "logprobs": {"content": [token]}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return json.dumps({"id": "a", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


async def handle(request: Request, client: Client) -> Receipt:
    """Stands for `Gateway.handle`: answers from the table."""
    if request.call.model == "m":
        await asyncio.sleep(random.random() * FULL_S)
    number = int(json.loads(request.body)["messages"][0]["content"].split()[1])
    grant = Grant(request.call.tier, request.call.tier, "r0", rung=request.rung)
    meter = request.form.meter(grant)
    meter.read_whole(answer_of(number, request.call.model), lambda _: None)
    receipt = make_receipt(
        grant, "finished", meter, is_delivered=True, reader_was_slow=False, seat_us=0, answer_s=0.0, boardings=1
    )
    await client.send_whole(b"application/json", meter.end(receipt), receipt)
    return receipt


class Told:
    """A record of core (dispatch/record.py) that remembers which calls are audited and prints verdicts."""

    def __init__(self) -> None:
        self.audits: dict[str, int] = {}  # number of the audit, by call

    def begin_trust(self, model: str, policy: TrustPolicy) -> None:
        pass

    def append_trust(self, model: str, now: float, event: TrustEvent, decisions: list[TrustDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, TakeAnswer) and decision.audit:
                self.audits[decision.call_id] = decision.audit
            elif isinstance(decision, WriteVerdict):
                say("verdict", decision.number)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def serve(database: Path, first_call: int, calls: int) -> None:
    """Serve calls and audit them; then wait until no audit is left."""
    gate_fit = Gate({kind: Isotonic([0.0, 1.0], [1.0, 1.0]) for kind in ("call", "own words")})
    tool = tool_id("set", PARAMETERS)
    calibration = GateCalibration("m-spark", "m", "", gate_fit, [], temperatures=[1.0], tools=[tool])
    settings = GateSettings(MODEL, calibration, POLICY, database.with_name("closed"), "standard")
    store, told = AuditStore(lambda: SQLiteStore(database), GATEWAY, SECRET), Told()
    metrics = Metrics(lambda: (), Supervisor())
    gates = LocalGates(told)
    gate = LiveGate(settings, StoredAudits(store, MODEL, CALIBRATION), read_chat, metrics, gates)
    auto = Auto(handle, {MODEL: gate}, lambda *_: None, metrics, store)
    auto.start(Supervisor())
    while not gates.watched[MODEL].is_rebuilt:
        await asyncio.sleep(0.001)
    for number in range(first_call, first_call + calls):
        asked = {"model": MODEL, "messages": [{"role": "user", "content": f"set {number}"}], "tools": [TOOL]}
        body = msgspec.json.encode(asked)
        call_id = f"call-{number}"
        request = read_chat(body, call_id)
        rungs = CallRungs(body, request, read_chat, read_chat, lambda one: one, ("m-spark", "m"), ["standard"])
        client = HeldAnswer()
        say("call", number)
        await auto.handle(rungs, client)
        if call_id in told.audits:
            say("delivered", told.audits[call_id], number)
    while gates.watched[MODEL].trust.waiting:
        await asyncio.sleep(0.001)
    await auto.stop()
    say("done", 0)


def kill_between_verdicts(kills: int, seed: int = 1) -> Killed:
    dice, delivered, next_call = random.Random(seed), dict[int, int](), 0
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "books.db"
        for kill in range(kills + 1):
            calls = 10_000 if kill < kills else 50
            command = [sys.executable, "-m", "runs.mistakes.killed", str(database), str(next_call), str(calls)]
            verdicts_left = dice.randint(1, 30)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                for line in child.stdout:
                    what, number, *of = line.split() if line.endswith("\n") else ("cut", 0)
                    if what == "call":
                        next_call = int(number) + 1
                    elif what == "delivered":
                        delivered[int(number)] = int(of[0])
                    elif what == "verdict":
                        verdicts_left -= 1
                        if verdicts_left == 0 and kill < kills:
                            child.send_signal(signal.SIGKILL)
            assert child.returncode == (-signal.SIGKILL if kill < kills else 0)
        return judge(database, delivered, kills)


def judge(database: Path, delivered: dict[int, int], kills: int) -> Killed:
    store = SQLiteStore(database)
    sample, rows = AuditSample(GATEWAY, MODEL, CALIBRATION), list[AuditRow]()
    while page := AuditRows(store).page(sample, rows[-1].number if rows else 0):
        rows += page
    store.close()
    found = {row.number: row.verdict for row in rows}
    right = {number: "differs" if differs(call) else "same" for number, call in delivered.items()}
    lost = sum(found.get(number) != verdict for number, verdict in right.items())
    rebuilt, whole = Trust(POLICY), Trust(POLICY)
    for row in rows:
        rebuilt.step(AuditRecalled(row.number, row.budget, 0.0, row.verdict), 0.0)  # type: ignore[arg-type]
        verdict = right.get(row.number, row.verdict)
        whole.step(AuditRecalled(row.number, row.budget, 0.0, verdict), 0.0)  # type: ignore[arg-type]
    is_same = rebuilt.watch_of("") == whole.watch_of("") and not rebuilt.waiting
    return Killed(kills, len(delivered), lost, is_same)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
