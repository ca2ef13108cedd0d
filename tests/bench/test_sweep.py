from __future__ import annotations

import builtins
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.bench.client import LoadCall
from headway.bench.load import Load
from headway.bench.report import picture, write_report
from headway.bench.sweep import Plan, Point, Sweep, sweep, write
from headway.cli import app
from headway.core.curve import Curve
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from tests.bench.mock_process import mock_engine

pytestmark = pytest.mark.anyio
CURVE = Curve(0.008, 0.0002, 0.001)


def load(streams: int, *, first_s: float = 0.2, tokens: int = 64, lag_s: float = 0.0001, slower: float = 1.0) -> Load:
    """The load that a server on CURVE gives: the calls of every slot, and their window."""
    took_s = first_s + (tokens - 1) * CURVE.seconds_per_token(min(streams, 64)) * slower
    calls = [LoadCall(0.0, tokens, 0.0, first_s, took_s, 130, tokens, first_tokens=1) for _ in range(streams)]
    return Load(calls, 0.0, took_s, streams * tokens, streams * 130, [lag_s])


def measured(repeats: int = 2) -> Sweep:
    plan = Plan(repeats=repeats)
    points = [Point(streams, [load(streams) for _ in range(repeats)]) for streams in plan.streams]
    return Sweep("m", plan, points, 2000.0)


def test_from_one_stream_to_past_the_seats_and_back() -> None:
    assert Plan(seats=64).streams == [1, 2, 4, 8, 16, 32, 64, 96]
    assert Plan(seats=48).streams == [1, 2, 4, 8, 16, 32, 48, 72]
    assert Plan(seats=64, quick=True, repeats=1).order() == [1, 8, 64]
    assert Plan(seats=2, repeats=2).order() == [1, 2, 3, 3, 2, 1]


def test_three_points_predict_the_others() -> None:
    fit = measured().fit()
    assert fit.through == [1, 8, 64]
    assert list(fit.held_out) == [2, 4, 16, 32]  # past the seats is no matter of the curve
    assert fit.mape == pytest.approx(0, abs=1e-9)
    assert fit.output_tps(16, 64) == pytest.approx(load(16).output_tps)
    off = measured()
    off.points[4].repeats = [load(16, slower=1.25)]
    assert off.fit().held_out[16] == pytest.approx(-0.2)
    assert off.fit().mape == pytest.approx(0.05)


def test_an_invalid_repeat_is_left_out_and_named() -> None:
    point = Point(4, [load(4), load(4, lag_s=0.5, slower=3.0)])
    assert point.speed_tps == pytest.approx(CURVE.speed_tps(4))
    assert point.valid
    [problem] = point.problems()
    assert problem.startswith("repeat 2: the client was late to read")
    assert not Point(4, [load(4, lag_s=0.5)]).valid


def test_rows_have_the_public_names(tmp_path: Path) -> None:
    write(measured(), tmp_path)
    rows: list[dict[str, Any]] = json.loads((tmp_path / "bench.json").read_text())
    names = {"hw", "model", "framework", "precision", "spec_decoding", "isl", "osl", "conc"}
    names |= {"tput_per_gpu", "output_tput_per_gpu"}
    names |= {
        f"{kind}_{what}" for kind in ("mean", "median", "p90", "p99", "std") for what in ("ttft", "tpot", "intvty")
    }
    assert names <= rows[0].keys()
    assert [row["conc"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 96]
    assert rows[2]["median_intvty"] == pytest.approx(CURVE.speed_tps(4))
    assert rows[2]["tput_per_gpu"] == pytest.approx(rows[2]["output_tput_per_gpu"] * (64 + 130) / 64)
    lines = tomllib.loads((tmp_path / "curve.toml").read_text())
    assert lines["prompt_tps"] == 2000.0
    assert lines["curve"][-1] == [64, pytest.approx(CURVE.speed_tps(64), abs=0.01)]


def test_the_report_needs_no_network(tmp_path: Path) -> None:
    write_report(measured(), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "mean error of 0.0%" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert (tmp_path / "report.svg").stat().st_size > 10_000
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert picture(measured(1))  # without repeats there is no spread


def test_the_error_without_pictures_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "vl_convert":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SetupError, match=r"headway\[pictures\]"):
        write_report(measured(), tmp_path)


async def test_a_scripted_frontier_is_measured() -> None:
    # Each batch is twice as slow as the one before: no busy box turns them around.
    script = Script(model="m", first_token_s=0.05, step_s=((1, 0.01), (2, 0.02), (4, 0.04), (6, 0.12)), max_num_seqs=4)
    seen: list[int] = []
    async with running(script) as engine:
        plan = Plan(seats=4, prompt_tokens=16, output_tokens=16, repeats=1)
        found = await sweep(engine.url, "m", plan, lambda streams, run: seen.append(streams) if run else None)
    assert seen == [1, 2, 4, 6]
    by_streams = {point.streams: point for point in found.points}
    assert by_streams[1].speed_tps > by_streams[2].speed_tps > by_streams[4].speed_tps
    # Past the seats callers wait for one, and those aboard are as fast as before: six at once would be a third of it.
    assert by_streams[6].speed_tps > 0.6 * by_streams[4].speed_tps
    assert engine.record()["highest_running"] == 4


def test_the_command_writes_all_of_it(tmp_path: Path) -> None:
    with mock_engine(50, "1:10,4:16", seats=4) as url:
        arguments = ["bench", url, "--model", "scripted", "--seats", "4", "--quick", "--output-tokens", "16"]
        said = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert "curve = [[1, " in said.output
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "bench.json",
        "curve.toml",
        "report.html",
        "report.png",
        "report.svg",
    }
