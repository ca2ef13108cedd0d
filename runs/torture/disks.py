"""A folder whose disk fails on command, for one process and its children. See shim.c, which is preloaded into them."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
CACHE = Path.home() / ".cache" / "headway" / "torture"
FIELDS = ("is_faulty", "is_full", "room", "is_read_only", "bad_syncs", "slow_sync_ms", "failures")  # as in shim.c
ALWAYS = -1


class FaultyDisk:
    """Faults add up; `mend` ends them all. The process must name the folder by its real, absolute path."""

    def __init__(self, folder: Path, control: Path) -> None:
        """`control` is a file outside the folder, which this creates."""
        self.folder = folder.resolve()
        self._control = control.resolve()
        self._control.write_bytes(bytes(8 * len(FIELDS)))
        with self._control.open("r+b") as file:
            self._fields = memoryview(mmap.mmap(file.fileno(), 8 * len(FIELDS))).cast("q")

    def env(self) -> dict[str, str]:
        """Add these to the environment of the process, with `joined` if anything else is preloaded."""
        return {
            "LD_PRELOAD": str(library()),
            "HEADWAY_FAULTY_FOLDER": str(self.folder),
            "HEADWAY_FAULTY_CONTROL": str(self._control),
        }

    @property
    def failures(self) -> int:
        """Calls that failed or were cut short, so far."""
        return self._get("failures")

    def full(self, after_bytes: int = 0) -> None:
        """Take so many more bytes. The write that has too many is cut short, and the next ones fail (ENOSPC)."""
        self._cause(room=after_bytes, is_full=1)

    def read_only(self) -> None:
        """Fail whatever changes a file or its name, also of open files (EROFS), as after an error of the disk."""
        self._cause(is_read_only=1)

    def failing_fsync(self, times: int = ALWAYS) -> None:
        """Fail the next syncs (EIO). What was written stays readable."""
        self._cause(bad_syncs=times)

    def slow_fsync(self, ms: int) -> None:
        self._cause(slow_sync_ms=ms)

    def mend(self) -> None:
        self._set("is_faulty", 0)
        for field in FIELDS[1:-1]:
            self._set(field, 0)

    def _cause(self, **fields: int) -> None:
        for field, value in fields.items():
            self._set(field, value)
        self._set("is_faulty", 1)

    def _get(self, field: str) -> int:
        return self._fields[FIELDS.index(field)]

    def _set(self, field: str, value: int) -> None:
        self._fields[FIELDS.index(field)] = value


def library(source: Path = SOURCE) -> Path:
    """Compile a library to preload, unless this version of it has been."""
    compiled = CACHE / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if compiled.exists():
        return compiled
    if shutil.which("gcc") is None:
        raise SystemExit("gcc is not installed: apt-get install gcc libc6-dev")
    CACHE.mkdir(parents=True, exist_ok=True)
    new = compiled.with_suffix(f".{os.getpid()}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", new, source, "-ldl"], check=True)
    return new.replace(compiled)


def joined(*environments: Mapping[str, str]) -> dict[str, str]:
    """Environments with one LD_PRELOAD of all."""
    together: dict[str, str] = {}
    for one in environments:
        preload = [words["LD_PRELOAD"] for words in (together, one) if words.get("LD_PRELOAD")]
        together |= one
        if preload:
            together["LD_PRELOAD"] = ":".join(preload)
    return together
