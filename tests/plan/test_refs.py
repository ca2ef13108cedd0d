"""The shipped coefficients on a few dozen public measurements; runs/plan-accuracy.sh does it on all."""

from __future__ import annotations

import statistics

from headway.plan.step import seconds_per_token
from runs.planning.rows import REFS, SAMPLE, read_rows

MOST_MEDIAN, MOST_MAPE = 0.12, 0.15


def test_reference_points() -> None:
    rows, out = read_rows(REFS)
    errors = [abs(seconds_per_token(row.setup, row.batch) / row.measured_s - 1) for row in rows]
    print(f"{len(rows)} rows, {dict(out)}: MAPE {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}")
    assert len(rows) == 16
    assert statistics.median(errors) <= MOST_MEDIAN
    assert statistics.mean(errors) <= MOST_MAPE


def test_the_whole_sample() -> None:
    rows, _ = read_rows(SAMPLE)
    errors = [abs(seconds_per_token(row.setup, row.batch) / row.measured_s - 1) for row in rows]
    assert len(rows) > 2500
    assert statistics.median(errors) <= MOST_MEDIAN
    assert statistics.mean(errors) <= MOST_MAPE
