"""The task sets of runs/distill.sh, and the chat template that renders their tools."""

from __future__ import annotations

import json
from typing import Any

import jinja2

from headway.distill.template import hermes_template
from headway.evals.tool_calls import Expected, Task, ToolCall, hermes, judge_text, right_answer
from runs.students import routine
from runs.students import tasks as hard


def test_routine_requests_are_repeatable_different_and_answerable() -> None:
    tasks = routine.routine_tasks("train", 600, 1)
    assert tasks == routine.routine_tasks("train", 600, 1)
    assert tasks != routine.routine_tasks("train", 600, 2)
    assert len({task.messages[0]["content"] for task in tasks}) == 600
    assert all(judge_text(task, hermes(right_answer(task))) == "right" for task in tasks)
    called = [task.expected[0].name for task in tasks]
    assert {called.count(name) for name in routine.NAMES_OF_TOOLS} == {50}


def test_train_and_test_sets_share_no_phrasings_and_no_values() -> None:
    for tool in routine.APPLICATION:
        train, test = ({way for ways in routine.WAYS[tool.name, part] for way, _ in ways} for part in ("train", "test"))
        assert train, tool.name
        assert test, tool.name
        assert not train & test
        for name, pool in tool.pools.items():
            values = {part: set(routine._values(tool, name, part)) for part in ("train", "test")}
            assert values["test"], name
            is_closed = "enum" in tool.arguments[name]
            assert is_closed or not values["train"] & values["test"], (tool.name, name, pool)
    used = [
        {(task.expected[0].name, name, str(value).lower())}
        for task in routine.routine_tasks("train", 2000, 0)
        for name, [value] in task.expected[0].arguments.items()
        if name in routine.FREE
    ]
    held_out = {
        (tool.name, name, str(value).lower())
        for tool in routine.APPLICATION
        for name in set(tool.pools) & routine.FREE
        for value in routine.part_of(tool.pools[name], "test")
    }
    assert not held_out & set().union(*used), "a generated value is in the test set"
    asked = [{task.messages[0]["content"] for task in routine.routine_tasks(p, 500, 0)} for p in ("train", "test")]
    assert not asked[0] & asked[1]


def test_generated_values_use_the_vocabulary_without_the_words_of_the_test_set() -> None:
    tasks = routine.routine_tasks("train", 600, 0, ["Tokyo", "ordinary"])
    texts = " ".join(task.messages[0]["content"] for task in tasks)
    assert "ordinary" in texts
    assert "Tokyo" not in texts


def test_the_request_contains_every_expected_value() -> None:
    """Nothing has to be guessed. Only `state` is implied by the phrasing."""
    for task in routine.routine_tasks("test", 240, 0):
        text = task.messages[0]["content"].lower()
        for name, [value] in task.expected[0].arguments.items():
            assert name == "state" or str(value).lower() in text, (text, name, value)


def test_hard_tasks_are_split_by_tool() -> None:
    def task(number: int, called: str, *others: str) -> Task:
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in (called, *others)]
        return Task(f"t{number}", [], tools, [Expected(called, {})])

    names = [
        f"{word}_{version}_Find" for word in ("Movies", "Music", "Hotels", "Trains", "Boats") for version in (1, 2)
    ]
    tasks = [task(n, name, names[n - 1]) for n, name in enumerate(names)]
    parts = hard.split_hard(tasks)
    assert len(parts["train"]) + len(parts["test"]) == 10
    assert parts["test"]
    assert parts["train"]
    called = {hard.family(one.expected[0].name) for one in parts["test"]}
    shown = {hard.family(tool["function"]["name"]) for one in parts["train"] for tool in one.tools}
    assert not called & shown, "a tool that is tested was shown in training"
    many = hard.split_hard([task(n, "a.tool") for n in range(50)])
    assert len(many["train"]) + len(many["test"]) == hard.PER_TOOL


def render(by_heart: list[str], **given: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
    return environment.from_string(hermes_template(by_heart, default_system="Be kind.")).render(**given)


def test_the_template_renders_tools_compactly_and_omits_those_known_by_heart() -> None:
    asked = [{"role": "user", "content": "Hi"}]
    shown = render([], messages=asked, tools=routine.TOOLS, add_generation_prompt=True)
    assert "\nset_timer: Start a countdown.\n minutes: integer\n label?: string\n" in shown
    assert len(shown) < len(json.dumps(routine.TOOLS)) / 2
    bare = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(routine.NAMES_OF_TOOLS, messages=asked, tools=routine.TOOLS, add_generation_prompt=True) == bare
    known = routine.NAMES_OF_TOOLS[1:]
    only_one = render(known, messages=asked, tools=routine.TOOLS, add_generation_prompt=True)
    assert only_one.startswith("<|im_start|>system\n<tools>\nset_timer: ")
    assert "translate" not in only_one


def test_the_template_repeats_words_with_the_tokens_of_an_answer() -> None:
    template = jinja2.Environment().from_string(hermes_template(words_again=True))
    chat = [{"role": "user", "content": "Call  Leo\nnow"}, {"role": "assistant", "content": "a b"}]
    said = template.render(messages=chat)
    assert '<|im_start|>user\nCall  Leo\nnow\n "Call "Leo "now<|im_end|>\n<|im_start|>assistant\na b<|im_end|>' in said


def test_the_template_is_a_plain_one_without_tools() -> None:
    asked = [{"role": "user", "content": "Hi"}]
    rest = "<|im_start|>user\nHi<|im_end|>\n"
    assert render([], messages=asked) == "<|im_start|>system\nBe kind.<|im_end|>\n" + rest
    assert (
        render([], messages=[{"role": "system", "content": "S"}, *asked]) == "<|im_start|>system\nS<|im_end|>\n" + rest
    )


def test_the_template_writes_calls_and_their_results() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    parameters = {
        "type": "object",
        "properties": {
            "x": {"type": "array", "items": {"enum": [1, 2]}},
            "y": {"type": "object", "properties": {"z": {}}},
        },
    }
    tools = [{"type": "function", "function": {"name": "f", "description": None, "parameters": parameters}}]
    text = render([], messages=chat, tools=tools)
    assert " x?: [1|2]\n y?: {z?: any}\n</tools>" in text
    written = hermes([ToolCall("f", {"x": 1})])
    assert f"<|im_start|>assistant\n{written}<|im_end|>\n" in text
    assert text.endswith("<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n")
