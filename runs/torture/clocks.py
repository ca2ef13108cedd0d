"""A wall clock that is stepped and drifts, for one process and its children, by libfaketime. Monotonic time is left as
it is, as on a real machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path

LIBRARIES = "*/faketime/libfaketimeMT.so.1"  # where Debian puts it: for programs with threads
DRIFT_EVERY_S = 0.05  # a drift is many small steps


class FaultyClock:
    """Each of the clock's users reads the file anew at each call: 4 us instead of 0.15."""

    def __init__(self, file: Path) -> None:
        self._file = file.resolve()
        self._lock = threading.Lock()
        self._offset_s, self._factor, self._since_s = 0.0, 1.0, time.monotonic()
        self._drifting: threading.Thread | None = None
        self._mended = threading.Event()
        self._write()

    def env(self) -> dict[str, str]:
        """Add these to the environment of the process, with `disks.joined` if anything else is preloaded."""
        return {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # its name in newer versions
            "NO_FAKE_STAT": "1",
        }

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of the machine's."""
        return self._offset_s + (self._factor - 1) * (time.monotonic() - self._since_s)

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        with self._lock:
            self._set(self.offset_s + seconds, self._factor)

    def drift(self, factor: float) -> None:
        """Let the clock run at this speed from now on, until `mend` or another drift."""
        with self._lock:
            self._set(self.offset_s, factor)
        if self._drifting is None:
            self._mended.clear()
            self._drifting = threading.Thread(target=self._drift, name="drift", daemon=True)
            self._drifting.start()

    def mend(self) -> None:
        """Set the clock right, in one step."""
        if self._drifting is not None:
            self._mended.set()
            self._drifting.join()
            self._drifting = None
        with self._lock:
            self._set(0.0, 1.0)

    def _set(self, offset_s: float, factor: float) -> None:
        self._offset_s, self._factor, self._since_s = offset_s, factor, time.monotonic()
        self._write()

    def _drift(self) -> None:
        while not self._mended.wait(DRIFT_EVERY_S):
            with self._lock:
                self._write()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{self.offset_s:+.6f}\n")
        new.replace(self._file)  # nobody reads half of it


def _library() -> Path:
    found = next(Path("/usr/lib").glob(LIBRARIES), None)
    if found is None:
        raise SystemExit("libfaketime is not installed: apt-get install faketime")
    return found
