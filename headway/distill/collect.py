"""Collects a teacher's answers: sends one flex call per prompt and appends each answer to a file. Runs can be resumed.

Speaks the OpenAI chat dialect over HTTP. Identifies a call by a hash of its request, so that a prompt that occurs twice
in a file is sent once, and an answered one is not sent again. Does not know what the answers are for.

Invariant: every line of the file is a complete answer. A run that is interrupted loses at most the calls in flight.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway.errors import SetupError
from headway.evals.task_files import numbered_rows
from headway.evals.tool_calls import Unparsable, hermes, parse_openai

CALL_TIMEOUT_S = 600.0
MAX_RETRY_S = 3600.0  # long, because flex calls wait for free seats
MAX_PAUSE_S = 60.0
RETRY_STATUSES = {429, 500, 502, 503, 504, 529}
REFUSAL_STATUSES = {400, 413, 422}  # this prompt will never be answered; others may be
CHARS_PER_TOKEN = 4.0  # approximately, for English and JSON
MTOK = 1_000_000

Progress = Callable[["Collected"], None]


@dataclass(frozen=True, slots=True)
class Teacher:
    url: str
    model: str
    tier: str = "flex"
    max_tokens: int = 256
    temperature: float = 0.0
    top_logprobs: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True)
class TeacherQuestion:
    key: str
    body: dict[str, Any]
    tags: Mapping[str, str]

    @property
    def estimated_tokens(self) -> int:
        prompt = [self.body["messages"], self.body.get("tools", [])]
        return int(len(json.dumps(prompt, ensure_ascii=False)) / CHARS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The calls that are left to make, and an upper bound of their tokens."""

    questions: int
    answered: int  # by an earlier run
    duplicates: int
    prompt_tokens: int
    max_output_tokens: int

    def cost(self, input_price: float, output_price: float) -> float:
        """The highest possible cost, from prices per million tokens."""
        return (self.prompt_tokens * input_price + self.max_output_tokens * output_price) / MTOK


@dataclass
class Collected:
    total: int
    answered: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    refused: list[str] = field(default_factory=list)  # the error message for each refused prompt


def read_questions(paths: Iterable[Path], teacher: Teacher) -> tuple[list[TeacherQuestion], int]:
    """Read tasks, or rows with `messages` or `prompt`. Returns the questions and the number of duplicates."""
    questions: dict[str, TeacherQuestion] = {}
    duplicates = 0
    for path in paths:
        for question in _questions_in(path, teacher):
            duplicates += question.key in questions
            questions.setdefault(question.key, question)
    return list(questions.values()), duplicates


def _questions_in(path: Path, teacher: Teacher) -> Iterator[TeacherQuestion]:
    tools: Any = None
    for number, row in numbered_rows(path):
        messages = row.get("messages") or ([{"role": "user", "content": row["prompt"]}] if "prompt" in row else None)
        if not isinstance(messages, list) or not messages:
            raise SetupError(f"{path}:{number}: has neither `messages` nor a `prompt`.")
        # In a file of tasks, a row without `tools` has those of the row before.
        tools = row.get("tools", tools if "expected" in row else None)
        yield question_of(teacher, messages, tools, row.get("tags") or {})


def question_of(teacher: Teacher, messages: list[Any], tools: Any, tags: Mapping[str, str]) -> TeacherQuestion:
    body: dict[str, Any] = {
        "model": teacher.model,
        "messages": messages,
        "max_tokens": teacher.max_tokens,
        "temperature": teacher.temperature,
    }
    if tools:
        body["tools"] = tools
    if teacher.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": teacher.top_logprobs, "return_tokens_as_token_ids": True}
    # The tier is not part of the key: it changes when an answer comes, not the answer.
    key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
    return TeacherQuestion(key, body, tags)


def answered_keys(path: Path) -> set[str]:
    """The keys of the answers in a file. Removes an incomplete last line, which an interrupted run leaves behind."""
    if not path.exists():
        return set()
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        with path.open("r+b") as file:
            file.truncate(whole)
    return {str(row.get("key")) for _, row in numbered_rows(path)}


def estimate(questions: list[TeacherQuestion], duplicates: int, answered: set[str]) -> Estimate:
    left = [one for one in questions if one.key not in answered]
    return Estimate(
        len(left),
        len(questions) - len(left),
        duplicates,
        sum(one.estimated_tokens for one in left),
        sum(one.body["max_tokens"] for one in left),
    )


