"""The smallest fleet that keeps every promise in simulation: one replica fewer breaks one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.core.curve import Curve
from headway.errors import SetupError
from headway.plan import fleet
from headway.plan.answers import SRAM, Band
from headway.plan.fleet import Candidate, Demand, Promises, measured_candidate, smallest_fleet
from headway.sim.scenario import play

CURVE = Curve(a=0.010, c=0.0005, d=0.0)  # 95 tok/s alone, 38 among 32
KIND = Candidate("kind", CURVE, 32, 20_000.0, 3.0, 2, Band(0.1, 0.26, "70 tok/s alone at its slow end"))
DEMAND = Demand(4.0, {"standard": 0.8, "fast": 0.2}, {"fast": 60.0}, 500.0, 300.0)


def test_one_replica_fewer_breaks_a_promise() -> None:
    found = smallest_fleet(KIND, DEMAND, Promises())
    assert found is not None
    assert (found.cells, found.price_hour) == (1, 3.0 * found.replicas)
    assert found.slow_replicas is not None
    assert found.slow_replicas >= found.cell_replicas
    policy = fleet.policy_of(DEMAND)
    fewer = fleet._scenario(KIND, DEMAND, policy, found.cell_replicas - 1)
    assert not all(fleet._keeps(play(fewer, seed), Promises()) for seed in fleet.SEEDS)
    assert all(fleet._keeps(outcome, Promises()) for outcome in found.outcomes)
    assert all(outcome.moments[-1].open == found.cell_replicas - 1 for outcome in found.outcomes)  # one is dead


def test_a_floor_no_replica_keeps_has_no_fleet() -> None:
    assert smallest_fleet(KIND, replace(DEMAND, floors={"fast": 200.0}), Promises()) is None


def test_a_large_demand_is_served_in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "CELL_REPLICAS", 4)
    found = smallest_fleet(replace(KIND, band=SRAM), replace(DEMAND, calls_per_s=40.0), Promises())
    assert found is not None
    assert found.cells > 1
    assert found.replicas == found.cells * found.cell_replicas
    assert found.slow_replicas is None  # there is no band


def test_a_measured_replica() -> None:
    measured = measured_candidate([(1, 95.0), (8, 70.0), (32, 38.0)], None, 40.0)
    assert 25 < measured.seats < 32
    with pytest.raises(SetupError, match="--standard"):
        measured_candidate([(1, 95.0), (8, 70.0), (32, 38.0)], None, 400.0)


def test_the_command(tmp_path: Path) -> None:
    bench = tmp_path / "bench.json"
    rows = [
        {"conc": n, "nine_in_ten_intvty": tps, "median_intvty_by_repeat": [tps], "output_tput_per_gpu": n * tps}
        for n, tps in ((1, 95.0), (8, 70.0), (32, 38.0))
    ]
    bench.write_text(json.dumps(rows))
    words = [
        "plan",
        "--model",
        "mine",
        "--bench",
        str(bench),
        "--replica-hour",
        "2",
        "--floor",
        "60",
        "--standard",
        "38",
    ]
    asked = ["--demand", "2", "--share", "60=0.2", "--prompt-tokens", "500", "--output-tokens", "300"]
    result = CliRunner().invoke(app, [*words, *asked])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "2 calls/s, with one failed replica per cell" in result.output
    assert "measured" in result.output
    for bad in (["--share", "70=0.2"], ["--share", "60=x"], ["--share", "60=2"], ["--floor", "70", "--floor", "80"]):
        wrong = CliRunner().invoke(app, [*words, "--demand", "2", *bad])
        assert isinstance(wrong.exception, SetupError), bad
