"""What-if: tallies that can be worked out by hand, intervals over seeds, and the command."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.cli import app
from headway.core.types import Call, ModelPolicy, Replica, Tier
from headway.errors import SetupError
from headway.price import Price
from headway.sim.loop import Fault, Job
from headway.sim.report import as_csv, by_tier, figure, money
from headway.sim.sample import SAMPLE, Sample
from headway.sim.scenario import Scenario, play
from headway.sim.traces import read_trace
from headway.sim.workload import Lengths, Recipe, synthesize
from tests.sim.test_loop import CURVE, TIERS

PRICES: dict[Tier, Price] = {
    "fast": Price(1_000_000, 2_000_000, 3_000),
    "standard": Price(1_000_000, 2_000_000),
    "flex": Price(1_000_000, 2_000_000, 500),
}
DATA = Path(__file__).parents[2] / "data"


def scenario(jobs: list[Job], seconds: float = 100.0, faults: tuple[Fault, ...] = ()) -> Scenario:
    policy = ModelPolicy(TIERS, standard_share=0.0, margin=0.0, express_wait_s=inf)
    fleet = [Replica("r0", "m", 8, CURVE)]
    return Scenario(policy, fleet, lambda _seed: iter(jobs), seconds, PRICES, 3_600_000_000, faults)


def job(at: float, name: str, tokens: int, tier: Tier) -> Job:
    return Job(at, Call(name, "m", tier, falls_back=True, prompt_tokens=100), tokens)


def test_money_floors_and_cost_of_a_run_by_hand() -> None:
    jobs = [job(0.0, "f", 101, "fast"), job(10.0, "g", 101, "fast"), job(20.0, "s", 11, "standard")]
    outcome = play(scenario(jobs, faults=(Fault(9.0, "r0", 5.0, slowness=4.0),)), 0)
    fast, standard = outcome.tallies["fast"], outcome.tallies["standard"]
    assert (fast.calls, fast.promised, fast.kept) == (2, 2, 1)
    # 100 + 2 * 101 micro-units at standard; three times that for each, and two thirds back for the one that was slow.
    assert (fast.billed, fast.refunded) == (2 * 3 * 302, 2 * 302)
    assert standard.billed == 100 + 2 * 11
    assert outcome.cost == 100_000_000  # a unit for each second
    assert sum(outcome.seat_us.values()) > 0


def test_intervals_over_seeds() -> None:
    assert figure([2.0]).half == 0.0
    three = figure([1.0, 2.0, 3.0])
    assert three.mean == pytest.approx(2.0)
    assert three.half == pytest.approx(4.30 / 3**0.5, rel=0.01)


def test_a_sample_is_bounded_and_fair() -> None:
    sample = Sample("x")
    for value in range(5 * SAMPLE):
        sample.add(float(value))
    assert len(sample.values) == SAMPLE
    assert sample.quantile(0.5) == pytest.approx(2.5 * SAMPLE, rel=0.03)


def test_seeds_together() -> None:
    recipe = Recipe(10.0, answers=Lengths(60, 1.0, 500), tiers={"standard": 0.8, "fast": 0.2})
    policy = ModelPolicy(TIERS)
    fleet = [Replica(f"r{n}", "m", 8, CURVE, 10_000) for n in range(4)]
    made = Scenario(policy, fleet, partial(synthesize, recipe), 300.0, PRICES, 1_000_000)
    outcomes = [play(made, seed) for seed in range(3)]
    figures = by_tier(outcomes)
    assert figures["fast"]["floors kept"].mean > 0.98
    assert figures["standard"]["calls/s"].mean == pytest.approx(8.0, rel=0.4)
    assert money(outcomes)["cost/h"].mean == pytest.approx(4.0)
    assert len(as_csv(outcomes).splitlines()) == 1 + 3 * 3
    assert 100 < len(outcomes[0].moments) <= 200


def test_a_trace_of_azure() -> None:
    jobs = list(read_trace(DATA / "azure_conversations.csv"))
    assert len(jobs) == 1_000
    assert [one.at for one in jobs] == sorted(one.at for one in jobs)
    assert all(one.tokens >= 1 for one in jobs)


def test_a_trace_of_mooncake(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[0,1,2]}\n'
        '{"timestamp":1500,"input_length":1600,"output_length":0,"hash_ids":[0,1,3,4]}\n'
    )
    first, second = read_trace(path)
    assert (second.at, second.call.prompt_tokens, second.tokens, second.blocks) == (1.5, 1600, 1, (0, 1, 3, 4))
    tokens = second.call.prefix_tokens
    assert len(tokens) == len(second.call.prefix_keys)
    shared = [
        count for count, key in zip(tokens, second.call.prefix_keys, strict=True) if key in first.call.prefix_keys
    ]
    assert shared == [count for count in tokens if count <= 1024]


def test_the_command(tmp_path: Path) -> None:
    config = tmp_path / "headway.toml"
    config.write_text(
        '[[models]]\nname = "m"\nprice = { input = 1.0, output = 2.0, replica_hour = 3.0 }\n'
        '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "fast"\nfloor_tps = 25.0\nprice_multiple = 3.0\n'
        '[[models.replicas]]\nurl = "http://127.0.0.1:1"\nseats = 16\nprompt_tps = 20000.0\n'
        "curve = [[1, 50.0], [4, 40.0], [16, 20.0]]\n"
    )
    words = [
        "simulate",
        "--calls-per-s",
        "2",
        "--share",
        "fast=0.2",
        "--hours",
        "0.1",
        "--seeds",
        "2",
        "--replicas",
        "3",
    ]
    words += ["--fault", "0:60:30", "--fault", "1:60:30:3", "--out", str(tmp_path / "out"), "--config", str(config)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert result.exit_code == 0, (result.output, result.exception)
    assert "floors kept" in result.output
    assert "margin/h" in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "simulation.csv", "simulation.svg", "simulation.png"
    }  # fmt: skip
    words = [
        "simulate",
        "--hours",
        "0.1",
        "--seeds",
        "2",
        "--replicas",
        "4",
        "--cells",
        "2",
        "--config",
        str(config),
    ]
    words += ["--dispatcher-fault", "1:60:1.5", "--dispatcher-ms", "2", "--auto", "share=0.5,replicas=1,escalated=0.4"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert result.exit_code == 0, (result.output, result.exception)
    assert "handed on between cells" in result.output
    assert "served by the student" in result.output
    for bad in (
        ["--dispatcher-fault", "1:1:1"],
        ["--dispatcher-fault", "0:1"],
        ["--auto", "share=2"],
        ["--auto", "sharp=1"],
        ["--auto", "share"],
    ):
        wrong = CliRunner().invoke(app, ["simulate", *bad, "--config", str(config)])
        assert isinstance(wrong.exception, SetupError), bad
    wrong = CliRunner().invoke(app, ["simulate", "--share", "warp=1", "--config", str(config)])
    assert "must look like fast=0.2" in str(wrong.exception)
    wrong = CliRunner().invoke(app, ["simulate", "--fault", "9:1:1", "--config", str(config)])
    assert "replicas are numbered" in str(wrong.exception)
