from __future__ import annotations

import tomllib

import pytest

from headway.bench.calibrate import (
    LONG_TOKENS,
    CurveCalibration,
    batches_for,
    calibrate,
    long_batch,
    long_context,
    max_length,
    measure_context,
    nine_in_ten_speed,
)
from headway.bench.client import LoadClient
from headway.config import ProfileTable
from headway.core.curve import fit
from headway.engines.scripted import Faults, Script, running
from headway.errors import SetupError
from headway.local.engine_process import free_port

pytestmark = pytest.mark.anyio


async def test_a_scripted_curve_is_measured() -> None:
    script = Script(model="m", step_s=((1, 0.010), (4, 0.016), (16, 0.040)), max_num_seqs=16)
    seen: list[int] = []
    async with running(script) as engine:
        measured = await calibrate(engine.url, "m", 16, seen.append)
    assert 0 < measured.prompt_tps < 600 / script.first_token_s
    points = measured.points
    assert [batch for batch, _ in points] == [1, 4, 16]
    assert seen == [1, 4, 16, 4]
    for batch, tps in points:  # an engine on a busy box may be slower than its script, not faster
        assert 0.3 / script.step_time_s(batch) < tps < 1.1 / script.step_time_s(batch)
    curve = fit([(batch, 1 / tps) for batch, tps in points])
    assert measured.long_point is not None
    batch, tps, context = measured.long_point
    assert batch == 4
    assert tps <= curve.speed_tps(4) * 1.001
    assert context > 4000
    assert curve.speed_tps(1) > curve.speed_tps(4) > curve.speed_tps(16)


async def test_long_contexts_are_measured_without_the_reading_of_prompts() -> None:
    script = Script(model="m", step_s=((1, 0.004), (4, 0.005)), max_num_seqs=9, context_s=1e-6)
    async with running(script) as engine:
        client = LoadClient(engine.url, "m")
        share, context = await measure_context(client, 3, 3000)
        client.close()
    assert 3000 < context < 3000 + LONG_TOKENS + 50
    short_s, long_s = script.step_time_s(3), script.context_s * 3 * context
    assert share == pytest.approx(short_s / (short_s + long_s), rel=0.2)


async def test_the_long_point_is_left_out_where_contexts_are_short() -> None:
    async with running(Script(model="m", step_s=((1, 0.001),), max_model_len=800)) as engine:
        measured = await calibrate(engine.url, "m", 2, lambda _: None)
    assert measured.long_point is None
    assert measured.config_lines().count("[") == 3


def test_the_long_point_is_written_with_its_context() -> None:
    measured = CurveCalibration([(1, 62.0), (8, 40.1)], 1500.0, (8, 31.0, 4100))
    assert measured.config_lines() == "curve = [[1, 62.00], [8, 40.10], [8, 31.00, 4100]]\nprompt_tps = 1500.0\n"


def test_a_profile_is_printed_with_its_name_and_seats() -> None:
    measured = CurveCalibration([(1, 210.0), (32, 46.0)], 8500.0)
    table = tomllib.loads(measured.config_lines("drafter", 32))["models"]["profiles"][0]
    profile = ProfileTable.model_validate(table)
    assert (profile.name, profile.seats, profile.prompt_tps) == ("drafter", 32, 8500.0)
    assert profile.curve == [(1, 210.0), (32, 46.0)]


def test_long_contexts_fit_into_the_engine() -> None:
    assert long_context(131_072) == 4000
    assert 1000 < long_context(2048) < 2048 - LONG_TOKENS
    assert long_context(512) == long_context(0) == 0
    assert long_batch(64, 4000, 0) == long_batch(64, 4000, 100_000) == 8
    assert long_batch(64, 4000, 20_000) == 3
    assert long_batch(64, 4000, 4_000) == long_batch(64, 0, 0) == 0


async def test_a_server_that_does_not_say_its_length() -> None:
    assert await max_length(f"http://127.0.0.1:{free_port()}") == 0
    async with running(Script(model="m", max_model_len=4321)) as engine:
        assert await max_length(engine.url) == 4321


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
