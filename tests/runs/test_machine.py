"""A machine that is too slow for a bar ends a run with an exit code of its own."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from runs.bench.truth import Round, too_busy
from runs.measure.machine import TOO_SLOW, Machine, measure_machine, shortfall, too_slow


def test_what_a_machine_lacks() -> None:
    slow, busy = Machine(events_per_cpu_s=200_000, core_share=0.9), Machine(events_per_cpu_s=400_000, core_share=0.5)
    assert shortfall(Machine(400_000, 0.9), fast_cores=True, free_cores=True) is None
    assert "200,000 events per CPU-second" in str(shortfall(slow, fast_cores=True))
    assert shortfall(slow, free_cores=True) is None
    assert "50% of a core" in str(shortfall(busy, free_cores=True))
    assert shortfall(busy, fast_cores=True) is None


def test_too_slow_is_neither_held_nor_missed() -> None:
    written = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        too_slow(Console(file=written, width=200), "its cores are busy")
    assert ended.value.code == TOO_SLOW == 3
    assert written.getvalue() == "this machine is too slow to judge: its cores are busy\n"


def test_a_machine_is_measured() -> None:
    machine = measure_machine()
    assert machine.events_per_cpu_s > 1_000
    assert 0 < machine.core_share < 1.2  # the two clocks are read one after the other


def test_a_client_that_is_late_in_most_rounds_judges_nothing() -> None:
    late, good = Round(1.2, 1.0, 9.0, valid=False), Round(1.0, 1.0, 0.1, valid=True)
    assert too_busy({1: [good, late], 16: [good]}) is None
    assert "2 of 3 rounds at 16 streams" in str(too_busy({1: [good], 16: [good, late, late]}))
