"""Reads and writes task files: one JSON object per line, of limited size. Errors name the line.

    {"id": "r-1", "messages": [..], "tools": [..], "expected": [{"name": "f", "arguments": {"x": [1, ""]}}], "tags": {}}

A line without `tools` has those of the line before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.evals.tool_calls import Expected, Task

MAX_LINE_BYTES = 1 << 20
MAX_TASKS = 1_000_000
HOW_TO = (
    'A task is a line such as {"id": "light-1", "messages": [{"role": "user", "content": "Switch the light off."}], '
    '"tools": [...], "expected": [{"name": "set_light", "arguments": {"on": [false]}}]}'
)


def write_tasks(path: Path, tasks: Iterable[Task]) -> int:
    """Write a task file atomically: it is complete or not there. Returns the number of tasks."""
    unfinished = path.with_name(f"{path.name}.partial")
    count = 0
    before: list[dict[str, Any]] | None = None
    with unfinished.open("w", encoding="utf-8") as file:
        for task in tasks:
            row: dict[str, Any] = {"id": task.id, "messages": task.messages}
            if task.tools != before:
                row["tools"] = before = task.tools
            row["expected"] = [{"name": one.name, "arguments": dict(one.arguments)} for one in task.expected]
            if task.tags:
                row["tags"] = task.tags
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    unfinished.replace(path)
    return count


def read_tasks(path: Path) -> list[Task]:
    """All tasks of a file. Raises SetupError with file and line if one is not valid."""
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    tools: list[dict[str, Any]] = []
    for number, row in numbered_rows(path):
        try:
            task = _task(row, tools)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SetupError(f"{path}:{number}: not a valid task ({what}). {HOW_TO}") from error
        if task.id in seen:
            raise SetupError(f"{path}:{number}: duplicate id {task.id!r}, first used in line {seen[task.id]}.")
        seen[task.id] = number
        tools = task.tools
        tasks.append(task)
    return tasks


def numbered_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file with their line numbers."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}.") from error
    with file:
        for number in range(1, MAX_TASKS + 2):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise SetupError(f"{path}:{number}: longer than {MAX_LINE_BYTES:,} bytes.")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SetupError(f"{path}:{number}: not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise SetupError(f"{path}:{number}: must be a JSON object.")
            yield number, row
    raise SetupError(f"{path}: more than {MAX_TASKS:,} lines.")


def _task(row: dict[str, Any], tools_before: list[dict[str, Any]]) -> Task:
    tools = row.get("tools", tools_before)
    messages, expected, tags = row["messages"], row["expected"], row.get("tags", {})
    if not isinstance(row["id"], str):
        raise TypeError("`id` must be a string")
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise TypeError("`messages` must be a list of messages, each with a role")
    if not isinstance(tools, list) or not all(isinstance(one["function"]["name"], str) for one in tools):
        raise TypeError("`tools` must be in OpenAI's form")
    if not isinstance(tags, dict) or not all(isinstance(one, str) for one in tags.values()):
        raise TypeError("the values of `tags` must be strings")
    return Task(row["id"], messages, tools, [_expected(one) for one in expected], tags)


def _expected(row: dict[str, Any]) -> Expected:
    name, arguments = row["name"], row["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("an expected call must have a name and arguments")
    for argument, values in arguments.items():
        if not isinstance(values, list) or not values:
            raise TypeError(f"the argument {argument!r} must have a list of accepted values")
    return Expected(name, arguments)
