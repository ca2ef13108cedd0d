"""A wall clock that is stepped and drifts, for one process and its children. See clock.c, which is preloaded into them.

Monotonic time is the machine's, as on a real machine. libfaketime could do this too, but it reads a file for each look
at the clock under a lock that all threads share, and a gateway then served a quarter of the calls.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from runs.torture.disks import library

SOURCE = Path(__file__).with_name("clock.c")
FIELDS = 4  # as in clock.c: version, offset_ns, since_ns, drift_ppm


class FaultyClock:
    """A step and a drift add up, and are seen at once."""

    def __init__(self, file: Path) -> None:
        """`file` is created, and controls the clock."""
        self._file = file.resolve()
        self._file.write_bytes(bytes(8 * FIELDS))
        with self._file.open("r+b") as opened:
            self._fields = memoryview(mmap.mmap(opened.fileno(), 8 * FIELDS)).cast("q")

    def env(self) -> dict[str, str]:
        """Add these to the environment of the process, with `disks.joined` if anything else is preloaded."""
        return {"LD_PRELOAD": str(library(SOURCE)), "HEADWAY_FAULTY_CLOCK": str(self._file)}

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of the machine's."""
        _, offset_ns, since_ns, drift_ppm = self._fields
        return (offset_ns + (time.monotonic_ns() - since_ns) * drift_ppm / 1e6) / 1e9

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._set(self.offset_s + seconds, self._fields[3])

    def drift(self, factor: float) -> None:
        """Let the clock run at this speed from now on."""
        self._set(self.offset_s, round((factor - 1) * 1e6))

    def mend(self) -> None:
        """Set the clock right, in one step."""
        self._set(0.0, 0)

    def _set(self, offset_s: float, drift_ppm: int) -> None:
        self._fields[0] += 1
        self._fields[1], self._fields[2], self._fields[3] = round(offset_s * 1e9), time.monotonic_ns(), drift_ppm
        self._fields[0] += 1
