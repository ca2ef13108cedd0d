"""What every measured gateway has, and the environment that one from PyPI gets. See runs/peers.sh.

Nothing of Headway depends on a peer. All packages of a peer are pinned with their hashes (runs/peers/NAME.txt).
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.local.engine_env import run_command
from headway.local.engine_process import cache_dir

Progress = Callable[[str], None]
MODEL = "m"
# Settings of a shell that would change how a peer runs. A proxy would come between a router and its engine.
NOT_PASSED_ON = ("PYTHON", "LITELLM_", "SMG_", "RUST_", "TOKIO_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Start(Protocol):
    """Runs the gateway on a port until the context ends; gives its process id once it answers calls."""

    def __call__(self, port: int, engine_url: str, folder: Path) -> AbstractContextManager[int]: ...


@dataclass(frozen=True)
class Gateway:
    name: str
    version: str
    settings: str  # what it is set to, for the reader of the figures
    start: Start


def environ(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(NOT_PASSED_ON)} | more


def ensure_environment(name: str, version: str, progress: Progress) -> Path:
    """The `bin` folder of a finished environment that holds the peer; made on first use, in the cache."""
    requirements = Path(__file__).with_name(f"{name}.txt")
    directory = cache_dir() / f"peers-{name}-{version}"
    stamp, bin_folder = directory / "finished", directory / "bin"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == requirements.read_text():
            return bin_folder
        here = (sys.version_info[:2], platform.system(), platform.machine())
        if here != ((3, 11), "Linux", "x86_64"):
            raise SystemExit(f"The pinned {name} is for Python 3.11 on Linux, x86_64; this is {here}.")
        shutil.rmtree(directory, ignore_errors=True)
        progress(f"Creating an environment for {name}")
        run_command([sys.executable, "-m", "venv", str(directory)], progress, lock_fd=lock.fileno())
        install = [str(bin_folder / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-deps"]
        install += ["--require-hashes", "-r", str(requirements)]
        run_command(install, progress, lock_fd=lock.fileno())
        stamp.write_text(requirements.read_text())  # last: a half-made environment has none
    return bin_folder
