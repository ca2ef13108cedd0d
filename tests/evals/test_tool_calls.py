"""Verdicts on hand-made answers: every kind of mistake, and BFCL's leniency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import SetupError
from headway.evals.task_files import read_tasks, write_tasks
from headway.evals.tool_calls import (
    MISTAKES,
    Expected,
    Task,
    ToolCall,
    Verdict,
    accepts,
    hermes,
    judge,
    judge_message,
    judge_text,
    parse_hermes,
    right_answer,
)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "float"},
        "unit": {"type": "string"},
    },
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}
    for name in ("get_weather", "travel.plan")
]
TASK = Task(
    "t1",
    [{"role": "user", "content": "Weather in New York for 3 days?"}],
    TOOLS,
    [Expected("get_weather", {"city": ["New York", "New York, NY"], "days": [3], "unit": ["", "celsius"]})],
)


def call(name: str = "get_weather", **arguments: Any) -> str:
    return hermes([ToolCall(name, arguments)])


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (call(city="New York", days=3), "right"),
        (call(city="new york ny", days=3, unit="Celsius"), "right"),
        ("I look it up. " + call(city="new-york", days=3), "right"),
        (call(city="New York", days=3).removesuffix("</tool_call>"), "right"),  # as vLLM parses it
        ("It is sunny in New York.", "no call"),
        ("", "no call"),
        ("<tool_call>get_weather(New York)</tool_call>", "unparsable"),
        ('<tool_call>{"name": "get_weather"}</tool_call>', "unparsable"),
        ('<tool_call>{"name": "get_weather", "arguments": "New York"}</tool_call>', "unparsable"),
        ('<tool_call>{"name": "get_weather", "arguments": {"city": "New Yo', "unparsable"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "unparsable"),
        (call("travel.plan", city="New York", days=3), "wrong tool"),
        (call(days=3), "missing argument"),
        (call(city="New York"), "missing argument"),
        (call(city="New York", days=3, share=0.5), "invented argument"),
        (call(city="New York", days=3, mood="good"), "invented argument"),
        (call(city="York", days=3), "wrong argument"),
        (call(city="New York", days=4), "wrong argument"),
        (call(city="New York", days="3"), "wrong argument"),
        (call(city="New York", days=3.0), "wrong argument"),
        (call(city="New York", days=True), "wrong argument"),
        (call(city="New York", days=3) + call(city="New York", days=3), "extra call"),
    ],
)
def test_the_verdict_names_the_mistake(answer: str, verdict: Verdict) -> None:
    assert judge_text(TASK, answer) == verdict
    assert verdict == "right" or verdict in MISTAKES


@pytest.mark.parametrize(
    ("accepted", "value", "kind", "is_right"),
    [
        ("April 1, 2024", "april 1 2024", "string", True),
        ("it's", 'it"s', "string", True),
        (5, 5.0, "float", True),
        (5.0, 5, "float", True),
        (5, 5.0, "integer", False),
        (1, True, "integer", False),
        (True, True, "boolean", True),
        (True, 1, "boolean", False),
        ([3, 4], [3, 4], "array", True),
        ([3, 4], [4, 3], "array", False),
        (["A b", "c"], ["ab", "C"], "array", True),
        ([3, 4], 3, "array", False),
        ({"a": [1, 2], "b": ["", "x"]}, {"a": 2}, "object", True),
        ({"a": [1, 2], "b": ["", "x"]}, {"a": 2, "b": "X"}, "object", True),
        ({"a": [1, 2], "b": ["x"]}, {"a": 2}, "object", False),
        ({"a": [1]}, {"a": 1, "c": 1}, "object", False),
        ([{"a": [1]}, {"a": [2]}], [{"a": 1}, {"a": 2}], "array", True),
        ({"a": [{"b": [1]}]}, {"a": {"b": 1}}, "object", True),
        (None, None, "", True),
        ("x", None, "string", False),
    ],
)
def test_values_are_compared_leniently_but_not_blindly(accepted: Any, value: Any, kind: str, is_right: bool) -> None:
    assert accepts(accepted, value, kind) is is_right


def test_several_calls_may_come_in_any_order() -> None:
    pair = Task("t2", [], TOOLS, [Expected("get_weather", {"city": [city]}) for city in ("Oslo", "Rome")])
    oslo, rome = ToolCall("get_weather", {"city": "oslo"}), ToolCall("get_weather", {"city": "rome"})
    assert judge(pair, [rome, oslo]) == "right"
    assert judge(pair, [rome]) == "no call"
    assert judge(pair, [rome, rome]) == "wrong argument"
    assert judge(pair, [rome, ToolCall("travel.plan", {"city": "Oslo"})]) == "wrong tool"


def test_a_call_is_a_mistake_if_none_is_expected() -> None:
    nothing = Task("t3", [], TOOLS, [])
    assert judge_text(nothing, "Good morning.") == "right"
    assert judge_text(nothing, call(city="Oslo")) == "extra call"


def test_names_with_dots_match_their_spelling_without_dots() -> None:
    dotted = Task("t4", [], TOOLS, [Expected("travel.plan", {"city": ["Oslo"]})])
    assert judge(dotted, [ToolCall("travel_plan", {"city": "Oslo"})]) == "right"


def test_the_right_answer_is_right_and_parses_back() -> None:
    [answer] = right_answer(TASK)
    assert answer == ToolCall("get_weather", {"city": "New York", "days": 3})
    assert parse_hermes(hermes([answer])) == [answer]
    nested = Task("t5", [], TOOLS, [Expected("get_weather", {"city": [{"a": ["x", "y"], "b": ["", 1]}]})])
    assert right_answer(nested) == [ToolCall("get_weather", {"city": {"a": "x"}})]
    assert judge(nested, right_answer(nested)) == "right"


def test_an_answer_through_an_sdk_gets_the_same_verdict() -> None:
    function = {"name": "get_weather", "arguments": json.dumps({"city": "New York", "days": 3})}
    assert judge_message(TASK, {"content": None, "tool_calls": [{"function": function}]}) == "right"
    # A call that the engine's parser could not parse arrives as text.
    assert judge_message(TASK, {"content": "<tool_call>{oh</tool_call>", "tool_calls": None}) == "unparsable"
    broken = {"name": "get_weather", "arguments": '{"city": '}
    assert judge_message(TASK, {"tool_calls": [{"function": broken}]}) == "unparsable"


def test_tasks_are_read_as_written(tmp_path: Path) -> None:
    other = Task("t6", TASK.messages, TOOLS[:1], TASK.expected, {"set": "hard"})
    path = tmp_path / "tasks.jsonl"
    same_tools = Task("t7", TASK.messages, TOOLS[:1], TASK.expected)
    assert write_tasks(path, [TASK, other, same_tools]) == 3
    assert read_tasks(path) == [TASK, other, same_tools]
    assert "tools" not in json.loads(path.read_text().splitlines()[2])


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"id": "a"'], "tasks.jsonl:1: not valid JSON"),
        (["", "[1]"], "tasks.jsonl:2: must be a JSON object"),
        (['{"id": "a", "messages": []}'], "tasks.jsonl:1: not a valid task ('expected' is missing)"),
        (['{"id": 1, "messages": [], "expected": []}'], "`id` must be a string"),
        (
            ['{"id": "a", "messages": [], "expected": [{"name": "f", "arguments": {"x": 1}}]}'],
            "list of accepted values",
        ),
        (['{"id": "a", "messages": [], "expected": []}'] * 2, "tasks.jsonl:2: duplicate id 'a', first used in line 1"),
        (['{"id": "' + "a" * 2_000_000 + '"}'], "longer than"),
    ],
)
def test_the_error_names_a_bad_line(tmp_path: Path, lines: list[str], complaint: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(SetupError) as raised:
        read_tasks(path)
    assert complaint in raised.value.message
