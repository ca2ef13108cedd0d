"""Headway's parts for Inspect: a model provider that calls a target, and plain tasks and BFCL as Inspect tasks.

Imported only when needed, by inspect_run.py, so that the rest of Headway works without Inspect; and by Inspect's own
commands, through the entry point in pyproject.toml: `inspect eval headway/bfcl --model headway/NAME`.

Invariant: one call to the provider is one request. Nothing is retried, so a time in the log is that of one answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelAPI,
    ModelCall,
    ModelOutput,
    ModelUsage,
    StopReason,
    get_model,
    modelapi,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

from headway.evals import dialects, targets
from headway.evals.bfcl import bfcl_wheel, read_bfcl, require_categories
from headway.evals.expected import RIGHT, GivenAnswer, verdict
from headway.evals.plain_tasks import PlainTask, read_plain_tasks
from headway.evals.tool_calls import ToolCall as Call

MAX_ANSWER_BYTES = 16 << 20
DEFAULT_MAX_TOKENS = 1024
DEFAULT_TIMEOUT_S = 120.0
SCHEMA = "schema"  # key in ToolInfo.options: the tool's parameters, unchanged
STOPS: dict[str, StopReason] = {
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "length": "max_tokens", "max_tokens": "max_tokens",
    "tool_calls": "tool_calls", "tool_use": "tool_calls", "refusal": "content_filter",
    "content_filter": "content_filter",
}  # fmt: skip


class NoAnswer(RuntimeError):
    """The target refused, failed or was too slow."""


@modelapi(name="headway")
class TargetAPI(ModelAPI):
    """Calls one target. `target` has the fields of targets.Target; the API key comes from its `key_env`."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        target: dict[str, Any] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        given = target or {"name": model_name, "url": base_url or "http://127.0.0.1:8000", "model": model_name}
        self.target = targets.Target(**given)
        self.on_call: Callable[[], None] = lambda: None
        self._timeout_s = timeout_s
        self._http = httpx.Client(timeout=timeout_s)

    def close(self) -> None:
        self._http.close()

    def should_retry(self, ex: Exception) -> bool:
        return False

    def max_connections(self) -> int:
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> tuple[ModelOutput | Exception, ModelCall]:
        question = dialects.Question(
            [_plain_message(one) for one in input],
            [_plain_tool(one) for one in tools],
            config.max_tokens or DEFAULT_MAX_TOKENS,
            tool_choice if isinstance(tool_choice, str) else tool_choice.name,
        )
        body = dialects.body_of(self.target, question)
        started = time.perf_counter()
        try:
            # In a thread, so that a busy event loop does not add to the measured time.
            answer, seconds = await anyio.to_thread.run_sync(self._post, body)
            reply = dialects.read_reply(self.target, answer)
        except (httpx.HTTPError, ValueError, NoAnswer) as error:
            why = str(error) or type(error).__name__
            return NoAnswer(why), ModelCall.create(body, {"error": why}, time=time.perf_counter() - started)
        finally:
            self.on_call()
        return self._output(reply, seconds, tools), ModelCall.create(body, answer)

    def _post(self, body: dict[str, Any]) -> tuple[Any, float]:
        """The answer, and its time by this client's clock."""
        target = self.target
        key = os.environ.get(target.key_env) if target.key_env else self.api_key
        started, data = time.perf_counter(), b""
        with self._http.stream(
            "POST", dialects.path_of(target), json=body, headers=dialects.headers_of(target, key)
        ) as answer:
            for part in answer.iter_bytes():
                data += part
                if len(data) > MAX_ANSWER_BYTES:
                    raise NoAnswer(f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes")
                if time.perf_counter() - started > self._timeout_s:
                    raise NoAnswer(f"no complete answer within {self._timeout_s:g} s")
        seconds = time.perf_counter() - started
        if answer.status_code != 200:
            raise NoAnswer(dialects.why_not(answer.status_code, data))
        return json.loads(data), seconds

    def _output(self, reply: dialects.Reply, seconds: float, tools: list[ToolInfo]) -> ModelOutput:
        given = {one.name.replace(".", "_"): one.name for one in tools}
        calls = [_tool_call(one, given.get(one.name, one.name)) for one in reply.calls]
        message = ChatMessageAssistant(
            content=reply.text, tool_calls=calls or None, model=self.model_name, source="generate"
        )
        usage = ModelUsage(
            input_tokens=reply.input_tokens - reply.cached_tokens,
            output_tokens=reply.output_tokens,
            total_tokens=reply.input_tokens + reply.output_tokens,
            input_tokens_cache_read=reply.cached_tokens,
        )
        choice = ChatCompletionChoice(message=message, stop_reason=STOPS.get(reply.stopped, "unknown"))
        measured = dialects.measured(self.target, reply, seconds)
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage, metadata={"headway": measured})


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.function, "arguments": json.dumps(one.arguments)},
            }
            for one in message.tool_calls
        ]
    if isinstance(message, ChatMessageTool):
        plain["tool_call_id"] = message.tool_call_id or ""
        if message.error is not None:
            plain["content"] = message.error.message
    return plain


