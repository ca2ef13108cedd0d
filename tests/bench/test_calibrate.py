from __future__ import annotations

import pytest

from headway.bench.calibrate import batches_for, calibrate, nine_in_ten_speed
from headway.core.curve import fit
from headway.engines.scripted import Faults, Script, running
from headway.errors import SetupError

pytestmark = pytest.mark.anyio


async def test_a_scripted_curve_is_measured() -> None:
    script = Script(model="m", step_s=((1, 0.010), (4, 0.016), (16, 0.040)), max_num_seqs=16)
    seen: list[int] = []
    async with running(script) as engine:
        measured = await calibrate(engine.url, "m", 16, seen.append)
    assert 0 < measured.prompt_tps < 600 / script.first_token_s
    points = measured.points
    assert seen == [batch for batch, _ in points] == [1, 4, 16]
    for batch, tps in points:  # an engine on a busy box may be slower than its script, not faster
        assert 0.3 / script.step_time_s(batch) < tps < 1.1 / script.step_time_s(batch)
    curve = fit([(batch, 1 / tps) for batch, tps in points])
    assert curve.speed_tps(1) > curve.speed_tps(4) > curve.speed_tps(16)


def test_a_point_is_the_speed_that_nine_in_ten_streams_reach() -> None:
    assert nine_in_ten_speed([30.0, 31.0, 5.0, 32.0, 29.0, 30.0, 31.0, 33.0, 30.0, 28.0, 31.0, 30.0]) == 28.0
    assert nine_in_ten_speed([7.0]) == 7.0


def test_three_points_from_one_to_all() -> None:
    assert batches_for(64) == [1, 8, 64]
    assert batches_for(2) == [1, 2]
    assert batches_for(1) == [1]


async def test_the_error_of_an_engine_that_refuses_is_reported() -> None:
    async with running(Script(model="m")) as engine:
        engine.faults = Faults(refuse=True)
        with pytest.raises(SetupError, match="status 503"):
            await calibrate(engine.url, "m", 4, lambda _: None)
