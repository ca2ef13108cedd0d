"""Real small processes stand in for vLLM: an HTTP server with a child in its group."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from headway.errors import SetupError
from headway.local import engine_process
from headway.local.engine_process import EngineProcess, LocalEngine, cache_dir, cpu_vllm, free_port, wait_all_ready
from headway.local.guard import GuardedProcess
from headway.local.guard import group_members as living_in_group

# Shaped like vLLM: the API server answers /health once its child is up, and the child carries the kernel's 15
# characters of VLLM::EngineCore. With --deaf the child ignores SIGTERM and its parent forgets it.
STAND_IN = '''
import signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

CORE = """
import signal, sys
open("/proc/self/comm", "w").write("VLLM::EngineCore")
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""
core = subprocess.Popen([sys.executable, "-c", CORE, *sys.argv], stdout=subprocess.PIPE)
core.stdout.readline()

def end(*_):
    core.terminate()
    core.wait()
    sys.exit(0)

if "--deaf" not in sys.argv:
    signal.signal(signal.SIGTERM, end)

class Health(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Health.asked += 1
        print(f"(EngineCore pid=7) INFO 01-31 12:00:00 [core.py:118] asked {Health.asked} times", flush=True)
        self.send_response(503 if Health.asked == 1 else 200)
        self.end_headers()
    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Health).serve_forever()
