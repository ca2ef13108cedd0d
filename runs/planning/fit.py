"""The fit behind the planner's coefficients, and how far it is off on models and chips that it has not seen.

A band must hold for the next model, not for those in the fit. So its errors come from fits that left out the model (for
chips without measurements, the model and the chip), and its coverage is counted on one model at a time, by a band that
was made from the others alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from headway.plan.step import terms
from runs.planning.rows import Row

Array = npt.NDArray[Any]
Errors = dict[tuple[str, str], Array]  # by chip and model: seconds per token, relative to what was measured

NAMES = (
    "weights", "experts", "context", "activations", "prompt_flops", "prompt_attention", "prompt_activations",
    "all_reduce", "layer_vllm", "layer_sglang", "layer_trtllm", "layer_quantised", "layer_latent", "layer_sparse",
    "layer_linear", "layer_moe", "expert", "stream_vllm", "stream_sglang", "stream_trtllm",
)  # fmt: skip
# Nothing is faster than the data sheet says. Of the experts the formula counts, fewer are touched, as tokens of a text
# choose alike (50 to 60 % measured where it says 64 %); prompts and answers are up to a fifth shorter than rows say.
LOWEST = {"weights": 1.0, "experts": 0.86, "context": 0.9, "prompt_flops": 1.0}
# What is known before: an all-reduce of few bytes takes 9 us among 8 chips; a layer about 40. It decides where an
# engine was measured with few kinds of models, and weighs as much as some ten rows.
EXPECTED = {"layer_vllm": 40.0, "layer_sglang": 40.0, "layer_trtllm": 40.0, "all_reduce": 3.0}
EXPECTED_WEIGHT = 100.0
ROUNDS, NEAR = 40, 0.01

# A chip with fewer rows is shown and not judged: its error is that of two or three configurations.
FEWEST_ROWS = 20
# Ten models are few, and the worst of them decides about the edge of the band: the 0.90 quantile of nine of them covers
# 88.8 % of the tenth's rows in the mean, the 0.92 quantile 91.1 %. Pairs of a chip and a model are more (28).
MODEL_EDGE, PAIR_EDGE = 0.92, 0.90
NOBODY = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows in scope as the fit reads them."""

    x: Array
    y: Array
    chips: Array
    models: Array

    @classmethod
    def of(cls, rows: list[Row]) -> Sample:
        found = [terms(row.setup, row.batch) for row in rows]
        return cls(
            np.array([[parts.get(name, 0.0) for name in NAMES] for parts in found]),
            np.array([row.measured_s for row in rows]),
            np.array([row.chip for row in rows]),
            np.array([row.model for row in rows]),
        )

    def judged_chips(self) -> list[str]:
        names, counts = np.unique(self.chips, return_counts=True)
        return [str(name) for name, count in zip(names, counts, strict=True) if count >= FEWEST_ROWS]

    def pairs(self, chips: Iterable[str]) -> list[tuple[str, str]]:
        """The chips, each with every model that was measured on it."""
        return [(chip, str(model)) for chip in chips for model in np.unique(self.models[self.chips == chip])]


def fit(x: Array, y: Array) -> Array:
    """Least absolute relative error: least squares again and again, each row weighed by what it was off."""
    a = x / y[:, None]
    lowest = np.array([LOWEST.get(name, 0.0) for name in NAMES])
    expected = np.array([EXPECTED.get(name, 0.0) for name in NAMES])
    scale = np.where(a.max(0) > 0, a.max(0), 1.0)
    pull = np.sqrt(EXPECTED_WEIGHT) * np.divide(1.0, expected, out=np.zeros_like(expected), where=expected > 0)
    weight, best = np.ones(len(y)), lowest
    for _ in range(ROUNDS):
        root = np.sqrt(weight)
        left = np.vstack([(a / scale) * root[:, None], np.diag(pull / scale)])
        right = np.concatenate([(1.0 - a @ lowest) * root, pull * (expected - lowest)])
        best = nnls(left, right)[0] / scale + lowest
        weight = 1.0 / np.maximum(np.abs(a @ best - 1.0), NEAR)
    return best


def errors_of(sample: Sample, where: Array, seen: Array) -> Array:
    """Of the rows `where`, by a fit on the rows `seen`."""
    coefficients = fit(sample.x[seen], sample.y[seen])
    off: Array = np.abs(sample.x[where] @ coefficients / sample.y[where] - 1.0)
    return off


def model_left_out(sample: Sample, also_without: str = NOBODY) -> Errors:
    """Each model by a fit that saw neither it nor the other one."""
    found: Errors = {}
    for model in sorted({str(name) for name in sample.models} - {also_without}):
        where = sample.models == model
        off = errors_of(sample, where, ~where & (sample.models != also_without))
        found |= {(str(chip), model): off[sample.chips[where] == chip] for chip in np.unique(sample.chips[where])}
    return found


def chip_and_model_left_out(sample: Sample, also_without: str = NOBODY) -> Errors:
    """Each model on each chip by a fit that saw neither of them, nor the other chip."""
    found: Errors = {}
    for chip, model in sample.pairs(chip for chip in sample.judged_chips() if chip != also_without):
        on_chip, of_model = sample.chips == chip, sample.models == model
        seen = ~on_chip & ~of_model & (sample.chips != also_without)
        found[chip, model] = errors_of(sample, on_chip & of_model, seen)
    return found


def quantile(groups: Iterable[Array], level: float) -> float:
    """Every group counts alike, however many rows it has: the next model is one more model, not some more rows."""
    parts = list(groups)
    values = np.concatenate(parts)
    weights = np.concatenate([np.full(len(part), 1.0 / (len(part) * len(parts))) for part in parts])
    order = np.argsort(values)
    reached = np.searchsorted(np.cumsum(weights[order]), level - 1e-9)
    return float(values[order][min(int(reached), len(values) - 1)])


def by_model(errors: Errors) -> list[Array]:
    return [np.concatenate([off for (_, one), off in errors.items() if one == model]) for model in models_of(errors)]


def models_of(errors: Errors) -> list[str]:
    return sorted({model for _, model in errors})


def in_model_band(sample: Sample, errors: Errors) -> Errors:
    """Whether each row of a model lies in the band that the other models make, by fits that never saw this one."""
    edges = {model: quantile(by_model(model_left_out(sample, model)), MODEL_EDGE) for model in models_of(errors)}
    return {(chip, model): off <= edges[model] for (chip, model), off in errors.items()}


def in_chip_band(sample: Sample, errors: Errors) -> Errors:
    """Whether each row on a chip lies in the band that the other chips make, by fits that never saw this one."""
    chips = sorted({chip for chip, _ in errors})
    edges = {chip: quantile(chip_and_model_left_out(sample, chip).values(), PAIR_EDGE) for chip in chips}
    return {(chip, model): off <= edges[chip] for (chip, model), off in errors.items()}
