"""`headway serve --relays 2` as processes, with scripted engines: what clients see when one of them is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.config import Config, LedgerTable
from headway.deciding import check_can_be_shared
from headway.dispatch.address import UnixAddress, parse_address
from headway.dispatch.pages import read_page
from headway.dispatch.parent import bind
from headway.dispatch.record import replay
from headway.distill.collect import Teacher, read_questions
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.verify import verify, verify_budgets
from headway.processes import prepare_ledger
from tests.metric_table import check_page
from tests.running import MODEL, post

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
RELAYS = ("relay-1", "relay-2")
CALL = b'{"model": "%b", "messages": [{"role": "user", "content": "two words"}], "max_tokens": %d, "stream": %b}'
START_S = 60.0  # for three processes on a busy machine
KEY = "hw-a-key-for-tests"
AUTHORIZED = b"authorization: Bearer " + KEY.encode()


def call(tokens: int = 5, *headers: bytes, streams: bool = False) -> bytes:
    body = CALL % (MODEL.encode(), tokens, b"true" if streams else b"false")
    return post("/v1/chat/completions", body, b"content-type: application/json", *headers)


@dataclass
class Box:
    process: subprocess.Popen[str]
    port: int
    log: Path

    def children(self) -> dict[str, int]:
        """The process ids, by name."""
        found = {}
        for pid in children_of(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--name" in words or "dispatch" in words:
                found["dispatcher" if "dispatch" in words else words[words.index("--name") + 1]] = pid
        return found

    @property
    def directory(self) -> Path:
        words = Path(f"/proc/{self.children()['dispatcher']}/cmdline").read_text().split("\0")
        address = parse_address(words[words.index("--listen") + 1])
        assert isinstance(address, UnixAddress)
        return address.path.parent

    async def ask(self, request: bytes) -> bytes:
        """On a new connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()

    async def metrics(self) -> bytes:
        return await self.ask(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")

    async def until_ready(self) -> None:
        """Every relay says that it is."""
        ready = b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        async with asyncio.timeout(START_S):
            for _ in range(8):
                while b" 200 " not in await self.ask(ready):
                    await asyncio.sleep(0.02)

    async def calls_of(self, relay: str) -> float:
        page = await read_page(self.directory / f"{relay}.metrics")
        assert page is not None
        return count(page, b"headway_calls_total")

    async def connect_to(self, relay: str, *headers: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open connections until one leads to this relay."""
        for _ in range(64):
            before = await self.calls_of(relay)
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(call(1, *headers).replace(b"connection: close\r\n", b""))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            if await self.calls_of(relay) > before:
                return reader, writer
            writer.close()
        raise AssertionError(f"no connection led to {relay}")


def count(page: bytes, name: bytes) -> float:
    return sum(float(value) for value in re.findall(rb"^%b(?:\{.*\})? (\S+)$" % name, page, re.MULTILINE))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def until(condition: Any, within_s: float = START_S) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


@contextmanager
def serving(
    tmp_path: Path,
    engine_url: str,
    seats: int = 8,
    more: str = "",
    options: tuple[str, ...] = (),
    *,
    relays: int = 2,
    rest: str = "",
) -> Iterator[Box]:
    """`more` is the configuration before the model, `rest` what follows."""
    config, log = tmp_path / "headway.toml", tmp_path / "log"
    config.write_text(
        "[gateway]\nport = 0\nprobe_interval_s = 0.1\ndrain_timeout_s = 20\n"
        f'{more}[[models]]\nname = "{MODEL}"\nprice = {{ input = 1.0, output = 10.0 }}\n'
        f'[[models.replicas]]\nurl = "{engine_url}"\nseats = {seats}\n{rest}'
    )
    command = [sys.executable, "-m", "headway", "serve", "--relays", str(relays), "--config", str(config), *options]
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="hw-")  # the path of a socket is short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stderr = stack.enter_context(log.open("w"))
        process = stack.enter_context(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "TMPDIR": folder}
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "listens on port" in said, log.read_text()
        yield Box(process, int(said.split()[-1].strip(".")), log)


async def test_calls_over_new_connections_reach_both_relays_and_share_the_seats(tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    async with running(SLOW) as engine:
        log_to_stdout, options = 'access_log = "-"\n', ("--record", str(record))
        with serving(tmp_path, engine.url, seats=3, more=log_to_stdout, options=options) as box:
            await box.until_ready()
            answers = await asyncio.gather(*[box.ask(call(5)) for _ in range(40)])
            assert [answer.split()[1] for answer in answers] == [b"200"] * 40
            assert engine.record()["highest_running"] == 3
            each = [await box.calls_of(name) for name in RELAYS]
            assert all(each)
            assert sum(each) == 40
            page = await box.metrics()
            assert count(page, b"headway_calls_total") == 40
            [shown] = re.findall(r"`headway (status --dispatcher unix:\S+)`", box.log.read_text())
            command = [sys.executable, "-m", "headway", *shown.split(), "--json"]
            status = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=START_S).stdout)
            assert [(one["name"], one["connected"]) for one in status["relays"]] == [(name, True) for name in RELAYS]
            assert count(page, b"headway_held_seconds_count") == 40
            assert count(page, b"headway_tokens_total") == 40 * 5 + count(page, b'headway_tokens_total{kind="prompt".*')
            assert count(page, b"headway_replica_open") == 1  # the policy's metrics are the dispatcher's
            assert count(page, b"headway_processes_unanswered") == 0
            check_page(page.partition(b"\r\n\r\n")[2], "gateway", "process", "policy", "merged")
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
            assert box.process.stdout is not None
            lines = [json.loads(line) for line in box.process.stdout.read().splitlines()]
            assert [line["outcome"] for line in lines] == ["finished"] * 40
    replayed = replay(record)
    assert replayed.first_difference is None
    assert replayed.events > 80


async def test_when_a_relay_is_killed_the_other_goes_on_and_it_is_started_again(tmp_path: Path) -> None:
    async with running(SLOW) as engine:
        with serving(tmp_path, engine.url) as box:
            await box.until_ready()
            (cut, to_cut), (kept, to_kept) = [await box.connect_to(name) for name in RELAYS]
            for reader, writer in ((cut, to_cut), (kept, to_kept)):
                writer.write(call(100, streams=True))
                await reader.readuntil(b"data: ")
            killed = box.children()["relay-1"]
            os.kill(killed, signal.SIGKILL)
            # Some of these connect to the socket of the relay that is dead, and wait there until it is started again.
            answers = await asyncio.gather(*[box.ask(call(5)) for _ in range(12)])
            assert [answer.split()[1] for answer in answers] == [b"200"] * 12
            assert b"[DONE]" in await kept.read()
            assert b"[DONE]" not in await cut.read()
            assert box.children()["relay-1"] != killed
            assert await box.calls_of("relay-1") > 0
            await until(lambda: engine.record()["running"] == 0)
            assert engine.record()["highest_running"] <= 8
            for writer in (to_cut, to_kept):
                writer.close()


async def test_when_the_dispatcher_is_killed_no_stream_is_cut_and_calls_work_again(tmp_path: Path) -> None:
    record = tmp_path / "events.jsonl"
    async with running(SLOW) as engine:
        with serving(tmp_path, engine.url, seats=4, options=("--record", str(record))) as box:
            await box.until_ready()
            streams = [await box.connect_to(name) for name in RELAYS]
            for reader, writer in streams:
                writer.write(call(200, streams=True))
                await reader.readuntil(b"data: ")
            before = box.children()
            os.kill(before["dispatcher"], signal.SIGKILL)
            killed_at = time.monotonic()
            answers = await asyncio.gather(*[box.ask(call(2)) for _ in range(8)])
            took_s = time.monotonic() - killed_at
            assert [answer.split()[1] for answer in answers] == [b"200"] * 8
            assert took_s < 3  # most of it to start Python
            after = box.children()
            assert {name for name in after if after[name] != before[name]} == {"dispatcher"}
            assert "epoch 2" in box.log.read_text()
            for reader, writer in streams:
                assert b"[DONE]" in await reader.read()
                writer.close()
            assert engine.record()["highest_running"] <= 4
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
    assert replay(tmp_path / "events.jsonl.2").first_difference is None


async def test_sigterm_lets_streams_end_and_a_second_one_changes_nothing(tmp_path: Path) -> None:
    async with running(SLOW) as engine:
        with serving(tmp_path, engine.url) as box:
            await box.until_ready()
            streams = [await box.connect_to(name) for name in RELAYS]
            for reader, writer in streams:
                writer.write(call(100, streams=True))
                await reader.readuntil(b"data: ")
            folder, children = box.directory, box.children()
            box.process.terminate()
            async with asyncio.timeout(10):
                while True:  # until nobody listens
                    try:
                        (await asyncio.open_connection("127.0.0.1", box.port))[1].close()
                    except ConnectionRefusedError:
                        break
                    except ConnectionResetError:  # it waited to be accepted when the port was closed
                        continue
            box.process.terminate()
            for reader, writer in streams:
                assert b"[DONE]" in await reader.read()
                writer.close()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
            assert not any(map(is_running, children.values()))
            assert not folder.exists()


async def test_no_child_outlives_its_parent(tmp_path: Path) -> None:
    async with running(QUICK) as engine:
        with serving(tmp_path, engine.url) as box:
            children = box.children()
            assert set(children) == {"dispatcher", *RELAYS}
            box.process.kill()
            box.process.wait()
            await until(lambda: not any(map(is_running, children.values())), 10)


async def test_calls_on_two_relays_are_billed_exactly(tmp_path: Path, store_url: str) -> None:
    store = open_store(store_url)
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(KEY.encode()), budget_day=10_000_000))
    ledger = f'[ledger]\nstore = "{store_url}"\nspool = "{tmp_path}/spool"\n'
    async with running(QUICK) as engine:
        with serving(tmp_path, engine.url, more=ledger) as box:
            await box.until_ready()
            answers = await asyncio.gather(*[box.ask(call(5, AUTHORIZED)) for _ in range(40)])
            assert [answer.split()[1] for answer in answers] == [b"200"] * 40
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
    entries = list(store.entries())
    verdict = verify(entries)
    verify_budgets(verdict, store.slices(), store.keys_since(0))
    assert verdict.problems == []
    assert (verdict.calls, verdict.open_calls) == (40, 0)
    assert verdict.billed == sum(entry.prompt_tokens + 50 for entry in entries if entry.kind == "served")
    assert len({entry.gateway.partition("/")[0] for entry in entries}) == 2
    assert [(tmp_path / "spool" / name / "secret").exists() for name in RELAYS] == [False, False]
    store.close()


async def test_a_call_that_ran_when_its_relay_was_killed_is_billed_when_it_is_back(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(KEY.encode())))
    ledger = f'[ledger]\nstore = "sqlite:///{tmp_path}/books.db"\nspool = "{tmp_path}/spool"\n'
    async with running(SLOW) as engine:
        with serving(tmp_path, engine.url, more=ledger) as box:
            await box.until_ready()
            reader, writer = await box.connect_to("relay-1", AUTHORIZED)
            writer.write(call(1000, AUTHORIZED, streams=True))
            for _ in range(20):
                await reader.readuntil(b"data: ")
            os.kill(box.children()["relay-1"], signal.SIGKILL)
            await until(lambda: not verify(store.entries()).open_calls and box.children().get("relay-1"))
            writer.close()
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
    verdict = verify(store.entries())
    assert (verdict.problems, verdict.open_calls) == ([], 0)
    longest = max((entry for entry in store.entries() if entry.kind == "served"), key=lambda one: one.output_tokens)
    assert longest.output_tokens > 5
    store.close()


async def test_each_relay_keeps_prompts_in_a_file_of_its_own(tmp_path: Path) -> None:
    kept = tmp_path / "prompts.jsonl"
    async with running(QUICK) as engine:
        with serving(tmp_path, engine.url, rest=f'[models.keep_prompts]\nfile = "{kept}"\n') as box:
            await box.until_ready()
            await asyncio.gather(*[box.ask(call(5)) for _ in range(40)])
            box.process.terminate()
            assert await asyncio.to_thread(box.process.wait, 30) == 0
    files = [kept.with_name(f"{kept.name}.{name}") for name in RELAYS]
    lines = [len(file.read_bytes().splitlines()) for file in files]
    assert all(lines)
    assert sum(lines) == 40
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    questions, duplicates = read_questions(files, Teacher("http://127.0.0.1:9", MODEL))
    assert (len(questions), duplicates) == (1, 39)
    assert not kept.exists()


async def test_a_relay_that_cannot_be_set_up_ends_all(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "relay-2").write_text("not a directory")
    config = tmp_path / "headway.toml"
    config.write_text(
        f'[gateway]\nport = 0\n[ledger]\nstore = "sqlite:///{tmp_path}/books.db"\nspool = "{tmp_path}/spool"\n'
        f'[[models]]\nname = "{MODEL}"\n[[models.replicas]]\nurl = "http://127.0.0.1:9"\n'
    )
    command = [sys.executable, "-m", "headway", "serve", "--relays", "2", "--config", str(config)]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=START_S)
    assert ended.returncode == 2
    assert "FileExistsError" in ended.stderr
    assert "relay-2 could not be started" in ended.stderr


def test_an_auto_model_without_a_ledger_is_refused() -> None:
    replicas = [{"url": "http://127.0.0.1:9", "seats": 1}]
    student = {"name": "m-spark", "replicas": [{"url": "http://127.0.0.1:10"}]}
    auto = {"name": "m", "replicas": replicas, "auto": {"calibration": "auto.json", "budget": 0.01}}
    with pytest.raises(SetupError, match=r"models.auto.*\[ledger\].*one process"):
        check_can_be_shared(Config.model_validate({"models": [auto, student]}))
    ledger = {"store": "sqlite:///books.db", "spool": "spool"}
    check_can_be_shared(Config.model_validate({"models": [auto, student], "ledger": ledger}))


def test_a_spool_that_no_relay_will_empty_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = tmp_path / "spool"
    ledger = LedgerTable(store=f"sqlite:///{tmp_path}/books.db", spool=str(spool))
    prepare_ledger(ledger, RELAYS)
    assert caplog.messages == []
    assert spool.stat().st_mode & 0o777 == 0o700
    secret = (spool / "secret").read_bytes()
    for name in ("relay-1", "relay-3"):
        (spool / name).mkdir()
        (spool / name / "000000000001.jsonl").touch()
    prepare_ledger(ledger, RELAYS)
    [message] = caplog.messages
    assert message.startswith(f"{spool}/relay-3 is the spool of another number of relays")
    assert (spool / "secret").read_bytes() == secret


def test_a_port_in_use_is_refused_although_several_sockets_share_it() -> None:
    [[one], [two]] = bind("127.0.0.1", 0, 2)
    with one, two:
        port = one.getsockname()[1]
        assert two.getsockname()[1] == port
        with pytest.raises(SetupError, match="may be in use"):
            bind("127.0.0.1", port, 2)
    [[one], [two]] = bind("127.0.0.1", port, 2)
    with one, two:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