'''


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))


def stand_in(tmp_path: Path, *extra_args: str, source: str = STAND_IN) -> LocalEngine:
    script = tmp_path / "stand_in.py"
    script.write_text(source)
    return LocalEngine((sys.executable, str(script)), "some/model", "some/model", free_port(), 4, extra_args=extra_args)


def wait_for_end(pid: int) -> None:
    """Of any process, ours or not, without asking again and again."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([handle], [], [], 20)
    os.close(handle)
    assert ended, f"process {pid} still runs"


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("HEADWAY_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/headway")


def test_cpu_engine_computes_on_its_core_and_stays_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(engine_process, "_has_bf16_instructions", lambda: True)
    command = cpu_vllm(Path("/engine/bin/python"))
    engine = LocalEngine(command, str(tmp_path), "small", 9, 16, on_cpu=True, core=1, extra_args=("--seed", "7"))
    assert engine.arguments() == (
        f"/engine/bin/python -m vllm.entrypoints.openai.api_server --model {tmp_path} --host 127.0.0.1 --port 9 "
        "--served-model-name small --max-num-seqs 16 --max-num-queued-reqs 24 --enable-per-request-metrics "
        "--enable-force-include-usage --enable-prompt-tokens-details --enable-scale-out --enforce-eager --seed 7"
    ).split(" ")
    assert {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }.items() <= engine.environment().items()


def test_cpu_without_bf16_instructions_computes_in_float32_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "_has_bf16_instructions", lambda: False)

    def dtypes(*extra_args: str, on_cpu: bool = True) -> list[str]:
        arguments = LocalEngine(("vllm",), "m", "m", 9, 4, on_cpu=on_cpu, extra_args=extra_args).arguments()
        return [value for flag, value in pairwise(arguments) if flag == "--dtype"]

    assert dtypes() == ["float32"]
    assert dtypes("--dtype", "bfloat16") == ["bfloat16"]
    assert dtypes(on_cpu=False) == []


def test_gpu_engine_has_no_cpu_settings_and_may_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    engine = LocalEngine(("vllm", "serve"), "owner/model", "owner/model", 9, 16)
    assert engine.arguments()[:3] == ["vllm", "serve", "owner/model"]
    assert "--enforce-eager" not in engine.arguments()
    assert not {name for name in engine.environment() if name.startswith("VLLM_CPU_") or name == "HF_HUB_OFFLINE"}


def test_ready_engine_answers_and_stop_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there: asking it would fail
    monkeypatch.delenv("no_proxy", raising=False)
    said: list[str] = []
    with EngineProcess(stand_in(tmp_path)) as engine:
        engine.wait_ready(20, said.append)
        group = engine.pid
        assert engine.url == f"http://127.0.0.1:{engine.engine.port}"
        assert set(living_in_group(group)) == {group, engine.engine_core_pid()}
    assert living_in_group(group) == []
    assert "asked 1 times" in said
    engine.stop()  # again: nothing to do


def test_engines_that_start_together_are_told_apart(tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []
    with EngineProcess(stand_in(tmp_path)) as first, EngineProcess(stand_in(tmp_path)) as second:
        wait_all_ready([first, second], 20, lambda number, message: said.append((number, message)))
        assert first.is_ready()
        assert second.is_ready()
    assert {(0, "asked 1 times"), (1, "asked 1 times")} <= set(said)


def test_engine_can_be_started_again_after_stop(tmp_path: Path) -> None:
    engine = EngineProcess(stand_in(tmp_path))
    for _ in range(2):
        with engine:
            engine.wait_ready(20)
            with pytest.raises(RuntimeError, match="already started"):
                engine.start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = engine.pid


def test_children_that_ignore_the_request_are_killed(tmp_path: Path) -> None:
    engine = EngineProcess(stand_in(tmp_path, "--deaf"))
    engine.start()
    engine.wait_ready(20)
    group = engine.pid
    engine.stop(grace_s=0.1)
    assert living_in_group(group) == []


def test_second_interrupt_still_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineProcess(stand_in(tmp_path, "--deaf"))
    engine.start()
    engine.wait_ready(20)
    group = engine.pid

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.stop(grace_s=1000)
    assert living_in_group(group) == []


@pytest.mark.parametrize(("extra_args", "grace_s"), [((), 1000.0), (("--deaf",), 0.1)])
def test_stop_ends_the_children_of_a_killed_api_server(
    extra_args: tuple[str, ...], grace_s: float, tmp_path: Path
) -> None:
    engine = EngineProcess(stand_in(tmp_path, *extra_args))
    engine.start()
    engine.wait_ready(20)
    group, core = engine.pid, engine.engine_core_pid()
    engine.kill()
    wait_for_end(group)
    assert living_in_group(group) == [core]
    engine.stop(grace_s)
    assert living_in_group(group) == []


def test_stop_wakes_a_stopped_child_instead_of_waiting_for_it(tmp_path: Path) -> None:
    engine = EngineProcess(stand_in(tmp_path))
    engine.start()
    engine.wait_ready(20)
    group = engine.pid
    os.kill(engine.engine_core_pid(), signal.SIGSTOP)
    engine.stop(grace_s=1000)  # longer than the test may take
    assert living_in_group(group) == []


def test_early_exit_is_reported_with_the_end_of_the_log(tmp_path: Path) -> None:
    source = "for n in range(40): print('line', n)\nraise SystemExit('no memory left')"
    with EngineProcess(stand_in(tmp_path, source=source)) as engine:
        with pytest.raises(SetupError) as caught:
            engine.wait_ready(1000)
        assert "no memory left" in caught.value.message
        assert "line 39" in caught.value.message
        assert "line 9" not in caught.value.message
        assert str(engine.log_path) in caught.value.message
        assert "/" not in engine.log_path.name
        with pytest.raises(RuntimeError, match="No VLLM::EngineCore"):
            engine.engine_core_pid()


def test_engine_that_never_gets_ready_is_an_error(tmp_path: Path) -> None:
    source = "import signal; signal.pause()"
    with EngineProcess(stand_in(tmp_path, source=source)) as engine, pytest.raises(SetupError, match="not ready after"):
        engine.wait_ready(0.1)


def test_taken_port_is_an_error_before_the_start(tmp_path: Path) -> None:
    engine = stand_in(tmp_path)
    with socket.create_server(("127.0.0.1", engine.port)), pytest.raises(SetupError, match="--engine-port"):
        EngineProcess(engine).start()


@pytest.mark.parametrize("moment", ["ready", "loading"])
def test_engine_ends_when_its_owner_is_killed(moment: str, tmp_path: Path) -> None:
    engine = stand_in(tmp_path)
    owner_source = (
        "from headway.local.engine_process import *\n"
        f"engine = EngineProcess({engine!r}); engine.start()\n"
        + ("engine.wait_ready(20); print(engine.engine_core_pid())\n" if moment == "ready" else "")
        + "print(engine.pid, flush=True); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", owner_source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [int(line) for line in iter(owner.stdout.readline, b"\n")]
        owner.kill()
    assert len(pids) == (2 if moment == "ready" else 1)
    for pid in pids:
        wait_for_end(pid)


def test_command_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    engine = LocalEngine(("/nonexistent/vllm", "serve"), "model", "model", free_port(), 1)
    with pytest.raises(SetupError, match="No such file or directory: '/nonexistent/vllm'"):
        EngineProcess(engine).start()


def test_exit_code_of_the_command_is_returned() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with open(os.devnull, "w") as nowhere:
        process = GuardedProcess(command, env=os.environ, output=nowhere.fileno())
    wait_for_end(process.pid)
    assert process.has_exited()
    assert process.end() == 3


def test_guard_is_no_child_of_its_owner_which_may_be_told_to_kill_its_children() -> None:
    with Path(os.devnull).open("wb") as output:
        process = GuardedProcess(["sleep", "60"], env=dict(os.environ), output=output.fileno())
    try:
        guard = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        parent = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()
    finally:
        process.end(grace_s=5)


def test_command_ends_with_a_guard_that_is_killed() -> None:
    with Path(os.devnull).open("wb") as output:
        process = GuardedProcess(["sleep", "60"], env=dict(os.environ), output=output.fileno())
    guard = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not process.has_exited():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.end() == 128 + signal.SIGKILL
