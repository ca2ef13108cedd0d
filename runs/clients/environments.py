"""The folder of each client in the cache: an environment of its own, or an npm folder. Made once for its versions.

Only the registries of PyPI and npm are asked. Nothing of Headway depends on a client.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template

from headway.local.engine_process import cache_dir
from runs.clients.catalog import Client

INSTALL_TIMEOUT_S = 900.0
KEPT_CHARS = 500  # of what a failed command has said; npm's last line only names its log


class NotInstalled(Exception):
    """Why a client cannot be installed here."""


def ensure_client(client: Client) -> Path:
    """The client's folder. Raises NotInstalled."""
    if client.program and not shutil.which(client.program):
        raise NotInstalled(f"{client.program} is not installed")
    folder = cache_dir() / "clients" / client.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    stamp, wanted = folder / "finished", "".join(f"{package}\n" for package in client.packages)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        if client.registry == "PyPI":
            _run([sys.executable, "-m", "venv", str(folder)])
            _run(
                [
                    str(folder / "bin" / "python"),
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--progress-bar",
                    "off",
                    *client.packages,
                ]
            )
        else:
            folder.mkdir()
            _run(
                [
                    "npm",
                    "install",
                    "--prefix",
                    str(folder),
                    "--no-audit",
                    "--no-fund",
                    "--loglevel=error",
                    *client.packages,
                ]
            )
        if client.command:  # npm ends with 0 without an optional package, which can be the program itself
            _run([Template(client.command[0]).substitute(environment=folder), "--version"])
        stamp.write_text(wanted)  # last: a half-made folder has none
    return folder


def _run(command: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "no output"
        raise NotInstalled(f"{Path(command[0]).name} ended with {done.returncode}: {said[-KEPT_CHARS:]}")
