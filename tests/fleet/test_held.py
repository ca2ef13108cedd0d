"""One process that is started, watched and started again: with real processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.fleet import held as held_module
from headway.fleet.held import HeldProcess, log_path
from headway.local.engine_process import free_port
from headway.local.guard import group_members
from tests.fleet.simulated import engines

# Answers /health as the file `health` says, which is 503 if there is none. `{port}` and `{index}` are filled in.
SERVER = """
import http.server, os, pathlib, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path("health").exists() else 503)
        self.end_headers()
    def log_message(self, *words): pass
os.chdir(sys.argv[2])
print("environment", sorted(os.environ), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


class Held:
    """A held process whose holder looks when the test says so."""

    def __init__(self, folder: Path, command: list[str] | None = None, **more: object) -> None:
        self.folder = folder
        server = [sys.executable, "-c", SERVER, "{port}", str(folder)]
        settings = {"command": command or server, "start_s": 5, "grace_s": 5, **more}
        self.table = engines("engine", free_port(), **settings)
        self.one = HeldProcess(self.table, 0, "127.0.0.1", self.table.version, self.table.times)

    def be_well(self) -> None:
        (self.folder / "health").touch()

    def be_ill(self) -> None:
        (self.folder / "health").unlink()

    def until(self, is_so: Callable[[], bool], now: float = 0.0) -> None:
        deadline = time.monotonic() + 20
        while not is_so():
            assert time.monotonic() < deadline, self.one.report()
            self.one.look(now)
            time.sleep(0.01)

    @property
    def phase(self) -> str:
        return self.one.report().phase

    @property
    def pid(self) -> int:
        assert self.one._process is not None
        return self.one._process.pid


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Held]]:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(held_module, "SETTLE_S", 0.0)
    made: list[Held] = []

    def one(command: list[str] | None = None, **more: object) -> Held:
        made.append(Held(tmp_path, command, **more))
        return made[-1]

    yield one
    for held in made:
        held.one.stop()


def test_a_process_is_ready_when_it_answers(make: Callable[..., Held]) -> None:
    held = make()
    held.until(lambda: b"environment" in log_path("engine", 0).read_bytes() if held.one._process else False)
    held.one.look(0)
    assert held.phase == "starting"
    held.be_well()
    held.until(lambda: held.phase == "ready")
    report = held.one.report()
    assert (report.url, report.starts, report.why) == (f"http://127.0.0.1:{held.table.port}", 1, "")


