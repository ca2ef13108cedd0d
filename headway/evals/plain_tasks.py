"""Reads task files for `headway eval`: one JSON object per line, no knowledge of Inspect needed.

    {"id": "c-1", "kind": "capitals", "prompt": "The capital of France? One word.", "expected": {"exact": "Paris"}}

`messages` may replace `prompt`; `tools` are in OpenAI's form. expected.py describes the forms of `expected`.
A line that expects calls and has no `tools` uses those of the line before, as in files for distillation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.evals.expected import Wanted, read_wanted, require_schemas
from headway.evals.task_files import numbered_rows
from headway.evals.tool_calls import Task

FIELDS = ("id", "kind", "prompt", "messages", "tools", "expected", "tags")
MAX_EVAL_TASKS = 20_000
MAX_KINDS = 40
ANY_KIND = "tasks"
HOW_TO = 'A task is a line such as {"prompt": "The capital of France? One word.", "expected": {"exact": "Paris"}}'


@dataclass(frozen=True, slots=True)
class PlainTask:
    task: Task
    wanted: Wanted
    kind: str


def read_plain_tasks(path: Path) -> list[PlainTask]:
    """All tasks of a file. Raises SetupError with file and line if one is not valid."""
    found: dict[str, PlainTask] = {}
    tools: list[dict[str, Any]] = []
    for number, row in numbered_rows(path):
        try:
            one = _plain_task(row, number, tools)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SetupError(f"{path}:{number}: not a valid task ({what}). {HOW_TO}") from error
        if one.task.id in found:
            raise SetupError(f"{path}:{number}: duplicate id {one.task.id!r}.")
        if len(found) >= MAX_EVAL_TASKS:
            raise SetupError(f"{path}: more than {MAX_EVAL_TASKS:,} tasks.")
        tools = one.task.tools
        found[one.task.id] = one
    require_some(list(found.values()), str(path))
    require_schemas([one.wanted.what for one in found.values() if one.wanted.how == "json_schema"])
    return list(found.values())


def require_some(tasks: Sequence[PlainTask], where: str) -> None:
    if not tasks:
        raise SetupError(f"{where} has no tasks. {HOW_TO}")
    kinds = {one.kind for one in tasks}
    if len(kinds) > MAX_KINDS:
        raise SetupError(f"{where} has {len(kinds)} kinds of tasks; a page can show at most {MAX_KINDS}.")


def _plain_task(row: dict[str, Any], number: int, tools_before: list[dict[str, Any]]) -> PlainTask:
    if unknown := sorted(set(row) - set(FIELDS)):
        raise ValueError(f"unknown fields: {', '.join(unknown)}; known fields: {', '.join(FIELDS)}")
    wanted = read_wanted(row["expected"])
    expects_calls = wanted.how == "calls"
    tools = row.get("tools", tools_before if expects_calls else [])
    tags = row.get("tags", {})
    if not isinstance(tools, list) or not all(_is_tool(one) for one in tools):
        raise ValueError("`tools` must be in OpenAI's form")
    if not isinstance(tags, dict):
        raise ValueError("`tags` must be an object")
    name: Any = row.get("id", f"line-{number}")
    kind: Any = row.get("kind", tags.get("kind", ANY_KIND))
    if not all(isinstance(one, str) and 0 < len(one) <= 200 for one in (name, kind)):
        raise ValueError("`id` and `kind` must be strings of 1 to 200 characters")
    task = Task(name, _messages(row), tools, wanted.what if expects_calls else [])
    return PlainTask(task, wanted, kind)


def _messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("must have either `prompt` or `messages`")
    if "prompt" in row:
        if not isinstance(row["prompt"], str):
            raise ValueError("`prompt` must be a string")
        return [{"role": "user", "content": row["prompt"]}]
    messages = row["messages"]
    if not isinstance(messages, list) or not messages or not all(_is_message(one) for one in messages):
        raise ValueError("`messages` must be a list of messages, each with a role and a text")
    return messages


def _is_message(one: Any) -> bool:
    if not isinstance(one, dict) or one.get("role") not in ("system", "user", "assistant", "tool"):
        return False
    return isinstance(one.get("content"), str) or (one["role"] == "assistant" and bool(one.get("tool_calls")))


def _is_tool(one: Any) -> bool:
    function = one.get("function") if isinstance(one, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