def collect(
    teacher: Teacher, questions: Iterable[TeacherQuestion], out: Path, at_once: int, progress: Progress
) -> Collected:
    """Send every question that has no answer yet, `at_once` at a time."""
    answered = answered_keys(out)
    left = [one for one in questions if one.key not in answered]
    into, lock, stopped = Collected(len(left)), threading.Lock(), threading.Event()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file, ThreadPoolExecutor(at_once) as pool:

        def one(question: TeacherQuestion) -> None:
            if stopped.is_set():
                return
            try:
                answer = _ask(teacher, question, into, stopped)
                row = _row(question, answer)
            except _Refused as error:
                with lock:
                    into.refused.append(str(error))
                return
            with lock:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                into.answered += 1
                usage = answer.get("usage") or {}
                into.prompt_tokens += usage.get("prompt_tokens", 0)
                into.output_tokens += usage.get("completion_tokens", 0)

        try:
            _watch({pool.submit(one, question) for question in left}, into, progress)
        finally:
            stopped.set()
    if into.refused and not into.answered and not answered:
        raise SetupError(f"None of {len(into.refused)} prompts was answered: {into.refused[0]}")
    return into


def _watch(running: set[Future[None]], into: Collected, progress: Progress) -> None:
    while running:
        done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()  # re-raises the call's exception
        progress(into)


class _Refused(Exception):
    """The teacher cannot answer this prompt."""


def _ask(teacher: Teacher, question: TeacherQuestion, into: Collected, stopped: threading.Event) -> dict[str, Any]:
    """Make one call. Retries while the server asks for it, for at most MAX_RETRY_S."""
    deadline = time.monotonic() + MAX_RETRY_S
    pause_s = 1.0
    while True:
        status, answer, retry_after = _post(teacher, question.body)
        if status == 200:
            return answer
        problem = f"{teacher.url} answered {status}: {_message(answer)}"
        if status in REFUSAL_STATUSES:
            raise _Refused(problem)
        if status not in RETRY_STATUSES or time.monotonic() > deadline or stopped.is_set():
            raise SetupError(problem)
        into.retries += 1
        pause_s = min(MAX_PAUSE_S, max(retry_after, pause_s * 1.5))
        stopped.wait(pause_s)


def _post(teacher: Teacher, body: dict[str, Any]) -> tuple[int, dict[str, Any], float]:
    parts = urlsplit(teacher.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CALL_TIMEOUT_S)
    headers = {"content-type": "application/json"}
    if teacher.key:
        headers["authorization"] = f"Bearer {teacher.key}"
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    try:
        connection.request("POST", path, json.dumps({**body, "service_tier": teacher.tier}).encode(), headers)
        response = connection.getresponse()
        text = response.read()
        retry_after = response.headers.get("retry-after", "0")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"error": {"message": text[:200].decode(errors="replace")}}
        return response.status, answer, float(retry_after) if retry_after.isdigit() else 0.0
    except (OSError, http.client.HTTPException) as error:
        return 503, {"error": {"message": f"{type(error).__name__}: {error}"}}, 0.0
    finally:
        connection.close()


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message") if isinstance(error, dict) else answer)[:300]


def _row(question: TeacherQuestion, answer: dict[str, Any]) -> dict[str, Any]:
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        calls = parse_openai({"tool_calls": message.get("tool_calls")})
    except (KeyError, IndexError, TypeError, Unparsable) as error:
        raise _Refused(f"the answer is not a chat completion ({type(error).__name__}: {error})") from error
    # The engine parsed tool calls out of the text; put them back, because the student learns the text.
    written = "\n".join(part for part in (text, hermes(calls)) if part)
    row: dict[str, Any] = {"key": question.key, "messages": question.body["messages"]}
    if "tools" in question.body:
        row["tools"] = question.body["tools"]
    row |= {"answer": written, "ended": choice.get("finish_reason"), "tags": dict(question.tags)}
    logprobs = (choice.get("logprobs") or {}).get("content")
    if logprobs:
        row |= _distribution(logprobs)
    return row


def _distribution(logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The ids of the answer's tokens and of the likeliest alternatives. Its text does not determine its tokens."""
    try:
        return {
            "answer_ids": [_token_id(one["token"]) for one in logprobs],
            "top_logprobs": [
                [[_token_id(top["token"]), round(top["logprob"], 4)] for top in one["top_logprobs"]] for one in logprobs
            ],
        }
    except ValueError as error:
        raise SetupError(f"{error}; only vLLM does. Use --top-logprobs 0 here.") from error


def _token_id(name: str) -> int:
    number = name.removeprefix("token_id:")
    if number == name:
        raise ValueError("The endpoint does not return token ids")
    return int(number)
