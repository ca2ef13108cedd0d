"""Finds the training Python and runs scripts in it.

It is this Python if the extra `distill` is installed, else an environment that is created once in the cache. The
gateway needs none of its packages. Scripts print one JSON object per line; the last lines of any other output are
quoted in the error if a script fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from headway.errors import SetupError
from headway.local.engine_env import Progress, RunCommand, ensure_environment, run_command

# The versions of the extra `distill` in pyproject.toml (a test compares), with the CPU build of torch. The default is
# for CUDA: 3 GB that a machine without a GPU does not need.
LOCK = Path(__file__).with_name("training.txt")
NEEDS_BYTES = 4_000_000_000
MODULES = ("torch", "transformers", "trl", "datasets", "accelerate")
TAIL_LINES = 15

Report = Callable[[Mapping[str, Any]], None]


def training_python(progress: Progress, *, run: RunCommand = run_command) -> Path:
    if all(importlib.util.find_spec(name) is not None for name in MODULES):
        return Path(sys.executable)
    return ensure_environment("training-trl-1.16.0", LOCK, NEEDS_BYTES, progress, run=run)


class TrainingScript:
    """A running script: sends JSON lines to its input and reads JSON lines from its output."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._name, self._process = name, process
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def send(self, message: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the script has ended; lines() reports why
            self._input.write(json.dumps(message) + "\n")
            self._input.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in self._output:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if isinstance(said, dict):
                yield said
            elif line.strip():
                self._tail.append(line.rstrip())
        if self._process.wait() != 0:
            text = "\n".join(f"  {line}" for line in self._tail) or "  (it printed nothing)"
            raise SetupError(f"The script {self._name}.py failed. Its output ends with:\n{text}")


@contextmanager
def script(python: Path, name: str, settings: Mapping[str, Any]) -> Iterator[TrainingScript]:
    """Run a script of this folder. The script is terminated when the block exits."""
    path = Path(__file__).with_name(f"{name}.py")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    # -P keeps this folder off sys.path: a library's `import fit` must not find fit.py.
    command = [str(python), "-P", str(path), json.dumps(settings)]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield TrainingScript(name, process)
    finally:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        if process.poll() is None:
            process.terminate()
        process.wait()


def run_script(python: Path, name: str, settings: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Run a script until it ends. Returns the last JSON object that it printed."""
    last: dict[str, Any] = {}
    with script(python, name, settings) as running:
        for said in running.lines():
            report(said)
            last = said
    return last
