"""What a task expects, in one of five forms, and the verdict on an answer.

    "expected": {"exact": "Paris"}                      this text, or one of a list; surrounding whitespace is ignored
    "expected": {"regex": "^(yes|no)$"}                 the text contains a match
    "expected": {"json_schema": {"type": "object"}}     the text is valid JSON of this schema, in a code fence or not
    "expected": {"command": ["python", "check.py"]}     the command exits with 0, given the text on its input
    "expected": [{"name": "f", "arguments": {"x": [1]}}]    these calls, each argument one of the values; [] for none

Invariant: an answer has exactly one verdict, "right" or one of MISTAKES. Does not know which model answered.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.errors import SetupError
from headway.evals import tool_calls
from headway.evals.tool_calls import Expected, Task, ToolCall, Unparsable

How = Literal["exact", "regex", "json_schema", "calls", "command"]
NO_ANSWER = "no answer"  # refused, failed, timed out, or empty
MISTAKES: tuple[str, ...] = (NO_ANSWER, *tool_calls.MISTAKES, "off schema", "wrong answer")
RIGHT = "right"

MAX_PATTERN_CHARS = 1000
MAX_TEXT_CHARS = 100_000  # of an answer, searched for a pattern
COMMAND_TIMEOUT_S = 30.0
FENCE = re.compile(r"\A\s*```\w*\n(.*)\n\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    how: How
    what: Any

    def describe(self) -> str:
        """The text that Inspect's log shows."""
        if self.how == "calls":
            return json.dumps([{"name": one.name, "arguments": dict(one.arguments)} for one in self.what])
        if self.how == "regex":
            return str(self.what.pattern)
        return "\n".join(self.what) if self.how == "exact" else json.dumps(self.what)


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    is_unparsable: bool = False  # it contains a call that cannot be parsed


def read_wanted(row: Any) -> Wanted:
    """Raises ValueError if `row` is not one of the five forms."""
    if isinstance(row, list):
        return Wanted("calls", [_call(one) for one in row])
    if not isinstance(row, dict) or len(row) != 1:
        raise ValueError("`expected` must be a list of calls, or one of exact, regex, json_schema, command")
    ((how, what),) = row.items()
    if how == "exact":
        texts = [what] if isinstance(what, str) else what
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
            raise ValueError("`exact` must be a string or a list of strings")
        return Wanted("exact", texts)
    if how == "regex":
        return Wanted("regex", _pattern(what))
    if how == "json_schema":
        if not isinstance(what, dict):
            raise ValueError("`json_schema` must be an object")
        return Wanted("json_schema", what)
    if how == "command":
        if not isinstance(what, list) or not what or not all(isinstance(one, str) for one in what):
            raise ValueError("`command` must be a list of strings: the program and its arguments")
        return Wanted("command", what)
    raise ValueError(f"`expected` must have one of exact, regex, json_schema, command, not {how!r}")


def verdict(task: Task, wanted: Wanted, answer: GivenAnswer, folder: Path) -> str:
    """Judge an answer. A command runs in `folder`."""
    if wanted.how == "calls":
        return _verdict_on_calls(task, answer)
    if not answer.text.strip():
        return NO_ANSWER
    if wanted.how == "exact":
        return RIGHT if answer.text.strip() in [one.strip() for one in wanted.what] else "wrong answer"
    if wanted.how == "regex":
        return RIGHT if wanted.what.search(answer.text[:MAX_TEXT_CHARS]) else "wrong answer"
    if wanted.how == "json_schema":
        return _verdict_on_json(wanted.what, answer.text)
    return RIGHT if _passes(wanted.what, answer.text, folder) else "wrong answer"


def _verdict_on_calls(task: Task, answer: GivenAnswer) -> str:
    if answer.is_unparsable:
        return "unparsable"
    if not answer.calls and not answer.text.strip():
        return NO_ANSWER
    try:
        # A call that the engine's parser missed arrives as text and counts as a call.
        return tool_calls.judge(task, answer.calls or tool_calls.parse_hermes(answer.text))
    except Unparsable:
        return "unparsable"


def _verdict_on_json(schema: dict[str, Any], text: str) -> str:
    fenced = FENCE.match(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return "unparsable"
    return RIGHT if _jsonschema().Draft202012Validator(schema).is_valid(value) else "off schema"


def require_schemas(schemas: Sequence[dict[str, Any]]) -> None:
    """Reject invalid schemas before any task is sent."""
    for schema in schemas:
        jsonschema = _jsonschema()
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise SetupError(f"a `json_schema` is not valid: {error.message}") from error


def _jsonschema() -> Any:
    import jsonschema  # comes with the extra `eval`

    return jsonschema


def _passes(command: Sequence[str], text: str, folder: Path) -> bool:
    try:
        done = subprocess.run(
            command, input=text.encode(), cwd=folder, timeout=COMMAND_TIMEOUT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    except OSError as error:
        raise SetupError(f"{command[0]}: {error.strerror or error}. Commands of tasks run in {folder}.") from error
    return done.returncode == 0


def _pattern(what: Any) -> re.Pattern[str]:
    if not isinstance(what, str) or len(what) > MAX_PATTERN_CHARS:
        raise ValueError(f"`regex` must be a string of at most {MAX_PATTERN_CHARS} characters")
    try:
        return re.compile(what)
    except re.error as error:
        raise ValueError(f"`regex` is not valid: {error}") from error


def _call(row: Any) -> Expected:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not isinstance(row.get("arguments"), dict):
        raise ValueError("an expected call must have a name and arguments")
    for argument, values in row["arguments"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"the argument {argument!r} must have a list of accepted values, like [5]")
    return Expected(row["name"], row["arguments"])
