"""The access log of a running gateway: what is in a line, and that nothing it is written to hurts a call."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from headway.engines.scripted import Faults, Script, running
from headway.errors import SetupError
from headway.observe import access_log
from headway.observe.access_log import AccessLine, AccessLog, LineWriter, line_of
from headway.observe.base import RefusedCall
from tests.gateway.test_books import ASK, KEY, SECRET, SLOW, desk
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
CHAT = b'{"model":"scripted","messages":[{"role":"user","content":"a secret plan"}],"stream":true,"max_tokens":20}'
STAYS = CHAT[:-1] + b',"seed":1}'  # it cannot go on at another engine
FAST = {"name": "fast", "floor_tps": 20.0, "price_multiple": 2.0}
CURVE: list[list[float]] = [[1, 500.0], [2, 480.0], [8, 300.0]]
OWNER = "sk-this-is-the-key"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def until_lines(path: Path, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        while len(found := lines_of(path)) < count:
            await asyncio.sleep(0.01)
    assert len(found) == count
    return found


async def ask(here: Running, body: bytes = CHAT, path: str = "/v1/chat/completions", *headers: bytes) -> bytes:
    return await here.raw(post(path, body, *headers))


async def test_a_call_is_one_line_that_says_what_its_proof_says(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    began = datetime.now(UTC)
    async with running(QUICK) as engine:
        config = config_for([engine], express=[FAST], curve=CURVE, access_log=str(path))
        async with running_gateway(config) as here:
            asked = b',"service_tier":"fast","prompt_cache_key":"session-7","stream_options":{"include_usage":true}}'
            body = CHAT[:-1] + asked
            answer = await ask(here, body)
            [line] = await until_lines(path, 1)
    assert b"x-request-id: " + line["id"].encode() in answer
    [last] = [part for part in answer.decode().split("data: ") if '"headway":' in part]
    proof = json.loads(last.splitlines()[0])["usage"]["headway"]
    assert began <= datetime.fromisoformat(line.pop("time")) <= datetime.now(UTC)
    assert line.pop("first_token_s") > 0
    assert line.pop("held_s") >= 0
    assert line.pop("total_s") == pytest.approx(proof["answer_seconds"], abs=1e-4)
    assert line.pop("tokens_per_second") == pytest.approx(proof["tokens_per_second"], rel=0.01)
    assert line.pop("seat_s") == pytest.approx(proof["seat_seconds"], abs=1e-5)
    assert line.pop("id")
    assert line.pop("prompt_tokens") > line.pop("cached_tokens") >= 0
    assert line == {
        "path": "/v1/chat/completions",
        "stream": True,
        "model": MODEL,
        "tier_asked": "fast",
        "tier": "fast",
        "outcome": "finished",
        "output_tokens": 20,
        "floor": 20.0,
        "kept": True,
        "replica": engine.url,
        "boardings": 1,
        "session": "session-7",
    }


async def test_every_end_of_a_call_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    hashed = sha256(OWNER.encode()).hexdigest()
    slow = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.05),))
    async with running(slow) as engine:
        config = config_for([engine], seats=1, tier={"max_hold_s": 0.1}, key_hashes=[hashed], access_log=str(path))
        async with running_gateway(config, key=OWNER) as here:
            key = b"authorization: Bearer " + OWNER.encode()
            leaving = asyncio.create_task(ask(here, CHAT, "/v1/chat/completions", key))
            while not engine.record()["running"]:
                await asyncio.sleep(0.005)
            await ask(here, CHAT, "/v1/messages", key)
            leaving.cancel()
            await here.until_empty()
            await ask(here, CHAT.replace(b'"max_tokens":20', b'"max_tokens":9000'), "/v1/chat/completions", key)
            engine.faults = Faults(die_after_tokens=2, times=1)
            await ask(here, STAYS, "/v1/chat/completions", key)
            await ask(here)
            await ask(here, b"{", "/v1/messages", key)
            await ask(here, CHAT.replace(b"scripted", b"nothing"), "/v1/chat/completions", key)
            await here.raw(b"GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")  # not a call
            lines = await until_lines(path, 7)
    shown = [(line["outcome"], line.get("error"), line.get("status")) for line in lines]
    assert shown == [
        ("refused", "hold_timeout", None),
        ("left", None, None),
        ("error", "engine_400", None),
        ("failed", "engine_lost", None),
        ("refused", "unauthorized", 401),
        ("refused", "invalid_request", 400),
        ("refused", "unknown_model", 404),
    ]
    assert [line.get("key") for line in lines] == [*["key-0"] * 4, None, "key-0", "key-0"]
    assert [line["path"].rpartition("/")[2] for line in lines].count("messages") == 2
    assert all(line["id"] and line["time"].endswith("Z") for line in lines)
    text = path.read_text()
    for secret in (OWNER, hashed, "secret plan", "nothing"):
        assert secret not in text


async def test_with_a_ledger_a_line_has_the_key_and_what_was_paid(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    key = msgspec.structs.replace(KEY, budget_day=20_000)
    # The engine gives 50 tokens per second, so the floor is missed and the call refunded to the standard price.
    async with running(SLOW) as engine, desk(tmp_path, [engine], key, 200.0, access_log=str(path)) as at:
        chat = at.here.openai.chat.completions
        usage: Any = (await chat.create(model=MODEL, messages=ASK, max_tokens=20, service_tier="fast")).usage
        with pytest.raises(openai.APIStatusError, match="budget"):
            await chat.create(model=MODEL, messages=ASK, max_tokens=4_000, user="person-5")
        paid, refused = await until_lines(path, 2)
    assert paid["key"] == refused["key"] == "key-test"
    assert paid["kept"] is False
    assert paid["refunded_micro"] == usage.headway["refunded_micro"] > 0
    assert paid["billed_micro"] == usage.headway["billed_micro"] > 0
    assert (refused["error"], refused["status"], refused["session"]) == ("over_budget", 402, "person-5")
    assert (refused["model"], refused["tier_asked"]) == (MODEL, "standard")
    assert SECRET not in path.read_text()


def call_line(name: str = "x") -> RefusedCall:
    return RefusedCall(name, "/v1/messages", "", "full", 429)


async def test_no_text_of_a_client_makes_a_line_long() -> None:
    line = line_of(RefusedCall("id", "/v1/messages", "k" * 100_000, "full", 429), datetime.now(UTC))
    assert len(line) < 500
    assert {"prompt", "messages", "headers"}.isdisjoint(AccessLine.__struct_fields__)


async def until_idle(log: AccessLog) -> None:
    async with asyncio.timeout(20):
        await log._idle.wait()


async def test_a_file_that_is_renamed_or_removed_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    log = AccessLog(path)
    moves: list[Callable[[], object]] = [lambda: path.rename(tmp_path / "old"), path.unlink, lambda: None]
    for number, move in enumerate(moves):
        log.write(call_line(f"a{number}"))
        await until_idle(log)
        assert [line["id"] for line in lines_of(path)][-1] == f"a{number}"
        move()
    assert [line["id"] for line in lines_of(tmp_path / "old")] == ["a0"]
    await log.stop()


async def test_a_full_pipe_loses_lines_and_hurts_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: Any
) -> None:
    """Nobody reads the pipe: the thread waits, lines are kept up to the bound, and the rest is counted."""
    monkeypatch.setattr(access_log, "MAX_BYTES", 20_000)
    monkeypatch.setattr(access_log, "FLUSH_S", 0.001)
    monkeypatch.setattr(access_log, "STOP_S", 0.05)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    monkeypatch.setattr(access_log, "STDOUT", writing)
    async with running(QUICK) as engine, running_gateway(config_for([engine], access_log="-")) as here:
        async with asyncio.timeout(60):
            sent = 0
            while not dropped(here):
                assert b"[DONE]" in await ask(here, CHAT.replace(b"20", b"2"))
                sent += 1
    assert sent < 100
    os.set_blocking(reading, False)
    found = b""
    with open(reading, "rb", closefd=False) as pipe:
        while piece := pipe.read(65_536):
            found += piece
    assert [json.loads(line)["outcome"] for line in found.splitlines()] == ["finished"] * found.count(b"\n")
    os.close(reading)  # the thread gets EPIPE, and ends
    for thread in threading.enumerate():
        if thread.name == "access log":
            thread.join(20)
    os.close(writing)


def dropped(here: Running) -> float:
    [count] = re.findall(rb"^headway_access_log_dropped_total (.+)$", here.gateway.metrics.page(), re.MULTILINE)
    return float(count)


def test_a_full_disk_loses_lines_and_leaves_none_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "access.jsonl"
    writer = LineWriter(path)
    write: Callable[[int, bytes], int] = os.write
    lines = [b'{"id":%d}\n' % number for number in range(10, 14)]
    assert writer.write(lines) == 0

    def no_space(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    assert writer.write(lines) == 4
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:14]))
    assert writer.write(lines) == 3  # one line and a half
    monkeypatch.setattr(os, "write", write)
    assert writer.write(lines) == 0
    assert path.read_bytes() == b"".join(lines) + lines[0] + lines[1][:4] + b"\n" + b"".join(lines)


def test_lines_of_several_processes_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    program = """
import sys
from pathlib import Path
from headway.observe.access_log import LineWriter
name, writer = sys.argv[2].encode(), LineWriter(Path(sys.argv[1]))
for _ in range(50):
    assert writer.write([b'{"id":"%b","pad":"%b"}\\n' % (name, name * 1000)] * 7) == 0
"""
    command = [sys.executable, "-c", program, str(path)]
    children = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    found = lines_of(path)
    assert len(found) == 3 * 50 * 7
    assert all(line["pad"] == line["id"] * 1000 for line in found)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path)], ids=["folder", "pipe"])
def test_what_is_not_a_file_is_refused_at_the_start(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "access.jsonl"
    make(path)
    with pytest.raises(SetupError, match="Choose another file"):
        AccessLog(path)
