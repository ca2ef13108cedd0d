"""A fleet on a real Ray cluster of one node: real actors, a real gateway, scripted engines, and what is killed of them.

One test with several steps, because a cluster takes ten seconds to start, and each step begins with what the one before
has left.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from openai import OpenAI

from headway.admin_client import ask_admin
from headway.errors import SetupError
from headway.fleet import ray as ray_fleet
from headway.fleet.held import Report
from headway.local.engine_process import free_port
from tests.fleet.simulated import engines, fleet_of, relays

ROOT = Path(__file__).parents[2]
ADMIN, KEY = "an-admin-key", "a-key"
ENGINE = "headway mock-engine"
HOLDER, KEEPER = "ray::ProcessHolder", "ray::KeeperActor"
WITHIN_S = 60.0


class OneNode:
    """A Ray cluster, a gateway, and the file of a fleet. Everything that runs here has `folder` in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ray.token").write_text(secrets.token_hex(16))
        (folder / "admin.key").write_text(ADMIN)
        self._ray_port, self._port, self._engine_port = free_port(), free_port(), free_port()
        self.gateway = f"http://127.0.0.1:{self._port}"
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "ray.token"),
            "RAY_prestart_worker_first_driver": "0",  # each worker that nobody needs costs a second
            "HEADWAY_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(ROOT),  # of actors too
            "COLUMNS": "200",
        }
        self._client = OpenAI(base_url=f"{self.gateway}/v1", api_key=KEY, max_retries=0)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        (self.folder / "headway.toml").write_text(f"""
[gateway]
port = {self._port}
probe_interval_s = 0.1
key_hashes = ["{hashlib.sha256(KEY.encode()).hexdigest()}"]
admin_key_hashes = ["{hashlib.sha256(ADMIN.encode()).hexdigest()}"]
[[models]]
name = "m"
[models.discover]
registered = true
seats = 4
""")
        self._run(sys.executable, "-m", "headway", "serve", "--config", str(self.folder / "headway.toml"))
        self._run(
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats",
            "--port", str(self._ray_port), "--include-dashboard=false", "--temp-dir", str(self.folder / "ray"),
            "--num-cpus", "4", "--num-gpus", "4", "--object-store-memory", "80000000",
            "--min-worker-port", "0", "--max-worker-port", "0",  # any that are free
        )  # fmt: skip
        until(lambda: "This command will now block" in self._log("ray"), "Ray does not start")

    def _run(self, *words: str) -> None:
        with (self.folder / f"{Path(words[0]).name}.log").open("wb") as log:
            self._started.append(subprocess.Popen(words, env=self._env, stdout=log, stderr=log))

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        """By the ids of processes, since other clusters may run on this machine. Ray would drain for 30 s at SIGTERM."""
        until(lambda: not self._kill(), "not all processes end")
        for process in self._started:
            process.wait()
        self._client.close()

    def _kill(self) -> set[int]:
        pids = self.pids("")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def pids(self, words: str) -> set[int]:
        """The processes of this cluster whose command has these words."""
        mark = f"HEADWAY_CACHE={self.folder}/".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words in command and mark in (entry / "environ").read_bytes() and "guard.py" not in command:
                        found.add(int(entry.name))
                except OSError:  # it has ended, or is of another user
                    continue
        return found - {os.getpid()}

    def fleet(self, *words: str, code: int = 0) -> str:
        """What a command says."""
        done = subprocess.run(
            [sys.executable, "-m", "headway", "fleet", *words, "--address", f"127.0.0.1:{self._ray_port}"],
            env=self._env, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def write(self, *, count: int, gpus: int, step_ms: int = 20) -> str:
        """Returns the path of the file."""
        serve = f"exec {sys.executable} -m {ENGINE} --host {{host}} --port {{port}} --model m --step-ms 1:{step_ms}"
        path = self.folder / "fleet.toml"
        path.write_text(f"""
[gateway]
url = "{self.gateway}"
admin_key_file = "{self.folder}/admin.key"
[[processes]]
name = "engine"
model = "m"
command = ["bash", "-c", "echo devices $CUDA_VISIBLE_DEVICES; {serve}"]
count = {count}
port = {self._engine_port}
gpus = {gpus}
""")
        return str(path)

    def states(self) -> list[str]:
        return [row["state"] for row in ask_admin(self.gateway, ADMIN, "/admin/replicas")["replicas"]]

    def until_open(self, count: int) -> None:
        until(lambda: self.states() == count * ["open"], f"{count} engines are not open")

    def call(self, tokens: int) -> int:
        """Returns how many tokens came."""
        answer = self._client.completions.create(model="m", prompt="hi", max_tokens=tokens)
        assert answer.usage is not None
        return answer.usage.completion_tokens


def until(is_so: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)


@pytest.fixture
def node() -> Iterator[OneNode]:
    folder = Path(tempfile.mkdtemp(prefix="hw-"))  # Ray's sockets are in it, whose paths must be short
    one = OneNode(folder)
    try:
        one.start()
        yield one
    finally:
        one.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(300)  # less than a minute, if nothing else runs on the machine
def test_a_fleet_on_ray(node: OneNode) -> None:
    _comes_up_with_its_devices(node)
    _survives_kills(node)
    with ThreadPoolExecutor(8) as pool:
        _is_replaced_with_streams_aboard(node, pool)
        _shrinks_with_streams_aboard(node, pool)
    _takes_back_what_no_node_has_room_for(node)
    _goes_down(node)


def _comes_up_with_its_devices(node: OneNode) -> None:
    said = node.fleet("up", node.write(count=2, gpus=2))
    assert said.count("ready") == 2
    node.until_open(2)
    logs = [(node.folder / "cache" / "logs" / f"fleet-engine-{index}.log").read_text() for index in range(2)]
    devices = [re.findall(r"devices (\d),(\d)", log) for log in logs]
    assert sorted(device for [pair] in devices for device in pair) == ["0", "1", "2", "3"]
    assert node.call(5) == 5


def _survives_kills(node: OneNode) -> None:
    """Of an engine, of who holds one, and of the keeper."""
    before = node.pids(ENGINE)
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len(node.pids(ENGINE) - before) == 1, "the engine is not started again")
    node.until_open(2)
    assert "it ended with the exit code 137" in _status(node)  # open already, and ready once it has settled

    before = node.pids(ENGINE)
    os.kill(min(node.pids(HOLDER)), signal.SIGKILL)
    until(lambda: len(before & node.pids(ENGINE)) == 1, "the engine does not end with its holder")
    until(lambda: len(node.pids(ENGINE) - before) == 1, "the engine is not started again")
    node.until_open(2)

    before, keepers = node.pids(ENGINE), node.pids(KEEPER)
    os.kill(min(keepers), signal.SIGKILL)
    until(lambda: len(node.pids(KEEPER) - keepers) == 1, "the keeper is not started again")
    until(lambda: "not been asked yet" not in _status(node), "the keeper does not look")
    assert node.pids(ENGINE) == before


