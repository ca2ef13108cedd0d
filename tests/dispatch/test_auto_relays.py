"""An auto model over four relays as processes: one watch, which closes for all of them and outlives the dispatcher."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.auto.calibration import closed_file, write_calibration
from headway.auto.gate import Gate, GateCalibration, Isotonic, tool_id
from headway.auto.risk import Judged
from headway.dispatch.pages import read_page
from headway.dispatch.record import replay
from headway.engines.scripted import Faults, ProgrammedAnswers, Script, ScriptedEngine, read_answers, running
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from tests.dispatch.test_parent import AUTHORIZED, KEY, Box, count, serving, until
from tests.running import MODEL, post

pytestmark = pytest.mark.anyio
RELAYS = [f"relay-{number}" for number in range(1, 5)]
STUDENT, AUTO = f"{MODEL}-spark", f"{MODEL}-auto"
PARAMETERS = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
TOOL = {"type": "function", "function": {"name": "set_timer", "parameters": PARAMETERS}}
ASK = {
    "model": AUTO,
    "temperature": 0,
    "messages": [{"role": "user", "content": "a timer of 5 minutes, or 7"}],
    "tools": [TOOL],
    "max_tokens": 50,
}
CALIBRATION = GateCalibration(
    STUDENT,
    MODEL,
    "2026-11-17",
    Gate({"call": Isotonic([0.0, 1.0], [1.0, 1.0])}),
    [Judged(1.0, is_excess=False)] * 1000,
    temperatures=[0.0],
    tools=[tool_id("set_timer", PARAMETERS)],
)


def answers(tmp_path: Path, minutes: int) -> ProgrammedAnswers:
    path = tmp_path / f"answers-{minutes}.toml"
    path.write_text(f'[[answers]]\ntool_calls = [{{ name = "set_timer", arguments = {{ minutes = {minutes} }} }}]\n')
    return read_answers(path)


@dataclass
class Caller:
    """Calls the auto model again and again over one connection, so through one relay."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: list[tuple[float, str, str | None]] = field(default_factory=list)  # when it was asked, rung, why

    async def call(self) -> str | None:
        """Returns why the full model was asked; None if the student served."""
        asked_at = time.monotonic()
        request = post("/v1/chat/completions", json.dumps(ASK).encode(), b"content-type: application/json", AUTHORIZED)
        self.writer.write(request.replace(b"connection: close\r\n", b""))
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await self.reader.readexactly(int(length[1]))
        assert b" 200 " in head, body
        proof = json.loads(body)["usage"]["headway"]
        self.served.append((asked_at, proof["rung"], proof["escalated"]))
        why: str | None = proof["escalated"]
        return why


@dataclass
class AutoBox:
    box: Box
    full: ScriptedEngine
    callers: list[Caller]
    tmp_path: Path

    def rows(self) -> list[tuple[int, str | None]]:
        """Number and verdict. Read without a lock, which would keep the relays from writing."""
        with closing(sqlite3.connect(self.tmp_path / "books.db")) as books:
            return books.execute("SELECT number, verdict FROM audits ORDER BY number").fetchall()

    async def counted(self, name: bytes) -> float:
        """The sum of a metric over all processes."""
        pages = [await read_page(self.box.directory / f"{one}.metrics") for one in ("dispatcher", *RELAYS)]
        return sum(count(page, name) for page in pages if page is not None)

    async def until_watched(self) -> None:
        async with asyncio.timeout(20):
            while await self.counted(b"headway_auto_gate_open") != 1:
                await asyncio.sleep(0.05)

    async def until_audited(self) -> None:
        await until(lambda: all(verdict for _, verdict in self.rows()))


@asynccontextmanager
async def serving_auto(tmp_path: Path, *options: str) -> AsyncIterator[AutoBox]:
    calibration = tmp_path / "auto.json"
    write_calibration(calibration, CALIBRATION)
    store = open_store(f"sqlite:///{tmp_path}/books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(KEY.encode())))
    store.close()
    ledger = f'[ledger]\nstore = "sqlite:///{tmp_path}/books.db"\nspool = "{tmp_path}/spool"\n'
    quick, five = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.001),)), answers(tmp_path, 5)
    async with (
        running(quick, answers=five) as full,
        running(Script(model=STUDENT, first_token_s=0.002, step_s=((1, 0.001),)), answers=five) as student,
    ):
        rest = (
            f'[models.auto]\ncalibration = "{calibration}"\naudit_share = 0.5\n'
            f'[[models]]\nname = "{STUDENT}"\n[[models.replicas]]\nurl = "{student.url}"\nseats = 16\n'
        )
        with serving(tmp_path, full.url, 16, ledger, options, relays=len(RELAYS), rest=rest) as box:
            await box.until_ready()
            callers: list[Caller] = []
            try:
                for name in RELAYS:
                    reader, writer = await box.connect_to(name, AUTHORIZED)
                    callers.append(Caller(reader, writer))
                auto = AutoBox(box, full, callers, tmp_path)
                await auto.until_watched()
                yield auto
            finally:
                for caller in callers:
                    caller.writer.close()
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0


