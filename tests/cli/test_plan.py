"""`headway plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.errors import SetupError
from headway.plan.answers import PricedFloor
from headway.plan.models import CONFIGS
from headway.plan.picture import frontier


def said(*words: str) -> str:
    result = CliRunner().invoke(app, ["plan", *words])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_example_of_the_help() -> None:
    text = said("--model", "llama-3.1-70b", "--chip", "h200", "--chip", "b200", "--floor", "60", "--floor", "100")
    for words in ("llama-3.1-70b on h200", "floor 100", "x standard", "fits on 1 chip", "off by 13.6% in half"):
        assert words in text


def test_the_picture(tmp_path: Path) -> None:
    said("--model", "llama-3.1-70b", "--chip", "h200", "--chip", "wse-3", "--out", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"plan.svg", "plan.png"}
    found = frontier([PricedFloor(1, 1, 50.0, 2.0), PricedFloor(1, 2, 40.0, 3.0), PricedFloor(1, 4, 30.0, 1.0)])
    assert [one.stream_tps for one in found] == [30.0, 50.0]


def test_the_student_on_sram_and_what_cannot_be() -> None:
    text = said("--model", "deepseek-v3", "--chip", "h100", "--floor", "100", "--student", "llama-3.1-8b")
    assert "does not fit" in text
    assert "more than can be linked (8)" in text
    assert "llama-3.1-8b on wse-3" in text
    assert "no band" in text


def test_floors_out_of_reach_drafts_and_speeds() -> None:
    text = said("--model", "llama-3.1-70b", "--chip", "h200", "--floor", "200", "--speeds")
    assert "at most 1" in text
    assert "llama-3.1-70b on 8 h200" in text
    assert "at most" not in said("--model", "llama-3.1-70b", "--chip", "h200", "--floor", "200", "--draft", "3")


def test_a_config_json_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["smollm2-135m"]))
    text = said("--model", str(tmp_path), "--chip", "cpu", "--precision", "bf16", "--standard", "2")
    assert "measure yours with `headway bench`" in text


def test_what_was_measured_is_used(tmp_path: Path) -> None:
    rows = [
        {
            "conc": streams,
            "nine_in_ten_intvty": tps,
            "median_intvty_by_repeat": [tps],
            "output_tput_per_gpu": streams * tps,
        }
        for streams, tps in ((1, 60.0), (8, 50.0), (32, 30.0))
    ]
    (tmp_path / "bench.json").write_text(json.dumps(rows))
    words = ("--model", "mine", "--bench", str(tmp_path / "bench.json"), "--standard", "25", "--floor", "50")
    text = said(*words, "--replica-hour", "3.6")
    assert "mine, measured" in text
    assert "a measured curve" in text
    assert "1.04" in text  # 3.6 an hour is 0.001 a second, for 32 times 30 tokens


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(SetupError, match=r"no chip 'h999'\. Known: .* wse-3"):
        said("--model", "glm-5", "--chip", "h999")
    with pytest.raises(SetupError, match=r"config\.json"):
        said("--model", "no-such-model")


def test_engines_with_a_drafter_beside_engines_without() -> None:
    words = ["--model", "llama-3.1-70b", "--chip", "h200", "--floor", "100", "--speculation", "eagle3"]
    text = " ".join(said(*words).split())
    assert "all with eagle3" in text
    assert "llama-3.1-70b on h200, eagle3: gains of llama-3.1-8b on rtx-3090" in text
    for wrong in (["--chip", "wse-3"], ["--draft", "3"]):
        with pytest.raises(SetupError, match="--speculation"):
            said(*words, *wrong)


def test_fleets_of_one_profile_and_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.plan.fleet.SECONDS", 60.0)
    words = ["--model", "llama-3.1-70b", "--chip", "h200", "--floor", "100", "--speculation", "eagle3"]
    text = " ".join(said(*words, "--demand", "1", "--share", "100=0.3").split())
    assert "Cheapest fleet with the floor 100: plain:" in text
    assert "two profiles:" in text