def _status(node: OneNode) -> str:
    try:
        return node.fleet("status")
    except AssertionError as error:
        return str(error)


def _is_replaced_with_streams_aboard(node: OneNode, pool: ThreadPoolExecutor) -> None:
    before = node.pids(ENGINE)
    calls = _full(node, pool, 300)
    node.fleet("up", node.write(count=2, gpus=2, step_ms=21))
    assert all(call.result() == 300 for call in calls)
    assert not before & node.pids(ENGINE)
    node.until_open(2)


def _shrinks_with_streams_aboard(node: OneNode, pool: ThreadPoolExecutor) -> None:
    calls = _full(node, pool, 200)
    node.fleet("up", node.write(count=1, gpus=2, step_ms=21))
    assert all(call.result() == 200 for call in calls)
    node.until_open(1)
    assert len(node.pids(ENGINE)) == 1


def _full(node: OneNode, pool: ThreadPoolExecutor, tokens: int) -> list[Future[int]]:
    """Calls on all seats of two engines. Returns once they are aboard."""
    calls = [pool.submit(node.call, tokens) for _ in range(8)]

    def aboard() -> int:
        return sum(row["aboard"] for row in ask_admin(node.gateway, ADMIN, "/admin/replicas")["replicas"])

    until(lambda: aboard() == 8, "calls are not aboard")
    return calls


def _takes_back_what_no_node_has_room_for(node: OneNode) -> None:
    node.fleet("up", node.write(count=1, gpus=5, step_ms=21), "--no-wait")
    until(lambda: "no node has room for it" in _status(node), "it is not said")
    node.fleet("up", node.write(count=1, gpus=1, step_ms=21))
    node.until_open(1)


def _goes_down(node: OneNode) -> None:
    assert "The fleet is down." in node.fleet("down")
    assert not node.pids(ENGINE)
    assert node.states() == []
    assert "down --now" in node.fleet("down", code=2)


@pytest.mark.parametrize("mode", [None, "disabled"])
def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, mode: str | None) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(SetupError, match="unless it requires a token"):
        ray_fleet.connect("auto")


def test_what_ray_cannot_place_is_refused_before_anything_changes() -> None:
    with pytest.raises(SetupError, match="Ray cannot place processes 'engine'"):
        ray_fleet.up(fleet_of(engines(resources={"GPU": 1})))


def test_what_is_known_of_a_holder_that_does_not_answer_is_in_its_name() -> None:
    table = engines(model="org/model:1")
    assert ray_fleet._known(ray_fleet._actor_name(table, 1)) == Report(
        "engine", 1, table.version, "org/model:1", 9001, "away"
    )
    assert ray_fleet._known(ray_fleet._actor_name(relays(), 0)).model is None
