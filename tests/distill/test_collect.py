"""Collecting from a teacher over a real socket: one call per prompt, resuming after an interruption, retries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway.api.openai import read_chat
from headway.distill.collect import (
    Collected,
    Teacher,
    answered_keys,
    collect,
    estimate,
    question_of,
    read_questions,
)
from headway.errors import SetupError


class Server(ThreadingHTTPServer):
    """Answers with a tool call that repeats the question. `script` holds the statuses to answer with first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.script: list[int] = []
        self.headers_seen: list[str | None] = []
        self.gives_token_ids = True  # as vLLM does


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.headers_seen.append(self.headers["authorization"])
        status = self.server.script.pop(0) if self.server.script else 200
        said = body["messages"][-1]["content"]
        call = {"function": {"name": "f", "arguments": json.dumps({"x": said})}}
        message = {"content": None, "tool_calls": [call]} if "tools" in body else {"content": f"to {said}"}
        token = "token_id:7" if self.server.gives_token_ids else "a"
        likely = {"token": token, "top_logprobs": [{"token": token, "logprob": -0.12345}]}
        tokens = {"content": [likely]} if "logprobs" in body else None
        answer: dict[str, Any] = {
            "choices": [{"message": message, "finish_reason": "stop", "logprobs": tokens}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
        text = json.dumps(answer if status == 200 else {"error": {"message": "no seat"}}).encode()
        self.send_response(status)
        self.send_header("retry-after", "0")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def teacher_at(server: Server, **more: Any) -> Teacher:
    return Teacher(f"http://127.0.0.1:{server.server_port}/v1", "m", **more)


def prompts(tmp_path: Path, *texts: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def silent(collected: Collected) -> None:
    del collected


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tasks_have_the_tools_of_the_row_before_in_their_own_file_only(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    rows = [{"prompt": "a", "expected": "x", "tools": tools}, {"prompt": "b", "expected": "x"}]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("".join(json.dumps(row) + "\n" for row in rows))
    second.write_text(json.dumps({"prompt": "c", "expected": "x"}) + "\n")
    questions, duplicates = read_questions([first, second, first], Teacher("http://127.0.0.1:1", "m"))
    assert ["tools" in question.body for question in questions] == [True, True, False]
    assert duplicates == 2


def test_every_prompt_is_asked_once_on_flex(server: Server, tmp_path: Path) -> None:
    teacher = teacher_at(server, key="secret")
    questions, duplicates = read_questions([prompts(tmp_path, "a", "b", "a")], teacher)
    out = tmp_path / "answers.jsonl"
    guess = estimate(questions, duplicates, answered_keys(out))
    assert (guess.questions, guess.duplicates, guess.answered, guess.max_output_tokens) == (2, 1, 0, 512)
    assert guess.cost(0.0, 1_000.0) == 0.512
    got = collect(teacher, questions, out, 4, silent)
    assert (got.answered, got.prompt_tokens, got.output_tokens) == (2, 14, 6)
    assert {body["service_tier"] for body in server.asked} == {"flex"}
    assert set(server.headers_seen) == {"Bearer secret"}
    assert {row["answer"] for row in rows(out)} == {"to a", "to b"}


def test_a_run_resumes_where_it_was_interrupted(server: Server, tmp_path: Path) -> None:
    teacher = teacher_at(server)
    out = tmp_path / "answers.jsonl"
    collect(teacher, read_questions([prompts(tmp_path, "a", "b")], teacher)[0], out, 1, silent)
    with out.open("a") as file:
        file.write('{"key": "half a li')
    questions, _ = read_questions([prompts(tmp_path, "a", "b", "c")], teacher)
    assert estimate(questions, 0, answered_keys(out)).questions == 1
    collect(teacher, questions, out, 2, silent)
    assert len(server.asked) == 3
    assert [row["answer"] for row in rows(out)] == ["to a", "to b", "to c"]
    warmer, _ = read_questions([prompts(tmp_path, "a")], teacher_at(server, temperature=0.7))
    assert warmer[0].key not in answered_keys(out)


def test_calls_are_retried(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.distill.collect.MAX_PAUSE_S", 0.01)
    server.script = [429, 503, 429]
    teacher = teacher_at(server)
    got = collect(teacher, read_questions([prompts(tmp_path, "a")], teacher)[0], tmp_path / "out.jsonl", 1, silent)
    assert (got.answered, got.retries) == (1, 3)


def test_a_refused_prompt_is_skipped_and_reported(server: Server, tmp_path: Path) -> None:
    server.script = [400]
    teacher = teacher_at(server)
    questions, _ = read_questions([prompts(tmp_path, "a", "b")], teacher)
    got = collect(teacher, questions, tmp_path / "out.jsonl", 1, silent)
    assert got.answered == 1
    assert "answered 400: no seat" in got.refused[0]


def test_a_wrong_key_ends_the_run(server: Server, tmp_path: Path) -> None:
    server.script = [401]
    teacher = teacher_at(server)
    questions, _ = read_questions([prompts(tmp_path, *"abcdefgh")], teacher)
    with pytest.raises(SetupError, match="answered 401"):
        collect(teacher, questions, tmp_path / "out.jsonl", 1, silent)
    assert len(server.asked) <= 2


def test_tools_are_sent_and_tool_calls_are_kept_as_text(server: Server, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    path = tmp_path / "tasks.jsonl"
    lines = [{"messages": [{"role": "user", "content": "a"}], "tools": [tool], "expected": []}]
    lines.append({"messages": [{"role": "user", "content": "b"}], "expected": []})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    teacher = teacher_at(server, top_logprobs=5)
    out = tmp_path / "out.jsonl"
    collect(teacher, read_questions([path], teacher)[0], out, 1, silent)
    assert all(body["tools"] == [tool] and body["top_logprobs"] == 5 for body in server.asked)
    assert rows(out)[1]["answer"] == '<tool_call>\n{"name": "f", "arguments": {"x": "b"}}\n</tool_call>'
    assert rows(out)[1]["answer_ids"] == [7]
    assert rows(out)[1]["top_logprobs"] == [[[7, -0.1235]]]


def test_it_is_an_error_if_no_prompt_is_answered(server: Server, tmp_path: Path) -> None:
    server.script = [400, 400]
    teacher = teacher_at(server)
    questions, _ = read_questions([prompts(tmp_path, "a", "b")], teacher)
    with pytest.raises(SetupError, match="None of 2 prompts was answered"):
        collect(teacher, questions, tmp_path / "out.jsonl", 1, silent)


def test_the_gateway_accepts_the_request() -> None:
    """The gateway ignores unknown fields, so it must know every field of a request to a teacher."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    teacher = Teacher("http://x", "m", top_logprobs=10)
    question = question_of(teacher, [{"role": "user", "content": "a"}], [tool], {})
    body = json.dumps({**question.body, "service_tier": teacher.tier}).encode()
    assert json.loads(read_chat(body, "1").body)["return_tokens_as_token_ids"] is True


def test_top_logprobs_need_token_ids(server: Server, tmp_path: Path) -> None:
    server.gives_token_ids = False
    teacher = teacher_at(server, top_logprobs=5)
    with pytest.raises(SetupError, match="--top-logprobs 0"):
        collect(teacher, read_questions([prompts(tmp_path, "a")], teacher)[0], tmp_path / "out.jsonl", 1, silent)


def test_the_error_names_the_row_without_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(SetupError, match=r"prompts.jsonl:2: has neither"):
        read_questions([path], Teacher("http://127.0.0.1:1", "m"))
