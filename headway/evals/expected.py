"""What a task expects, in one of five forms, and the verdict on an answer.

    "expected": {"exact": "Paris"}                      the text, spaces around it apart; or a list of such texts
    "expected": {"regex": "^(yes|no)$"}                 found anywhere in the text
    "expected": {"json_schema": {"type": "object"}}     the text is JSON, in a code fence or not, and fits
    "expected": {"command": ["python", "check.py"]}     exits with 0 when it is given the text
    "expected": [{"name": "f", "arguments": {"x": [1]}}]    these calls, each argument one of the values; []: none

Invariant: an answer has exactly one verdict, "right" or one of MISTAKES. Which model answered is not known here.
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
MAX_TEXT_CHARS = 100_000  # of an answer that a pattern is searched in
COMMAND_TIMEOUT_S = 30.0
FENCE = re.compile(r"\A\s*```\w*\n(.*)\n\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    how: How
    what: Any

    def describe(self) -> str:
        """For the log's reader."""
        if self.how == "calls":
            return json.dumps([{"name": one.name, "arguments": dict(one.arguments)} for one in self.what])
        if self.how == "regex":
            return str(self.what.pattern)
        return "\n".join(self.what) if self.how == "exact" else json.dumps(self.what)


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    is_unparsable: bool = False  # it holds a call that cannot be read


def read_wanted(row: Any) -> Wanted:
    """Raises ValueError with what is wrong."""
    if isinstance(row, list):
        return Wanted("calls", [_call(one) for one in row])
    if not isinstance(row, dict) or len(row) != 1:
        raise ValueError("`expected` is a list of calls, or one of exact, regex, json_schema, command")
    ((how, what),) = row.items()
    if how == "exact":
        texts = [what] if isinstance(what, str) else what
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
            raise ValueError("`exact` is a text, or a list of texts")
        return Wanted("exact", texts)
    if how == "regex":
        return Wanted("regex", _pattern(what))
    if how == "json_schema":
        if not isinstance(what, dict):
            raise ValueError("`json_schema` is an object")
        return Wanted("json_schema", what)
    if how == "command":
        if not isinstance(what, list) or not what or not all(isinstance(one, str) for one in what):
            raise ValueError("`command` is a list of texts: the program and its arguments")
        return Wanted("command", what)
    raise ValueError(f"`expected` knows exact, regex, json_schema and command, not {how!r}")


def verdict(task: Task, wanted: Wanted, answer: GivenAnswer, folder: Path) -> str:
    """`folder` is where a command is run."""
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
        # A call that the engine's parser did not see arrives as text, and is as much a call.
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
    """Say of a schema that it is none before anything is asked."""
    for schema in schemas:
        jsonschema = _jsonschema()
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise SetupError(f"a `json_schema` is none: {error.message}") from error


def _jsonschema() -> Any:
    import jsonschema  # comes with the extra `eval`, and only its commands ask for verdicts

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
        raise SetupError(f"{command[0]}: {error.strerror or error}. A task's command is run in {folder}.") from error
    return done.returncode == 0


def _pattern(what: Any) -> re.Pattern[str]:
    if not isinstance(what, str) or len(what) > MAX_PATTERN_CHARS:
        raise ValueError(f"`regex` is a text of at most {MAX_PATTERN_CHARS} characters")
    try:
        return re.compile(what)
    except re.error as error:
        raise ValueError(f"`regex` cannot be read: {error}") from error


def _call(row: Any) -> Expected:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not isinstance(row.get("arguments"), dict):
        raise ValueError("an expected call has a name and arguments")
    for argument, values in row["arguments"].items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"the argument {argument!r} must have a list of accepted values, like [5]")
    return Expected(row["name"], row["arguments"])
