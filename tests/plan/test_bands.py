"""The bands of the planner: computed from what was left out of the fit, with a verdict that can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headway.plan.answers import SEEN, UNSEEN
from runs.planning.accuracy import Figures, verdict
from runs.planning.fit import (
    MODEL_EDGE,
    NAMES,
    PAIR_EDGE,
    Sample,
    by_model,
    chip_and_model_left_out,
    in_model_band,
    model_left_out,
    quantile,
)
from runs.planning.rows import SAMPLE, read_rows

GOOD = Figures(
    median=0.09,
    mape=0.125,
    left_out_mape={"h100": 0.13, "h200": 0.187},
    covered={"models left out, all rows": 0.94, "models left out, mean of models": 0.911},
    is_as_fitted=True,
)


@pytest.fixture(scope="module")
def sample() -> Sample:
    rows, _ = read_rows(SAMPLE)
    return Sample.of(rows)


def test_the_verdict_holds() -> None:
    assert verdict(GOOD).ok


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        (replace(GOOD, median=0.121), "median error: 12.1% (<= 12.0%)"),
        (replace(GOOD, mape=0.16), "MAPE: 16.0% (<= 15.0%)"),
        (replace(GOOD, left_out_mape={"h100": 0.13, "h200": 0.21}), "MAPE of h200, left out: 21.0% (<= 20.0%)"),
        (replace(GOOD, covered={"models left out": 0.825}), "in the 90 % band, models left out: 82.5% (88% .. 97%)"),
        (replace(GOOD, covered={"models left out": 0.99}), "in the 90 % band, models left out: 99.0% (88% .. 97%)"),
        (replace(GOOD, is_as_fitted=False), "coefficients and bands of the package: others (as fitted)"),
    ],
)
def test_the_verdict_names_the_bar_that_is_missed(figures: Figures, why: str) -> None:
    assert not verdict(figures).ok
    assert verdict(figures).reasons == (why,)


def test_every_group_counts_alike_in_a_quantile() -> None:
    many, few = np.zeros(90), np.ones(10)
    assert quantile([many, few], 0.5) == 0.0
    assert quantile([many, few], 0.6) == 1.0
    assert quantile([np.array([0.1, 0.2, 0.3, 0.4])], 1.0) == 0.4


def test_the_shipped_band_is_that_of_models_left_out(sample: Sample) -> None:
    errors = by_model(model_left_out(sample))
    made = quantile(errors, 0.5), quantile(errors, MODEL_EDGE)
    assert (SEEN.half, SEEN.nine_in_ten) == pytest.approx(made, abs=0.001)
    assert np.mean([np.mean(off <= made[1]) for off in errors]) >= 0.9


def test_the_shipped_band_of_other_chips_leaves_out_chip_and_model(sample: Sample) -> None:
    errors = list(chip_and_model_left_out(sample).values())
    made = quantile(errors, 0.5), quantile(errors, PAIR_EDGE)
    assert (UNSEEN.half, UNSEEN.nine_in_ten) == pytest.approx(made, abs=0.001)
    assert (SEEN.nine_in_ten or 0.0) < (UNSEEN.nine_in_ten or 0.0)


def test_a_model_does_not_affect_the_band_it_is_judged_by() -> None:
    """Nine models are as planned and one takes ten times as long: it must not widen its own band."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, (200, len(NAMES)))
    y = x.sum(1) * rng.uniform(0.95, 1.05, 200)
    models = np.repeat([f"m{number}" for number in range(10)], 20)
    y[models == "m0"] *= 10
    sample = Sample(x, y, np.full(200, "chip"), models)
    inside = in_model_band(sample, model_left_out(sample))
    assert not inside["chip", "m0"].any()
    assert inside["chip", "m1"].all()
