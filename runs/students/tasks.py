"""The two task sets of runs/distill.sh: routine (routine.py) and hard, each split into training and test.

The hard set has the single-call items of the Berkeley Function-Calling Leaderboard (Apache-2.0), read from the wheel
bfcl-eval. It is split by the called tool: training neither calls nor shows a tool that a test task calls, under any
version of its name (`Movies_1_Find`, `Movies_3_Find`). A tool has at most PER_TOOL tasks, because a few have hundreds.

    python -m runs.students.tasks FOLDER --vocabulary MODEL [--train 1800] [--test 600] [--seed 0]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headway.evals.bfcl import bfcl_wheel, read_bfcl
from headway.evals.task_files import write_tasks
from headway.evals.tool_calls import Task
from runs.students.routine import Part, routine_tasks

CATEGORIES = ("simple_python", "multiple", "live_simple", "live_multiple")
TEST_SHARE = 0.3
PER_TOOL = 8
MAX_TOOLS_CHARS = 4000  # of JSON; prompts above about 700 tokens would take most of the training time


def read_hard() -> list[Task]:
    return [
        replace(one.task, tags={"set": "hard", "category": one.kind}) for one in read_bfcl(bfcl_wheel(), CATEGORIES)
    ]


def family(name: str) -> str:
    """A tool's name without the numbers of its version."""
    return re.sub(r"[\d_.]+", "", name).lower()


def is_test(name: str) -> bool:
    """Whether a tool belongs to the test set. Depends only on its name, so that the split never changes."""
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
    """The words that are a single token after a space, in a tokenizer like GPT's."""
    tokens = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return [token[1:] for token in tokens if re.fullmatch("Ġ[A-Za-z]{3,}", token)]


def write_sets(folder: Path, train: int, test: int, seed: int, vocabulary: Sequence[str]) -> dict[str, int]:
    """Write four task files. The test sets are the same for every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    hard = split_hard(read_hard())
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
    parser.add_argument("--train", type=int, default=1800, help="number of routine requests for training")
    parser.add_argument("--test", type=int, default=600, help="number of routine requests for the test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=Path, required=True, help="model whose words training values are made of")
    given = parser.parse_args()
    words = vocabulary_of(given.vocabulary)
    for name, count in write_sets(given.folder, given.train, given.test, given.seed, words).items():
        print(f"{name}: {count} tasks")


if __name__ == "__main__":
    main()
