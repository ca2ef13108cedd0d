"""The commands that need no torch, from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.config import load
from headway.errors import SetupError
from tests.distill.test_collect import Server, server
from tests.distill.test_student import CONFIG, write_model

__all__ = ["server"]  # a fixture


def run(*arguments: object, said: str | None = None) -> str:
    done = CliRunner().invoke(app, ["distill", *map(str, arguments)], input=said, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_collect_says_what_it_takes_and_asks_before_it_starts(server: Server, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "a"}\n')
    url = f"http://127.0.0.1:{server.server_port}"
    ask = ("collect", prompts, "--model", "m", "--url", url, "--out", out, "--max-tokens", 100, "--output-price", 5000)
    output = run(*ask, said="n\n")
    assert "2 calls to make (0 answered already, 1 duplicates skipped)" in output
    assert "at most 200 output tokens, at most 1.00 at the prices given" in output
    assert not server.asked
    assert "2 answers, 14 + 6 tokens" in run(*ask, "--yes")
    assert "0 calls to make (2 answered already" in run(*ask, "--yes")


def test_fit_shows_the_bytes_and_the_memories(tmp_path: Path) -> None:
    write_model(tmp_path, tied=True)
    output = run("fit", tmp_path)
    assert output.startswith("864 parameters, 1,696 bytes, a step reads 1,696")
    assert "wse-3" in output


def test_publish_makes_the_spark_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "student").mkdir()
    write_model(tmp_path / "student", tied=True)
    Path("headway.toml").write_text(CONFIG)
    row = {"nine_in_ten_intvty": 80.0, "median_intvty_by_repeat": [90.0]}
    bench = [{**row, "conc": n, "output_tput_per_gpu": n * 50, "nine_in_ten_intvty": 90.0 / n} for n in (1, 2, 4)]
    Path("bench.json").write_text(json.dumps(bench))
    url = "http://127.0.0.1:8002"
    output = run("publish", "student", "--model", "m", "--url", url, "--floor", 40, "--bench", "bench.json")
    assert "m-spark is served by http://127.0.0.1:8002 with a floor of 40 tok/s" in output
    assert load(Path("headway.toml")).models[1].replicas[0].curve == [(1, 90.0), (2, 45.0), (4, 22.5)]
    assert "2 draft tokens" in run("publish", "student", "--model", "m", "--acceptance", "0.8,0.7,0.1")
    full = load(Path("headway.toml")).models[0]
    assert full.engine is not None
    assert full.engine.speculation is not None
    assert "m drafts no tokens" in run("publish", "student", "--model", "m", "--acceptance", "0.1")
    before = Path("headway.toml").read_text()
    pasted = run("publish", "student", "--model", "m", "--draft-tokens", "3", "--profile", "drafter")
    assert Path("headway.toml").read_text() == before
    assert '[[models.profiles]] name = "drafter" [models.profiles.speculation] method = "draft_model"' in pasted
    with pytest.raises(SetupError, match="a name has up to 64"):
        run("publish", "student", "--model", "m", "--draft-tokens", "3", "--profile", "not one")
    with pytest.raises(SetupError, match="--profile is for a drafter"):
        run("publish", "student", "--model", "m", "--url", url, "--profile", "drafter")
    with pytest.raises(SetupError, match="would not gain speed"):
        run("publish", "student", "--model", "m", "--draft-tokens", "0", "--profile", "drafter")
    with pytest.raises(SetupError, match="must look like"):
        run("publish", "student", "--model", "m", "--acceptance", "2")
    with pytest.raises(SetupError, match="Nothing to publish"):
        run("publish", "student", "--model", "m")


def test_the_card_is_written_from_results(tmp_path: Path) -> None:
    results, out = tmp_path / "card.json", tmp_path / "CARD.md"
    results.write_text('{"name": "s", "params": 5}')
    run("card", results, "--out", out)
    assert out.read_text().startswith("# s\n")
    results.write_text("[]")
    with pytest.raises(SetupError, match="is not a student's results"):
        run("card", results, "--out", out)


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="already exists"):
        run("quantise", tmp_path, "--out", tmp_path)
