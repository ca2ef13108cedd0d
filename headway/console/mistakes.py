"""`GET /admin/mistakes`: the table of the last `headway eval`, from its results.json."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import SetupError
from headway.evals.shares import Share

MAX_BYTES = 64 * 2**20


class _Interval(msgspec.Struct):
    value: float
    low: float
    high: float


class _Versus(msgspec.Struct):
    excess: _Interval


class _Figures(msgspec.Struct):
    name: str
    right: Share
    answer_s: _Interval
    time_to_right_s: _Interval
    cost_per_right_micro: _Interval | None = None
    versus: _Versus | None = None


class _Recommended(msgspec.Struct):
    use: str
    is_clear: bool


class _Verdict(msgspec.Struct):
    tasks: int
    figures: list[_Figures]
    recommended: _Recommended


class _Asked(msgspec.Struct):
    tasks: str


class _Results(msgspec.Struct):
    asked: _Asked
    verdicts: list[_Verdict]


def read_mistakes(path: Path) -> dict[str, Any]:
    """Raises SetupError if the file cannot be read."""
    try:
        about = path.stat()
        if about.st_size > MAX_BYTES:
            raise SetupError(f"{path} has more than {MAX_BYTES // 2**20} MiB.")
        results = msgspec.json.decode(path.read_bytes(), type=_Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"Cannot read {path}, which `headway eval` writes: {error}.") from None
    overall = results.verdicts[0] if results.verdicts else None
    return {
        "at": datetime.fromtimestamp(about.st_mtime, UTC).isoformat(timespec="seconds"),
        "tasks": results.asked.tasks,
        "is_clear": overall is not None and overall.recommended.is_clear,
        "rows": [_row(one, overall) for one in overall.figures] if overall is not None else [],
    }


def _row(one: _Figures, verdict: _Verdict) -> dict[str, Any]:
    excess = one.versus.excess if one.versus is not None else None
    right_low, right_high = one.right.interval
    return {
        "target": one.name,
        "tasks": verdict.tasks,
        "right": one.right.value,
        "right_low": right_low,
        "right_high": right_high,
        "answer_s": one.answer_s.value,
        "time_to_right_s": one.time_to_right_s.value,
        "excess": excess.value if excess is not None else None,
        "excess_low": excess.low if excess is not None else None,
        "excess_high": excess.high if excess is not None else None,
        "cost_per_right_micro": (
            round(one.cost_per_right_micro.value) if one.cost_per_right_micro is not None else None
        ),
        "is_recommended": one.name == verdict.recommended.use,
    }
