"""BFCL's rows as tasks, from a wheel that the test makes. Runs read the real one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from headway.evals.bfcl import read_bfcl
from headway.evals.tool_calls import ToolCall, judge

SCHEMA = {"type": "dict", "properties": {"type": {"type": "float"}, "x": {"type": "any"}}, "required": ["type"]}


def row(name: str) -> dict[str, Any]:
    question = [[{"role": "user", "content": "?"}]]
    return {"id": name, "question": question, "function": [{"name": "f", "parameters": SCHEMA}]}


def test_rows_become_tasks_except_those_whose_own_answer_is_not_right(tmp_path: Path) -> None:
    wheel = tmp_path / "bfcl.whl"
    answers = [
        {"id": "a", "ground_truth": [{"f": {"type": [1.5], "x": ["", "y"]}}]},
        {"id": "b", "ground_truth": [{"f": {"x": ["y"]}}]},  # its own schema requires `type`
    ]
    with zipfile.ZipFile(wheel, "w") as files:
        for name, rows in (
            ("BFCL_v4_simple_python.json", [row("a"), row("b")]),
            ("possible_answer/BFCL_v4_simple_python.json", answers),
            ("BFCL_v4_irrelevance.json", [row("c")]),
        ):
            files.writestr(f"bfcl_eval/data/{name}", "\n".join(json.dumps(one) for one in rows))
    called, nothing_fits = read_bfcl(wheel, ("simple_python", "irrelevance"))
    assert (called.task.id, called.kind) == ("a", "simple_python")
    parameters = called.task.tools[0]["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"] == {"type": {"type": "number"}, "x": {}}
    assert judge(called.task, [ToolCall("f", {"type": 1.5})]) == "right"
    assert judge(nothing_fits.task, []) == "right"
    assert judge(nothing_fits.task, [ToolCall("f", {"type": 1.5})]) == "extra call"
