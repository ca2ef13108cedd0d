"""The five forms of `expected`, and plain task files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SetupError
from headway.evals.bfcl import CATEGORIES, require_categories
from headway.evals.expected import MISTAKES, NO_ANSWER, GivenAnswer, read_wanted, verdict
from headway.evals.inspect_run import find_tasks
from headway.evals.plain_tasks import read_plain_tasks
from headway.evals.tool_calls import Task, ToolCall

TOOL = {"type": "function", "function": {"name": "turn", "parameters": {"type": "object", "required": ["by"]}}}
TURN = [{"name": "turn", "arguments": {"by": [90], "to": ["left", ""]}}]


def judged(expected: Any, answer: GivenAnswer, folder: Path = Path()) -> str:
    wanted = read_wanted(expected)
    task = Task("t", [], [TOOL], wanted.what if wanted.how == "calls" else [])
    return verdict(task, wanted, answer, folder)


@pytest.mark.parametrize(
    ("expected", "text", "found"),
    [
        ({"exact": "Paris"}, " Paris\n", "right"),
        ({"exact": ["Paris", "paris"]}, "paris", "right"),
        ({"exact": "Paris"}, "It is Paris.", "wrong answer"),
        ({"exact": "Paris"}, "  ", NO_ANSWER),
        ({"regex": r"\b42\b"}, "The answer is 42.", "right"),
        ({"regex": r"^42$"}, "The answer is 42.", "wrong answer"),
        ({"json_schema": {"required": ["a"]}}, '```json\n{"a": 1}\n```', "right"),
        ({"json_schema": {"required": ["a"]}}, '{"b": 1}', "off schema"),
        ({"json_schema": {"required": ["a"]}}, "a: 1", "unparsable"),
    ],
)
def test_texts(expected: Any, text: str, found: str) -> None:
    assert judged(expected, GivenAnswer(text)) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (GivenAnswer("", [ToolCall("turn", {"by": 90})]), "right"),
        (GivenAnswer('<tool_call>{"name": "turn", "arguments": {"by": 90}}</tool_call>'), "right"),
        (GivenAnswer("", [ToolCall("turn", {"by": 80})]), "wrong argument"),
        (GivenAnswer("", [ToolCall("turn", {"by": 90, "fast": True})]), "invented argument"),
        (GivenAnswer("", [ToolCall("turn", {"to": "left"})]), "missing argument"),
        (GivenAnswer("", [ToolCall("stop", {})]), "wrong tool"),
        (GivenAnswer("I turn."), "no call"),
        (GivenAnswer("<tool_call>{"), "unparsable"),
        (GivenAnswer("", [ToolCall("turn", {})], is_unparsable=True), "unparsable"),
        (GivenAnswer(""), NO_ANSWER),
    ],
)
def test_calls(answer: GivenAnswer, found: str) -> None:
    assert judged(TURN, answer) == found
    assert found == "right" or found in MISTAKES


def test_no_call_is_expected() -> None:
    assert judged([], GivenAnswer("None of these fits.")) == "right"
    assert judged([], GivenAnswer("", [ToolCall("turn", {"by": 1})])) == "extra call"


def test_a_command_reads_the_answer_in_the_tasks_folder(tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text("import sys; sys.exit(sys.stdin.read() != 'yes')")
    command = {"command": [sys.executable, "check.py"]}
    assert judged(command, GivenAnswer("yes"), tmp_path) == "right"
    assert judged(command, GivenAnswer("no"), tmp_path) == "wrong answer"
    with pytest.raises(SetupError, match=r"not-there: .* run in"):
        judged({"command": ["not-there"]}, GivenAnswer("yes"), tmp_path)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "a"}, "'expected' is missing"),
        ({"prompt": "a", "expected": {"exact": "b"}, "expcted": 1}, "unknown fields: expcted"),
        ({"prompt": "a", "messages": [], "expected": {"exact": "b"}}, "either `prompt` or `messages`"),
        ({"messages": [{"role": "user"}], "expected": {"exact": "b"}}, "each with a role and a text"),
        ({"prompt": "a", "expected": {"exact": "b", "regex": "c"}}, "one of exact, regex"),
        ({"prompt": "a", "expected": {"like": "b"}}, "not 'like'"),
        ({"prompt": "a", "expected": {"regex": "("}}, "`regex` is not valid"),
        ({"prompt": "a", "expected": {"regex": "a" * 1001}}, "at most 1000"),
        ({"prompt": "a", "expected": [{"name": "f", "arguments": {"x": 1}}]}, "like \\[5\\]"),
        ({"prompt": "a", "expected": {"command": "rm"}}, "a list of strings"),
        ({"prompt": "a", "expected": {"exact": "b"}, "tools": [1]}, "in OpenAI's form"),
        ({"prompt": "a", "expected": {"exact": "b"}, "kind": 3}, "must be strings"),
    ],
)
def test_the_error_names_an_invalid_line(tmp_path: Path, row: Any, why: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "first", "expected": {"exact": "x"}}\n' + json.dumps(row))
    with pytest.raises(SetupError, match=f"tasks.jsonl:2: .*{why}"):
        read_plain_tasks(path)


def test_task_files_for_distillation_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows: list[Any] = [
        {"id": "a", "messages": [{"role": "user", "content": "Turn."}], "tools": [TOOL], "expected": TURN},
        {"id": "b", "prompt": "Turn again.", "expected": TURN, "tags": {"kind": "turning"}},
        {"prompt": "Hello?", "expected": {"regex": "."}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    first, second, third = read_plain_tasks(path)
    assert second.task.tools == first.task.tools == [TOOL]
    assert third.task.tools == []
    assert [one.kind for one in (first, second, third)] == ["tasks", "turning", "tasks"]
    assert third.task.id == "line-3"


def test_files_are_checked_before_any_task_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"

    def complaint(*rows: Any) -> str:
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(SetupError) as raised:
            find_tasks(str(path), run_commands=False)
        return raised.value.message

    assert "has no tasks" in complaint()
    assert "--run-commands" in complaint({"prompt": "a", "expected": {"command": ["true"]}})
    assert "`json_schema` is not valid" in complaint({"prompt": "a", "expected": {"json_schema": {"type": 5}}})
    twice = {"id": "x", "prompt": "a", "expected": {"exact": "b"}}
    assert "duplicate id 'x'" in complaint(twice, twice)
    assert "41 kinds" in complaint(*[{**twice, "id": str(n), "kind": str(n)} for n in range(41)])
    path.write_text(json.dumps({"prompt": "a", "expected": {"command": ["true"]}}))
    assert find_tasks(str(path), run_commands=True).count == 1


def test_other_names_are_inspect_tasks() -> None:
    with pytest.raises(SetupError, match="no such file"):
        find_tasks("nowhere.py@task", run_commands=False)
    with pytest.raises(SetupError, match="neither a file of tasks"):
        find_tasks("gsm8k", run_commands=False)
    assert find_tasks("inspect_evals/gsm8k", run_commands=False).spec == "inspect_evals/gsm8k"
    with pytest.raises(SetupError, match="no category 'sql'"):
        find_tasks("bfcl:sql", run_commands=False)
    assert require_categories([]) == CATEGORIES
