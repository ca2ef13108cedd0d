"""Tasks that expect tool calls, parsing of calls, and the verdict on an answer.

Parses the Hermes form `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. Compares as leniently as the Berkeley
Function-Calling Leaderboard (BFCL): every argument has a list of accepted values, and may be omitted if "" is one of
them; strings are compared without case, spaces and `,./-_*^`; an integer is accepted for a float. Does not know which
model answered or how fast. task_files.py reads and writes files of tasks.

Invariant: an answer has exactly one verdict, the first of MISTAKES that applies, or "right".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Mistake = Literal[
    "unparsable",  # it has the tag of a call but no valid call
    "no call",
    "extra call",
    "wrong tool",
    "missing argument",
    "invented argument",
    "wrong argument",
]
Verdict = Literal["right"] | Mistake
MISTAKES: tuple[Mistake, ...] = get_args(Mistake)

MAY_BE_OMITTED = ""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Like vLLM's parser: a call without the closing tag at the end of an answer still counts.
HERMES = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
LENIENT = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """One right call, with the accepted values of each argument."""

    name: str
    arguments: Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]  # in OpenAI's form
    expected: list[Expected]  # empty if no tool should be called
    tags: dict[str, str] = field(default_factory=dict)  # the task's origin, for tables

    def schema(self, name: str) -> dict[str, Any]:
        """The parameters of a tool, or an empty schema if the task has no such tool."""
        for tool in self.tools:
            if tool["function"]["name"] == name:
                return dict(tool["function"].get("parameters") or {})
        return {}


class Unparsable(ValueError):
    """The text has the tag of a call but is not a valid call."""


def parse_hermes(text: str) -> list[ToolCall]:
    """The calls in an answer; empty if it has no tag of a call."""
    return [_call(closed or open_ended) for closed, open_ended in HERMES.findall(text)]


def parse_openai(message: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of a message from /v1/chat/completions.

    A call that the engine's parser could not parse arrives as text, so the text is parsed too.
    """
    calls = []
    for one in message.get("tool_calls") or []:
        arguments = one["function"]["arguments"]
        calls.append(_call(json.dumps({"name": one["function"]["name"]})[:-1] + f', "arguments": {arguments}}}'))
    return calls or parse_hermes(message.get("content") or "")


def hermes(calls: Sequence[ToolCall]) -> str:
    """Write calls in the Hermes form, as a student learns it."""
    lines = [
        json.dumps({"name": one.name, "arguments": dict(one.arguments)}, ensure_ascii=False, separators=(", ", ": "))
        for one in calls
    ]
    return "\n".join(f"{OPEN}\n{line}\n{CLOSE}" for line in lines)


def right_answer(task: Task) -> list[ToolCall]:
    """One right answer: the first accepted value of every argument that may not be omitted."""
    return [
        ToolCall(one.name, {name: _plain(values[0]) for name, values in one.arguments.items() if _is_needed(values)})
        for one in task.expected
    ]


def judge_text(task: Task, text: str) -> Verdict:
    try:
        return judge(task, parse_hermes(text))
    except Unparsable:
        return "unparsable"


def judge_message(task: Task, message: Mapping[str, Any]) -> Verdict:
    try:
        return judge(task, parse_openai(message))
    except Unparsable:
        return "unparsable"


def judge(task: Task, calls: Sequence[ToolCall]) -> Verdict:
    """Calls may come in any order. If some match no expected call, the least wrong of them decides the verdict."""
    if len(calls) != len(task.expected):
        return "no call" if len(calls) < len(task.expected) else "extra call"
    left, unmet = list(calls), []
    for wanted in task.expected:
        match = next((one for one in left if _verdict(task, wanted, one) == "right"), None)
        if match is None:
            unmet.append(wanted)
        else:
            left.remove(match)
    if not unmet:
        return "right"
    return max((_verdict(task, unmet[0], one) for one in left), key=_nearness)


def _nearness(verdict: Verdict) -> int:
    return len(MISTAKES) if verdict == "right" else MISTAKES.index(verdict)


def _verdict(task: Task, wanted: Expected, call: ToolCall) -> Verdict:
    # Some engines and SDKs do not allow dots in a name.
    if call.name.replace(".", "_") != wanted.name.replace(".", "_"):
        return "wrong tool"
    schema = task.schema(wanted.name)
    needed = {name for name, values in wanted.arguments.items() if MAY_BE_OMITTED not in values}
    if not needed | set(schema.get("required") or ()) <= set(call.arguments):
        return "missing argument"
    if not set(call.arguments) <= set(wanted.arguments):
        return "invented argument"
    properties = schema.get("properties") or {}
    for name, value in call.arguments.items():
        kind = str((properties.get(name) or {}).get("type", ""))
        if not any(accepts(one, value, kind) for one in wanted.arguments[name]):
            return "wrong argument"
    return "right"


def accepts(accepted: Any, value: Any, kind: str = "") -> bool:
    """Whether a value matches an accepted one. `kind` is its type in the tool's schema, or "" if unknown."""
    if isinstance(accepted, bool) or isinstance(value, bool):
        return accepted is value
    if isinstance(accepted, str):
        return isinstance(value, str) and _lenient(accepted) == _lenient(value)
    if isinstance(accepted, int | float):
        if kind == "integer" and isinstance(accepted, int) and not isinstance(value, int):
            return False
        return isinstance(value, int | float) and accepted == value
    if isinstance(accepted, list):
        return isinstance(value, list) and len(accepted) == len(value) and all(map(accepts, accepted, value))
    if isinstance(accepted, dict):
        return isinstance(value, dict) and _accepts_object(accepted, value)
    return bool(accepted == value)


def _accepts_object(accepted: dict[str, Any], value: dict[str, Any]) -> bool:
    """Each entry of an accepted object has its own list of accepted values."""
    choices = {name: one if isinstance(one, list) else [one] for name, one in accepted.items()}
    if not set(value) <= set(choices):
        return False
    return all(
        any(accepts(one, value[name]) for one in values) if name in value else MAY_BE_OMITTED in values
        for name, values in choices.items()
    )


def _plain(accepted: Any) -> Any:
    """An accepted value as a plain value: for an object, the first choice of each required entry."""
    if isinstance(accepted, dict):
        choices = {name: one if isinstance(one, list) else [one] for name, one in accepted.items()}
        return {name: _plain(values[0]) for name, values in choices.items() if _is_needed(values)}
    if isinstance(accepted, list):
        return [_plain(one) for one in accepted]
    return accepted


def _is_needed(values: list[Any]) -> bool:
    return bool(values) and MAY_BE_OMITTED not in values


def _lenient(text: str) -> str:
    return LENIENT.sub("", text).lower().replace("'", '"')


def _call(text: str) -> ToolCall:
    try:
        said = json.loads(text)
        name, arguments = said["name"], said["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unparsable(text[:200]) from error
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Unparsable(text[:200])
    return ToolCall(name, arguments)
