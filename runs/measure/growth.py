"""What grows in a process, seen from outside: its memory, its files, its threads, and the trend of a series.

The trends are Theil-Sen slopes: the median slope of all pairs of samples, which a few outliers do not move.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import theilslopes

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_BUCKET = re.compile(rb'_bucket\{(?:[^}]*,)?le="([^"]+)"[^}]*\} (\S+)')


@dataclass(frozen=True)
class Trend:
    """Growth per hour, with an interval for it."""

    slope: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.slope:+.2f}/h ({self.low:+.2f} .. {self.high:+.2f})"


def trend_of(hours: Sequence[float], values: Sequence[float], confidence: float) -> Trend:
    found = theilslopes(values, hours, alpha=confidence)
    return Trend(float(found.slope), float(found.low_slope), float(found.high_slope))


def rollup_mib(pid: int) -> dict[str, float]:
    """The sums over all mappings of the process (proc(5), smaps_rollup): `Rss`, `Pss_Anon`, and so on."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) / 1024 for name, kib in _FIELD.findall(text)}


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def waited_s(pid: int) -> float:
    """How long the process' main thread was ready to run and had no core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def sum_of(page: bytes, name: bytes, missing: float | None = None) -> float:
    """The sum of a metric over its labels. Ends the run if the page lacks it, unless `missing` says what it is then."""
    lines = [line for line in page.splitlines() if line.startswith((name + b" ", name + b"{"))]
    if not lines and missing is None:
        raise SystemExit(f"/metrics has no {name.decode()}")
    return sum(float(line.rsplit(b" ", 1)[1]) for line in lines) if lines else missing or 0.0


def buckets_of(page: bytes, name: bytes) -> dict[float, float]:
    """A histogram without other labels: upper bound -> how many were not above it."""
    lines = [line for line in page.splitlines() if line.startswith(name + b"_bucket")]
    return {float(bound): float(count) for bound, count in _BUCKET.findall(b"\n".join(lines))}


def quantile_between(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float:
    """The quantile of what was counted between two looks, linear within a bucket, as Prometheus computes it."""
    counted = [(bound, after[bound] - before.get(bound, 0.0)) for bound in sorted(after)]
    wanted = share * counted[-1][1] if counted else 0.0
    if not wanted:
        return math.nan
    low, below = 0.0, 0.0
    for bound, count in counted:
        if count >= wanted:
            return low + (bound - low) * (wanted - below) / (count - below) if math.isfinite(bound) else math.inf
        low, below = bound, count
    return math.nan
