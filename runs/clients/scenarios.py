"""What the engine answers in each scenario, and what a client must end with.

Knows the programmed answers (docs/how-to/test-an-agent.md). Does not know any client.
Invariant: in a loop the word that ends a scenario is only in the answer to its last turn, so a client that prints it
has made every turn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS_WITH = "teal heron"
WRITTEN = "grey goose"
NOTES, OUT = "notes.txt", "out.txt"

Answer = dict[str, Any]  # of an `[[answers]]` table


@dataclass(frozen=True)
class Scenario:
    """`answers` are given in turn, by the number of tool results so far. Each is a call that reaches the engine."""

    name: str
    answers: tuple[Answer, ...]
    prints: str = ENDS_WITH
    writes: str = ""  # what is in OUT at the end
    asks: str = ""  # its own prompt, which the engine knows it by
    # For clients that send no tool results as such: text in the user's last message at each turn, where empty the mark.
    seen: tuple[str, ...] = ()


def says(text: str) -> Answer:
    return {"text": text}


def calls(name: str, **arguments: Any) -> Answer:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


END = says(f"Paris is warmer. The word is {ENDS_WITH}.")
RESULTS = ("21 degrees", "12 degrees")  # of the tool that the drivers have
CITY = json.dumps({"city": "Paris", "degrees": 21})


def text(name: str) -> Scenario:
    return Scenario(name, (END,))


def parsed(name: str) -> Scenario:
    return Scenario(name, (says(CITY),), prints="Paris: 21")


def proof() -> Scenario:
    """The client's user finds the tier that was served, in each place that docs/how-to/use-your-client.md shows."""
    return Scenario("proof", (END,), prints="proof: standard")


def tool_loop(name: str, end: Answer = END, seen: tuple[str, ...] = ()) -> Scenario:
    """Three turns: a call of a tool after reasoning, one after some text, and the end."""
    first = {**calls("weather", city="Paris"), "reasoning": "Both cities are needed."}
    second = {**calls("weather", city="Oslo"), "text": "And the other one."}
    return Scenario(name, (first, second, end), seen=seen)


def file_loop(read: Answer, write: Answer, name: str = "files") -> Scenario:
    """Three turns of a coding agent: after reasoning it reads a file, writes another, and ends."""
    first = {**read, "reasoning": "The word is in the file."}
    return Scenario(name, (first, write, END), writes=WRITTEN)


def edit_loop() -> Scenario:
    """Three turns of an agent that has no tools: an edit without the name of a file, one with a syntax error, which its
    linter finds, and the right one."""
    nameless = says("```\nprint(1\n```\n")
    broken = says("word.py\n```\nprint(1\n```\n")
    right = says(f"word.py\n```\nprint(1)\n```\n\n{OUT}\n```\n{WRITTEN}\n```\n\nThe word is {ENDS_WITH}.")
    seen = ("", "No filename provided", "Fix any errors")
    return Scenario("edits", (nameless, broken, right), writes=WRITTEN, seen=seen)


def react_loop(name: str) -> Scenario:
    """Tools called in plain text, in the format of DSPy: both cities, the end of the loop, and the answer."""

    def acts(tool: str, **arguments: str) -> Answer:
        fields = {"next_thought": "Go on.", "next_tool_name": tool, "next_tool_args": json.dumps(arguments)}
        return _fields(fields)

    answers = (
        acts("weather", city="Paris"),
        acts("weather", city="Oslo"),
        acts("finish"),
        _fields({"reasoning": "Both are known.", "answer": str(END["text"])}),
    )
    observed = [f"[[ ## observation_{turn} ## ]]\n{result}" for turn, result in enumerate((*RESULTS, "Completed."))]
    return Scenario(name, answers, seen=("", *observed))


def _fields(fields: dict[str, str]) -> Answer:
    return says("\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()))


def write_answers(path: Path, rules: list[tuple[str, Path, Scenario]]) -> None:
    """Write the file of answers. Each scenario comes with the mark in its prompt and its working folder."""
    lines = []
    for mark, work, scenario in rules:
        for number, answer in enumerate(scenario.answers):
            when: Answer = {"user_contains": mark}
            if scenario.seen:
                when["user_contains"] = scenario.seen[number] or mark
            elif len(scenario.answers) > 1:
                when["tool_results"] = number
            if "tool_calls" in answer:
                when["offers_tool"] = answer["tool_calls"][0]["name"]
            table = {"when": when, **({"times": 1} if scenario.seen else {}), **answer}
            lines += ["[[answers]]", *[f"{name} = {_toml(value)}" for name, value in table.items()]]
            lines = [line.replace("$work", str(work)) for line in lines]
    # Calls beside the loop, such as for a title.
    lines += ["[[answers]]", 'text = "Weather"']
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