def test_a_process_that_answers_is_ready_once_it_has_settled(
    make: Callable[..., Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_module, "SETTLE_S", 3.0)
    held = make(start_s=1000)
    held.be_well()
    held.until(lambda: held.one._settled_at > 0, now=10.0)
    held.one.look(12.9)
    assert held.phase == "starting"
    held.be_ill()
    held.one.look(13.0)
    held.be_well()
    held.one.look(14.0)
    held.one.look(16.9)
    assert held.phase == "starting"
    held.one.look(17.0)
    assert held.phase == "ready"


def test_a_process_without_a_path_is_ready_when_it_runs(make: Callable[..., Held]) -> None:
    held = make(["sleep", "60"], ready="")
    held.until(lambda: held.phase == "ready")


def test_a_process_that_ends_is_started_again_at_once_and_its_log_is_kept(make: Callable[..., Held]) -> None:
    held = make()
    held.be_well()
    held.until(lambda: held.phase == "ready")
    os.kill(held.pid, signal.SIGKILL)
    held.until(lambda: held.one.report().starts == 2)
    held.until(lambda: held.phase == "ready")
    assert held.one.report().why == "it ended with the exit code 137"
    assert b"environment" in log_path("engine", 0).with_suffix(".previous.log").read_bytes()


def test_pauses_grow_while_a_process_does_not_stay_ready(make: Callable[..., Held]) -> None:
    held = make(["false"])
    pauses, now = [], 0.0
    for failed in range(1, 9):
        held.until(lambda failed=failed: held.one._failed == failed, now)  # type: ignore[misc]
        pauses.append(held.one._not_before - now)
        assert held.one.report().starts == failed
        held.one.look(held.one._not_before - 0.001)  # too early
        assert held.one.report().starts == failed
        now = held.one._not_before
    assert pauses == [0, 2, 4, 8, 16, 32, 60, 60]
    held.one._failed = 2000  # after a day
    held.one._restart("it ended", now)
    assert held.one._not_before == now + 60


def test_a_process_that_is_ready_only_for_moments_gets_pauses_too(make: Callable[..., Held]) -> None:
    held = make()
    held.be_well()
    for failed in (1, 2):
        held.until(lambda: held.phase == "ready", held.one._not_before)
        os.kill(held.pid, signal.SIGKILL)
        held.until(lambda failed=failed: held.one._failed == failed, held.one._not_before)  # type: ignore[misc]
    assert held.one._not_before > 0
    held.until(lambda: held.phase == "ready", held.one._not_before)
    held.one.look(held.one._started_at + held_module.STEADY_S + 1)
    assert held.one._failed == 0


def test_a_process_that_is_not_ready_in_time_is_started_again(make: Callable[..., Held]) -> None:
    held = make()
    held.until(lambda: held.one.report().starts == 1)
    first = held.pid
    held.one.look(4)
    assert held.pid == first
    held.one.look(6)
    assert not group_members(first)
    assert held.one.report().why == "it was not ready after 5 s"
    held.until(lambda: held.one.report().starts == 2, 6)


def test_a_process_that_does_not_answer_for_too_long_is_started_again(make: Callable[..., Held]) -> None:
    held = make(unhealthy_s=10)
    held.be_well()
    held.until(lambda: held.phase == "ready")
    held.be_ill()
    held.one.look(9)
    assert held.phase == "unhealthy"
    held.be_well()
    held.one.look(9)
    assert held.phase == "ready"
    held.be_ill()
    held.one.look(18)
    assert held.phase == "unhealthy"  # it answered 9 s ago
    held.one.look(20)
    assert held.one.report().why == "it did not answer for 10 s"


def test_times_can_change_while_it_runs(make: Callable[..., Held]) -> None:
    held = make()
    held.until(lambda: held.one.report().starts == 1)
    held.one.times = engines(start_s=100, grace_s=3).times
    held.one.look(50)
    assert (held.one.report().why, held.one.report().grace_s) == ("", 3)


def test_it_waits_for_its_port(make: Callable[..., Held]) -> None:
    held = make()
    with socket.create_server(("127.0.0.1", held.table.port)):
        held.one.look(0)
        report = held.one.report()
        assert (report.starts, report.phase) == (0, "starting")
        assert report.why == f"port {held.table.port} cannot be used: Address already in use"
    held.be_well()
    held.until(lambda: held.phase == "ready")


def test_a_program_that_is_not_there_is_a_reason(make: Callable[..., Held]) -> None:
    held = make(["/no/such/program"])
    held.one.look(0)
    assert held.one.report().why == "/no/such/program cannot be run."
    assert b"No such file" in log_path("engine", 0).read_bytes()


def test_a_log_that_cannot_be_written_is_a_reason(make: Callable[..., Held], monkeypatch: pytest.MonkeyPatch) -> None:
    held = make()
    monkeypatch.setenv("HEADWAY_CACHE", "/dev/null/none")
    held.one.look(0)
    assert "Not a directory" in held.one.report().why


def test_its_environment_has_no_secrets_of_the_cluster(
    make: Callable[..., Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    held = make(env={"MINE": "1"})
    held.be_well()
    held.until(lambda: held.phase == "ready")
    said = log_path("engine", 0).read_text()
    assert "'MINE'" in said
    assert "RAY_" not in said


def test_stop_returns_when_the_process_has_ended(make: Callable[..., Held]) -> None:
    slow = "trap 'sleep 0.5; exit 0' TERM; echo begun; while :; do sleep 0.01; done"
    held = make(["bash", "-c", slow], ready="")
    running = threading.Thread(target=held.one.run)
    running.start()
    while not (log_path("engine", 0).exists() and b"begun" in log_path("engine", 0).read_bytes()):
        time.sleep(0.01)
    pid = held.pid
    held.one.stop()
    assert not group_members(pid)
    running.join(timeout=10)
    assert not running.is_alive()
    assert held.phase == "stopped"
    held.one.stop()  # again changes nothing


def test_an_address_of_ipv6_is_in_brackets() -> None:
    table = engines()
    assert HeldProcess(table, 1, "fd00::1", "v", table.times).report().url == "http://[fd00::1]:9001"
