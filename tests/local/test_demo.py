"""The demo from its first line to its last, with a stand-in for vLLM and the official SDKs for what it prints."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from headway.errors import SetupError
from headway.local import demo
from headway.local.demo import calls_to_paste, run_demo
from headway.local.engine_process import EngineProcess, free_port
from headway.local.guard import group_members
from tests.local.test_engine_process import STAND_IN


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box with a stand-in vLLM: as a module, which is how the CPU one runs, and as a command."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    module = tmp_path / "modules" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{STAND_IN}")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(demo, "ensure_cpu_engine", lambda say: Path(sys.executable))
    monkeypatch.setattr(demo, "ensure_smollm2", lambda python, say: tmp_path)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process group of every engine started."""
    started: list[int] = []
    start = EngineProcess.start

    def remembered(engine: EngineProcess) -> None:
        start(engine)
        started.append(engine.pid)

    monkeypatch.setattr(EngineProcess, "start", remembered)
    return started


class Screen:
    """Narrow, to see that what is to be pasted is not broken."""

    def __init__(self) -> None:
        self.console = Console(file=io.StringIO(), width=60)

    @property
    def text(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()


def run(screen: Screen, serve: demo.Serve, model: str | None = None) -> int:
    return run_demo(model=model, port=free_port(), engine_port=None, seats=16, console=screen.console, serve=serve)


@pytest.mark.parametrize(("model", "served"), [(None, "smollm2-135m"), ("owner/model", "owner/model")])
def test_demo_serves_a_healthy_engine_and_stops_it(model: str | None, served: str, groups: list[int]) -> None:
    screen, configs = Screen(), []

    def serve(config_path: Path, on_ready: Callable[[], None]) -> int:
        config = tomllib.loads(config_path.read_text())
        configs.append(config)
        with urllib.request.urlopen(config["models"][0]["replicas"][0]["url"] + "/health") as answer:
            assert answer.status == 200
        on_ready()
        return 7

    assert run(screen, serve, model) == 7
    assert group_members(groups[0]) == []
    (config,) = configs
    assert config["gateway"]["host"] == "127.0.0.1"
    assert config["models"][0]["name"] == served
    assert config["models"][0]["replicas"][0]["seats"] == 16
    for command in calls_to_paste(served, config["gateway"]["port"]).values():
        assert command in screen.text


def test_demo_says_what_takes_how_long() -> None:
    screen = Screen()
    run(screen, lambda config_path, on_ready: 0)
    for text in ("1/4", "3.6 GB", "2/4", "269 MB", "3/4", "40 s", "4/4", "ready after"):
        assert text in screen.text


def interrupted(*args: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "name"),
    [(demo, "ensure_cpu_engine"), (demo, "ensure_smollm2"), (EngineProcess, "wait_ready"), (None, "serve")],
)
def test_interrupt_at_any_step_ends_quietly(
    place: object, name: str, monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    if place is not None:
        monkeypatch.setattr(place, name, interrupted)
    screen = Screen()
    assert run(screen, interrupted) == 130
    assert "Stopped." in screen.text
    assert [group_members(group) for group in groups] == ([] if place is demo else [[]])


def test_engine_is_stopped_when_the_gateway_fails(groups: list[int]) -> None:
    def broken(config_path: Path, on_ready: Callable[[], None]) -> int:
        raise SetupError("no")

    with pytest.raises(SetupError):
        run(Screen(), broken)
    assert group_members(groups[0]) == []


def test_named_model_without_vllm_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SetupError, match="pip install vllm"):
        run(Screen(), interrupted, "owner/model")


def test_taken_gateway_port_is_reported_first(monkeypatch: pytest.MonkeyPatch, sse_port: int) -> None:
    monkeypatch.setattr(demo, "ensure_cpu_engine", interrupted)
    with pytest.raises(SetupError, match="--port"):
        run_demo(model=None, port=sse_port, engine_port=None, seats=1, console=Screen().console, serve=lambda *_: 0)


OPENAI_EVENTS: list[object] = [
    {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    for choices in (
        [{"index": 0, "delta": {"role": "assistant", "content": "It "}}],
        [{"index": 0, "delta": {"content": "scatters."}, "finish_reason": "stop"}],
        [],
    )
]
MESSAGE: dict[str, object] = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
}
ANTHROPIC_EVENTS: list[object] = [
    {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 1, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "scatters."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


class SseHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["model"] == "it's/mine"
        assert body["stream"] is True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if self.path == "/v1/messages":
            for event in ANTHROPIC_EVENTS:
                assert isinstance(event, dict)
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        elif self.path == "/v1/chat/completions":
            for event in [*map(json.dumps, OPENAI_EVENTS), "[DONE]"]:
                self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def sse_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SseHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("client", ["curl", "openai", "anthropic"])
def test_pasted_call_streams_the_answer(client: str, sse_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if client == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    command = calls_to_paste("it's/mine", sse_port)[client]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if client == "curl":
        assert "scatters." in done.stdout
    else:
        assert done.stdout == "It scatters.\n"
