"""`headway dispatch` and `headway relay` as processes: a leader and a standby with a lease on a file, two relays, one
scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.dispatch.record import replay
from headway.engines.scripted import Script, running
from headway.local.engine_process import free_port
from tests.metric_table import check_page
from tests.running import MODEL, post

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
OK = "HTTP/1.1 200 "
START_S = 60.0  # for several processes on a busy machine
CONFIG = """
[cell]
relays = ["relay-1", "relay-2"]
lease = "file:{folder}/lease"
[[models]]
name = "{model}"
{more}
[[models.replicas]]
url = "{engine}"
seats = 8
"""


@dataclass
class Hosts:
    folder: Path
    engine: str
    dispatchers: dict[str, int] = field(default_factory=lambda: {"one": free_port(), "two": free_port()})
    relays: dict[str, int] = field(default_factory=lambda: {"relay-1": free_port(), "relay-2": free_port()})
    pages: dict[str, int] = field(default_factory=lambda: {"one": free_port(), "two": free_port()})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def configure(self, more: str = "") -> None:
        text = CONFIG.format(folder=self.folder, model=MODEL, engine=self.engine, more=more)
        (self.folder / "headway.toml").write_text(text)

    def dispatch(self, name: str) -> None:
        listen = f"tcp://127.0.0.1:{self.dispatchers[name]}"
        record = self.folder / f"{name}.jsonl"
        metrics = f"127.0.0.1:{self.pages[name]}"
        words = ("--config", "headway.toml", "--record", str(record), "--metrics", metrics)
        self._start(name, "dispatch", "--listen", listen, *words)

    def relay(self, name: str, called: str = "") -> None:
        self._start(name, "relay", *self._all(), "--name", called or name, "--port", str(self.relays[name]))

    def _all(self) -> list[str]:
        return [word for port in self.dispatchers.values() for word in ("--dispatcher", f"tcp://127.0.0.1:{port}")]

    def status(self) -> tuple[int, Any]:
        """The exit code and the answer of `headway status`."""
        command = [sys.executable, "-m", "headway", "status", *self._all(), "--secret-file", "secret", "--json"]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=START_S)
        return ended.returncode, json.loads(ended.stdout)

    def _start(self, name: str, *words: str) -> None:
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "headway", *words, "--secret-file", "secret"],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    async def logged(self, name: str, words: str) -> None:
        async with asyncio.timeout(START_S):
            while not self.log(name).exists() or words not in self.log(name).read_text():
                assert self.processes[name].poll() is None, self.log(name).read_text()
                await asyncio.sleep(0.02)

    async def leader(self) -> str:
        """The name of the one that has begun to decide last."""
        async with asyncio.timeout(START_S):
            while True:
                epochs = {
                    int(line.rpartition(" ")[2]): name
                    for name in self.dispatchers
                    for line in self.log(name).read_text().splitlines()
                    if "headway.dispatch: leads, epoch" in line
                }
                if epochs:
                    return epochs[max(epochs)]
                await asyncio.sleep(0.02)

    async def call(self, relay: str, tokens: int = 5) -> str:
        body = {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": "two words"}]}
        request = post("/v1/chat/completions", json.dumps(body).encode(), b"content-type: application/json")
        return await self.ask(relay, request)

    async def get(self, relay: str, path: str) -> str:
        return await self.ask(relay, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())

    async def ask(self, relay: str, request: bytes) -> str:
        """The whole answer; empty while nobody listens there."""
        return await self.ask_port(self.relays[relay], request)

    async def ask_port(self, port: int, request: bytes) -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            async with asyncio.timeout(60):
                answer = await reader.read()
        except OSError:
            return ""
        writer.close()
        return answer.decode()

    async def until(self, path: str, words: str) -> None:
        """Every relay answers with these words."""
        async with asyncio.timeout(START_S):
            for relay in self.relays:
                while words not in await self.get(relay, path):
                    await asyncio.sleep(0.02)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)


@asynccontextmanager
async def hosts(folder: Path) -> AsyncIterator[Hosts]:
    (folder / "secret").write_text("0123456789abcdef" * 4)
    async with running(SLOW) as engine:
        cell = Hosts(folder, engine.url)
        with ExitStack() as stack:
            stack.callback(cell.end)
            cell.configure()
            for name in cell.dispatchers:
                cell.dispatch(name)
            for name in cell.relays:
                cell.relay(name)
            await cell.until("/ready", OK)
            yield cell


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
async def test_a_standby_takes_over_and_no_stream_is_cut(tmp_path: Path, how: signal.Signals) -> None:
    async with hosts(tmp_path) as cell:
        leader = await cell.leader()
        (other,) = cell.dispatchers.keys() - {leader}
        stream = asyncio.create_task(cell.call("relay-1", 100))
        assert OK in await cell.call("relay-2")
        cell.signal(leader, how)
        answers = await asyncio.gather(*[cell.call(relay) for relay in cell.relays])
        assert all(OK in answer for answer in answers)
        assert '"completion_tokens":100,' in await stream
        assert await cell.leader() == other
        cell.signal(other, signal.SIGTERM)
        assert cell.processes[other].wait(20) == 0
    records = sorted(tmp_path.glob("*.jsonl*"))
    assert len(records) >= 2
    assert [replay(record).first_difference for record in records] == [None] * len(records)


async def test_a_relay_takes_the_configuration_of_the_dispatcher(tmp_path: Path) -> None:
    async with hosts(tmp_path) as cell:
        pids = {name: cell.processes[name].pid for name in cell.relays}
        cell.configure('aliases = ["another-name"]')
        for name in cell.dispatchers:
            cell.signal(name, signal.SIGTERM)
            assert cell.processes[name].wait(20) == 0
            cell.dispatch(name)
        await cell.until("/v1/models", "another-name")
        assert pids == {name: cell.processes[name].pid for name in cell.relays}
        await cell.until("/ready", OK)
        assert OK in await cell.call("relay-1")


async def test_a_relay_that_is_not_listed_is_told_so(tmp_path: Path) -> None:
    async with hosts(tmp_path) as cell:
        cell.relays["stranger"] = free_port()
        cell.relay("stranger", called="relay-3")
        await cell.logged("stranger", "is not one of the relays in [cell]")


async def test_operators_see_who_leads_and_read_the_metrics_of_each_dispatcher(tmp_path: Path) -> None:
    async with hosts(tmp_path) as cell:
        leader = await cell.leader()
        code, status = await asyncio.to_thread(cell.status)
        assert code == 0
        assert status["leader"] == f"tcp://127.0.0.1:{cell.dispatchers[leader]}"
        assert sorted(one["role"] for one in status["dispatchers"]) == ["leader", "standby"]
        assert [(one["name"], one["connected"]) for one in status["relays"]] == [("relay-1", True), ("relay-2", True)]
        assert [(one["name"], one["open"], one["seats"]) for one in status["replicas"]] == [(cell.engine, True, 8)]
        request = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
        pages = {name: await cell.ask_port(port, request) for name, port in cell.pages.items()}
        for name, answer in pages.items():
            page = answer.partition("\r\n\r\n")[2].encode()
            check_page(page, "process")
            if name == leader:
                check_page(page, "policy")
        assert f'headway_replica_open{{model="{MODEL}",replica="{cell.engine}"}} 1.0' in pages.pop(leader)
        assert all(OK in page and "headway_loop_lag_seconds" in page for page in pages.values())
        for name in cell.dispatchers:
            cell.signal(name, signal.SIGKILL)
            cell.processes[name].wait(20)
        code, status = await asyncio.to_thread(cell.status)
        assert (code, status["leader"]) == (1, None)


def test_the_table_cell_is_needed(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text('[[models]]\nname = "m"\n[[models.replicas]]\nurl = "http://127.0.0.1:1"\n')
    command = [sys.executable, "-m", "headway", "dispatch", "--listen", "unix:socket"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ, timeout=60)
    assert ended.returncode != 0
    assert "[cell]" in ended.stderr


def test_a_relay_that_waits_for_a_dispatcher_handles_sigterm(tmp_path: Path) -> None:
    """The first process of a container gets only signals that it handles."""
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)
    own = ["--dispatcher", "tcp://127.0.0.1:1", "--name", "relay-1", "--secret-file", str(secret)]
    command = [sys.executable, "-m", "headway", "relay", *own]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as relay:
        assert relay.stderr is not None
        assert any("no configuration from" in line for line in relay.stderr)  # it waits
        relay.terminate()
        assert relay.wait(20) == 0