def _plain_tool(tool: ToolInfo) -> dict[str, Any]:
    exact = (tool.options or {}).get(SCHEMA)
    parameters = exact if exact is not None else tool.parameters.model_dump(exclude_none=True)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _tool_call(called: dialects.Called, name: str) -> ToolCall:
    try:
        arguments = json.loads(called.arguments)
        problem = None if isinstance(arguments, dict) else "the arguments are not an object"
    except (ValueError, RecursionError) as error:
        arguments, problem = {}, str(error)
    return ToolCall(called.id, name, arguments if problem is None else {}, parse_error=problem)


@task
def plain(path: str, run_commands: bool = False) -> Task:
    """The tasks of a JSONL file."""
    tasks = read_plain_tasks(Path(path))
    if not run_commands and any(one.wanted.how == "command" for one in tasks):
        raise ValueError("tasks of this file run commands: allow them with run_commands")
    return _as_inspect(tasks, Path(path).resolve().parent, Path(path).stem)


@task
def bfcl(categories: str = "") -> Task:
    """Single-turn tasks of the Berkeley Function-Calling Leaderboard. `categories`: comma-separated, "" for all."""
    chosen = require_categories([one for one in categories.split(",") if one])
    return _as_inspect(read_bfcl(bfcl_wheel(), chosen), Path.cwd(), "bfcl")


def _as_inspect(tasks: list[PlainTask], folder: Path, name: str) -> Task:
    # Pass a function, not the tasks: Inspect logs the arguments of a solver with every sample.
    find = {one.task.id: one for one in tasks}.__getitem__
    samples = [
        Sample(
            id=one.task.id,
            input=[_message(said) for said in one.task.messages],
            target=one.wanted.describe(),
            metadata={"kind": one.kind},
        )
        for one in tasks
    ]
    return Task(
        dataset=MemoryDataset(samples, name=name), solver=ask_once(find), scorer=as_expected(find, folder), name=name
    )


def _message(said: dict[str, Any]) -> ChatMessage:
    text = said.get("content") or ""
    if said["role"] == "system":
        return ChatMessageSystem(content=text)
    if said["role"] == "user":
        return ChatMessageUser(content=text)
    if said["role"] == "tool":
        return ChatMessageTool(content=text, tool_call_id=said.get("tool_call_id"))
    calls = [
        _tool_call(
            dialects.Called(one["id"], one["function"]["name"], one["function"]["arguments"]), one["function"]["name"]
        )
        for one in said.get("tool_calls") or []
    ]
    return ChatMessageAssistant(content=text, tool_calls=calls or None)


@solver
def ask_once(find: Callable[[str], PlainTask]) -> Solver:
    """Makes one call and does not run its tools: only the choice of calls is judged."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        tools = [
            ToolInfo(
                name=one["function"]["name"],
                description=one["function"].get("description") or "",
                options={SCHEMA: one["function"].get("parameters") or {"type": "object", "properties": {}}},
            )
            for one in find(str(state.sample_id)).task.tools
        ]
        state.output = await get_model().generate(state.messages, tools)
        state.messages.append(state.output.message)
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def as_expected(find: Callable[[str], PlainTask], folder: Path) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        one = find(str(state.sample_id))
        calls = state.output.message.tool_calls or []
        answer = GivenAnswer(
            state.output.completion,
            [Call(call.function, call.arguments) for call in calls],
            any(call.parse_error for call in calls),
        )
        # In a thread: a slow command must not block other samples.
        found = await anyio.to_thread.run_sync(verdict, one.task, one.wanted, answer, folder)
        return Score(
            value=CORRECT if found == RIGHT else INCORRECT,
            answer=answer.text or json.dumps([{"name": call.name, **call.arguments} for call in answer.calls]),
            explanation=found,
            metadata={"verdict": found},
        )

    return score
