"""Gains of speculation by batch: those of data/, and never better than measured."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from headway.plan.answers import batches_up_to, offers_of
from headway.plan.chips import CHIPS
from headway.plan.gains import SERIES, Gains, gains_for
from headway.plan.memory import seats
from headway.plan.models import model_shape
from headway.plan.step import Setup, seconds_per_token

TABLE = Path(__file__).parents[2] / "data" / "speculation_gains.csv"
LLAMA = Setup(model_shape("llama-3.1-70b"), CHIPS["h100"], 4, "fp8")


def test_the_series_are_those_of_the_table() -> None:
    found: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert row["source"].startswith("https://")
            assert row["licence"]
            key = tuple(row[name] for name in ("method", "model", "chip", "engine", "setting"))
            found.setdefault(key, []).append((int(row["batch"]), float(row["gain"])))
    known = {(one.method, one.model, one.chip, one.engine, one.setting): list(one.by_batch) for one in SERIES}
    assert known == found
    assert len(known) == len(SERIES)


@pytest.mark.parametrize("gains", SERIES, ids=str)
def test_no_gain_is_better_than_measured(gains: Gains) -> None:
    for batch, gain in gains.by_batch:
        assert gains.at(batch) <= gain
    every = [gains.at(batch) for batch in range(1, 2 * gains.most_streams)]
    assert every == sorted(every, reverse=True)
    assert every[-1] == min(1.0, gains.at(gains.most_streams))


def test_between_two_batches() -> None:
    gains = Gains("mtp", "m", "h100", "vllm", "3 tokens", ((2, 2.0), (8, 1.0), (16, 0.5)))
    assert [gains.at(batch) for batch in (1, 2, 4, 8, 16, 17, 64)] == [2.0, 2.0, 1.5, 1.0, 0.5, 0.5, 0.5]


def test_the_series_of_a_chip_and_of_one_without() -> None:
    assert gains_for("eagle3", "h100").chip == "h100"
    assert gains_for("eagle3", "mi355x").chip == "rtx-3090"  # it ends lower than the other
    assert gains_for("mtp", "b200").setting == "block of 16"


def test_a_drafter_speeds_up_decoding_and_not_prompts() -> None:
    drafted = replace(LLAMA, gains=gains_for("eagle3", "h100"))
    for batch in (1, 16, 64):
        gain = gains_for("eagle3", "h100").at(batch)
        plain_s = seconds_per_token(LLAMA, batch, with_prompts=False)
        assert seconds_per_token(drafted, batch, with_prompts=False) == pytest.approx(plain_s / gain)
        reading_s = seconds_per_token(LLAMA, batch) - plain_s
        assert seconds_per_token(drafted, batch) == pytest.approx(plain_s / gain + reading_s)


def test_nothing_is_planned_beyond_the_last_batch() -> None:
    drafted = replace(LLAMA, gains=gains_for("eagle3", "h100"))
    assert seats(LLAMA) > seats(drafted) == 64
    assert max(offer.batch for offer in offers_of(drafted)) == 64
    seconds = [seconds_per_token(drafted, batch) for batch in batches_up_to(64)]
    assert seconds == sorted(seconds)