async def test_a_gate_that_closes_is_closed_for_every_relay_within_a_second(tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    async with serving_auto(tmp_path, "--record", str(record)) as auto:
        for _ in range(10):
            await asyncio.gather(*[caller.call() for caller in auto.callers])
        rungs = [Counter(rung for _, rung, _ in caller.served) for caller in auto.callers]
        assert all(one["student"] for one in rungs)  # every relay takes answers, and one watch audits them
        await auto.until_audited()
        assert {verdict for _, verdict in auto.rows()} == {"same"}
        auto.full.answers = answers(tmp_path, 7)

        async def until_closed(caller: Caller) -> float:
            while await caller.call() != "closed":
                pass
            return time.monotonic()

        async with asyncio.timeout(30):
            closed_at = await asyncio.gather(*map(until_closed, auto.callers))
        assert max(closed_at) - min(closed_at) < 1.0
        for _ in range(5):
            assert await asyncio.gather(*[caller.call() for caller in auto.callers]) == ["closed"] * 4
        for caller in auto.callers:
            assert not any(rung == "student" and at > min(closed_at) + 1.0 for at, rung, _ in caller.served)
        assert "differ" in closed_file(tmp_path / "auto.json").read_text()
        assert await auto.counted(b"headway_auto_gate_open") == 0
        await auto.until_audited()
        rows = auto.rows()
        assert await auto.counted(b"headway_auto_audits_total") == len(rows)
    replayed = replay(record)
    assert replayed.first_difference is None


async def test_a_killed_dispatcher_takes_nothing_with_it(tmp_path: Path) -> None:
    """Until the next one knows the verdicts the full model answers; then the student is used again, and no audit is
    lost or asked twice."""
    record = tmp_path / "events.jsonl"
    async with serving_auto(tmp_path, "--record", str(record)) as auto:
        for _ in range(10):
            await asyncio.gather(*[caller.call() for caller in auto.callers])
        before = auto.rows()
        os.kill(auto.box.children()["dispatcher"], signal.SIGKILL)
        killed_at = time.monotonic()

        async def until_student(caller: Caller) -> None:
            while await caller.call() is not None or time.monotonic() < killed_at + 0.5:
                pass

        async with asyncio.timeout(30):
            await asyncio.gather(*map(until_student, auto.callers))
        whys = {why for caller in auto.callers for at, _, why in caller.served if at > killed_at}
        assert "not watched" in whys
        for _ in range(5):
            await asyncio.gather(*[caller.call() for caller in auto.callers])
        await auto.until_audited()
        rows = auto.rows()
        assert [number for number, _ in rows[: len(before)]] == [number for number, _ in before]
        assert {verdict for _, verdict in rows} == {"same"}
        asked = auto.full.record()
        assert sum(call_id.endswith("-audit") for call_id in asked["requests"]) == len(rows)
        assert asked["finished"] + asked["aborted"] == len(asked["requests"])  # none of them twice
    assert replay(tmp_path / "events.jsonl.2").first_difference is None


async def test_the_audits_of_a_killed_relay_are_asked_by_another_process(tmp_path: Path) -> None:
    """They are encrypted in the store, so that process must have the key."""
    async with serving_auto(tmp_path) as auto:
        auto.full.faults = Faults(hang_after_tokens=1)
        async with asyncio.timeout(30):
            while not auto.rows():  # half of the calls are sampled
                await auto.callers[0].call()
        waiting = [number for number, verdict in auto.rows() if verdict is None]
        assert waiting
        os.kill(auto.box.children()["relay-1"], signal.SIGKILL)
        auto.full.faults = Faults()
        await auto.until_audited()
        rows = dict(auto.rows())
        assert {rows[number] for number in waiting} == {"same"}
