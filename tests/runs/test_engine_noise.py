"""What runs/engine-noise.sh counts as the time per token of an engine."""

from __future__ import annotations

import pytest

from runs.engine.noise import times_per_token
from runs.measure.token_times import TimedStream


def stream(*times: float) -> TimedStream:
    return TimedStream(arrivals=[(at, number) for number, at in enumerate(times, 1)], complete=True)


def test_the_time_per_token_of_each_quarter_of_a_second() -> None:
    steady = [0.1 * number for number in range(11)]
    slower = [1.0 + 0.25 * number for number in range(1, 5)]
    times = times_per_token([stream(*steady, *slower)])
    assert times == pytest.approx([0.1] * 4 + [0.25] * 4)


def test_only_the_time_in_which_all_streams_run_counts() -> None:
    early = stream(*(0.1 * number for number in range(11)))
    late = stream(*(0.5 + 0.1 * number for number in range(11)))
    assert times_per_token([early, late]) == pytest.approx([0.1, 0.1])


def test_a_pause_makes_its_quarters_long() -> None:
    times = times_per_token([stream(0.0, 0.25, 1.25, 1.5)])
    assert times == pytest.approx([0.25, 1.0, 1.0, 1.0, 1.0, 0.25])
