"""Tasks run by the real Inspect: targets of both dialects, their mistakes, and Inspect's own tasks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import pytest

from headway.evals.expected import NO_ANSWER
from headway.evals.targets import Target
from headway.evals.verdict import Attempt

pytestmark = pytest.mark.timeout(300)

TOOL = {
    "type": "function",
    "function": {
        "name": "turn",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer", "multipleOf": 5}}},
    },
}
TASKS: list[dict[str, Any]] = [
    {"id": "turn", "kind": "tools", "prompt": "turn", "tools": [TOOL], "expected": [{"name": "turn", "arguments": {"by": [90]}}]},
    {"id": "broken", "kind": "tools", "prompt": "broken", "expected": [{"name": "turn", "arguments": {"by": [90]}}]},
    {"id": "say", "kind": "words", "prompt": "say", "expected": {"exact": "turn or not"}},
    {"id": "refuse", "kind": "words", "prompt": "refuse", "expected": {"exact": "x"}},
    {"id": "sleep", "kind": "words", "prompt": "sleep", "expected": {"exact": "x"}},
]  # fmt: skip
TIMEOUT_S = 8.0  # much longer than a local endpoint takes, even on a busy machine
OWN_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def own():
    samples = [Sample(input="say", target="or not"), Sample(input="say", target="something else")]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""


class Endpoint(ThreadingHTTPServer):
    """Answers according to the last message, and records the requests."""

    asked: list[dict[str, Any]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        said = body["messages"][-1]["content"]
        said = said if isinstance(said, str) else said[0]["text"]
        if said == "sleep":
            self.server.closing.wait(60)
        status = 429 if said == "refuse" else 200
        answer = _openai(said) if self.path.endswith("completions") else _anthropic(said)
        data = json.dumps({"error": {"message": "not now"}} if status == 429 else answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client has timed out
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _openai(said: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "turn or not"}
    if said in ("turn", "broken"):
        arguments = '{"by": 90}' if said == "turn" else '{"by": '
        call = {"id": "1", "type": "function", "function": {"name": "turn", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


def _anthropic(said: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": "turn or not"}
    if said == "turn":
        block = {"type": "tool_use", "id": "1", "name": "turn", "input": {"by": 90}}
    return {"content": [block], "stop_reason": "end_turn", "usage": {"input_tokens": 10, "output_tokens": 5}}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, TASKS)))
    return str(path)


# In its own process: warnings about resources that Inspect leaves open would fail other tests. One for all tests, because
# Inspect takes seconds to import.
WORKER = """
import json, sys, traceback
from dataclasses import asdict
from pathlib import Path
from headway.evals.inspect_run import Settings, find_tasks, run_in_rounds
from headway.evals.targets import Target

for line in sys.stdin:
    given, calls = json.loads(line), []
    settings = Settings(Path(given["folder"]), given["limit"], timeout_s=given["timeout_s"])
    targets = [Target(**one) for one in given["targets"]]
    try:
        done = run_in_rounds(find_tasks(given["tasks"], False), targets, settings, calls.append)
        answer = {"calls": len(calls), "attempts": {name: list(map(asdict, some)) for name, some in done.items()}}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print("ANSWER", json.dumps(answer), flush=True)
"""


class Asking(Protocol):
    def __call__(self, tasks: str, targets: list[Target], limit: int | None = None) -> dict[str, list[Attempt]]: ...


@pytest.fixture(scope="module")
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        yield process
        process.stdin.close()
        process.wait(60)


@pytest.fixture
def asked_of(worker: subprocess.Popen[str], tmp_path: Path) -> Asking:
    def ask(tasks: str, targets: list[Target], limit: int | None = None) -> dict[str, list[Attempt]]:
        given = {"tasks": tasks, "targets": list(map(asdict, targets)), "folder": str(tmp_path / "logs")}
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(given | {"limit": limit, "timeout_s": TIMEOUT_S}) + "\n")
        worker.stdin.flush()
        answer = next(line for line in worker.stdout if line.startswith("ANSWER "))
        found = json.loads(answer.removeprefix("ANSWER "))
        assert "error" not in found, found["error"]
        assert found["calls"] == sum(map(len, found["attempts"].values()))
        return {name: [Attempt(**one) for one in some] for name, some in found["attempts"].items()}

    return ask


def by_task(found: dict[str, list[Attempt]]) -> dict[str, Attempt]:
    [attempts] = found.values()
    return {one.task: one for one in attempts}


def test_every_task_has_a_verdict_and_failures_count_as_no_answer(
    endpoint: Endpoint, tasks: str, asked_of: Asking
) -> None:
    target = Target("lab", endpoint.url, "m", input_micro=1_000_000, output_micro=2_000_000)
    found = by_task(asked_of(tasks, [target]))
    assert {name: one.verdict for name, one in found.items()} == {
        "turn": "right", "broken": "unparsable", "say": "right", "refuse": NO_ANSWER, "sleep": NO_ANSWER,
    }  # fmt: skip
    assert "429: not now" in found["refuse"].why
    assert found["sleep"].seconds >= TIMEOUT_S
    assert (found["say"].cost_micro, found["say"].is_proven, found["say"].kind) == (20, False, "words")
    assert len(endpoint.asked) == len(TASKS)  # nothing is retried
    assert endpoint.asked[0]["tools"] == [TOOL | {"function": {**TOOL["function"], "description": ""}}]  # type: ignore[dict-item]
    messages = Target("messages", endpoint.url, "m", "anthropic", speed="fast")
    spoken = by_task(asked_of(tasks, [messages], limit=3))
    assert spoken["turn"].verdict == spoken["say"].verdict == "right"
    assert spoken["say"].cost_micro is None
    assert endpoint.asked[-1]["speed"] == "fast"


def test_targets_take_turns_in_rounds(endpoint: Endpoint, asked_of: Asking, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    rows = [{"id": str(n), "prompt": str(n), "expected": {"exact": "x"}} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    targets = [Target("one", endpoint.url, "one"), Target("two", endpoint.url, "two")]
    found = asked_of(str(path), targets, limit=19)
    each = [[attempt.task for attempt in some] for some in found.values()]
    assert each[0] == each[1]
    assert sorted(map(int, each[0])) == list(range(19))
    models = [body["model"] for body in endpoint.asked]
    assert models == ["one"] * 6 + ["two"] * 6 + ["one"] * 6 + ["two"] * 6 + ["one"] * 7 + ["two"] * 7


def test_the_log_of_a_task_does_not_contain_the_other_tasks(
    endpoint: Endpoint, asked_of: Asking, tmp_path: Path
) -> None:
    """Inspect once wrote all tasks into every sample: with a thousand tasks, the log took longer than the answers."""
    path = tmp_path / "long.jsonl"
    dice = random.Random(1)
    rows = [{"id": str(n), "prompt": dice.randbytes(1000).hex(), "expected": {"exact": "x"}} for n in range(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    asked_of(str(path), [Target("lab", endpoint.url, "m")], limit=1)
    [log] = (tmp_path / "logs").iterdir()
    assert log.stat().st_size < path.stat().st_size / 10


def test_any_task_of_inspect_runs(endpoint: Endpoint, asked_of: Asking, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN_TASK)
    target = Target("lab", endpoint.url, "m")
    found = by_task(asked_of(f"{path}@own", [target]))
    assert [one.verdict for one in found.values()] == ["right", "wrong answer"]
    with pytest.raises(AssertionError, match="SetupError: Inspect could not run"):
        asked_of(f"{path}@other", [target])
