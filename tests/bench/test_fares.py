from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.bench.fares import FrontierPoint, fare_table, read_frontier, suggested_floors, write_tiers
from headway.config import load
from headway.core.curve import Curve
from headway.errors import SetupError

# 120 tok/s alone, 37 among 64, as in runs/express/rule.py.
CURVE = Curve(a=0.008, c=0.0003, d=0.0)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
POINTS = [FrontierPoint(b, CURVE.speed_tps(b), [0.98 * CURVE.speed_tps(b), CURVE.speed_tps(b)]) for b in STREAMS]


def test_a_multiple_is_the_throughput_lost_by_the_replica() -> None:
    [fare] = fare_table(POINTS, cost_per_hour=3.6, floors_tps=[74.0])
    assert fare.streams == 14
    full_tps, light_tps = 64 * CURVE.speed_tps(64), 14 * CURVE.speed_tps(14)
    assert fare.multiple == pytest.approx(full_tps / light_tps, rel=1e-6)
    assert fare.replica_tps == pytest.approx(light_tps, rel=0.02)
    assert fare.cost_per_mtok == pytest.approx(1000 / light_tps, rel=0.02)


def test_the_spread_is_that_of_the_repeats() -> None:
    light = [0.9 if b < 16 else 1.0 for b in STREAMS]
    points = [
        FrontierPoint(b, CURVE.speed_tps(b), [CURVE.speed_tps(b), by * CURVE.speed_tps(b)])
        for b, by in zip(STREAMS, light, strict=True)
    ]
    [fare] = fare_table(points, cost_per_hour=1.0, floors_tps=[74.0])
    assert fare.lowest_multiple < fare.highest_multiple <= fare.lowest_multiple / 0.85


def test_faster_is_dearer() -> None:
    fares = fare_table(POINTS, cost_per_hour=1.0, floors_tps=suggested_floors(POINTS))
    multiples = [fare.multiple for fare in fares]
    assert multiples == sorted(multiples)
    assert all(fare.stream_tps > fare.floor_tps for fare in fares)
    assert multiples[0] > 1


def test_no_fare_is_quoted_where_prices_explode_unless_forced() -> None:
    with pytest.raises(SetupError, match="--force"):
        fare_table(POINTS, cost_per_hour=1.0, floors_tps=[100.0])
    [fare] = fare_table(POINTS, cost_per_hour=1.0, floors_tps=[100.0], force=True)
    assert fare.multiple > 5
    with pytest.raises(SetupError, match="No batch keeps"):
        fare_table(POINTS, cost_per_hour=1.0, floors_tps=[120.0], force=True)


def test_a_sweep_is_read_up_to_where_it_saturates(tmp_path: Path) -> None:
    rows = [
        {"conc": b, "nine_in_ten_intvty": tps, "median_intvty_by_repeat": [tps], "output_tput_per_gpu": b * tps}
        for b, tps in ((1, 100.0), (8, 60.0), (64, 20.0), (96, 10.0))
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(rows))
    assert [point.streams for point in read_frontier(path)] == [1, 8, 64]
    path.write_text("{}")
    with pytest.raises(SetupError, match="headway bench"):
        read_frontier(path)


def test_batches_of_equal_speed_have_no_fares() -> None:
    with pytest.raises(SetupError, match="no speed to sell"):
        suggested_floors([FrontierPoint(b, 50.0, [50.0]) for b in STREAMS])


def test_the_tiers_are_written_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(
        """\
# our gateway
[gateway]
port = 8000  # as agreed

[[models]]
name = "m"

[[models.tiers]]
name = "standard"
max_hold_s = 20.0

[[models.tiers]]
name = "fast"
floor_tps = 50.0
max_hold_s = 3.0  # impatient

[[models.replicas]]
url = "http://127.0.0.1:8001"
curve = [[1, 120.0], [64, 37.0]]
"""
    )
    quick, quicker = fare_table(POINTS, cost_per_hour=1.0, floors_tps=[74.0, 90.0])
    write_tiers(path, "m", {"fast": quick, "ultrafast": quicker})
    text = path.read_text()
    assert "# our gateway" in text
    assert "max_hold_s = 3.0  # impatient" in text
    [model] = load(path).models
    offered = {tier.name: (tier.floor_tps, tier.price_multiple) for tier in model.tiers}
    assert offered == {
        "standard": (None, None),
        "fast": (74.0, round(quick.multiple, 2)),
        "ultrafast": (90.0, round(quicker.multiple, 2)),
    }
    with pytest.raises(SetupError, match="no model 'other'"):
        write_tiers(path, "other", {})


def test_a_model_without_tiers_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "headway.toml"
    path.write_text(
        '[[models]]\nname = "m"\n[[models.replicas]]\nurl = "http://127.0.0.1:8001"\ncurve = [[1, 120.0], [64, 37.0]]\n'
    )
    [quick] = fare_table(POINTS, cost_per_hour=1.0, floors_tps=[74.0])
    write_tiers(path, "m", {"fast": quick})
    assert [tier.name for tier in load(path).models[0].tiers] == ["standard", "fast"]
