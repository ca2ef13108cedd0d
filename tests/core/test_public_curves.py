"""The curve on engines and chips we do not have: public measurements, three points to fit, the others to check."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from headway.core.curve import fit

DATA = Path(__file__).parents[2] / "data" / "silicon_sample.csv"
# What is not part of a configuration: the batch, and what was measured.
MEASURED = {"batch_size", "silicon_ttft_ms", "silicon_tpot_ms"}
MIN_BATCHES = 5
MAX_MAPE, MAX_MEDIAN = 0.04, 0.02


def public_curves() -> list[dict[int, float]]:
    """Seconds per token by batch, for each configuration with enough batches; several measurements by their median."""
    found: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with DATA.open(newline="") as file:
        for row in csv.DictReader(file):
            if "DeepSeek-R1" in row["model_path"]:
                continue  # its rows mix speculative and plain decoding and do not say which is which
            configuration = tuple(value for name, value in row.items() if name not in MEASURED)
            found[configuration][int(row["batch_size"])].append(float(row["silicon_tpot_ms"]) / 1000)
    curves = [{batch: statistics.median(values) for batch, values in curve.items()} for curve in found.values()]
    return [curve for curve in curves if len(curve) >= MIN_BATCHES]


def test_three_points_tell_the_rest_of_a_public_curve() -> None:
    curves = public_curves()
    errors = []
    for curve in curves:
        batches = sorted(curve)
        middle = min(batches[1:-1], key=lambda batch: abs(batch - (batches[0] * batches[-1]) ** 0.5))
        chosen = (batches[0], middle, batches[-1])
        fitted = fit([(batch, curve[batch]) for batch in chosen])
        errors += [abs(fitted.seconds_per_token(b) / curve[b] - 1) for b in batches if b not in chosen]
    mape, median = statistics.mean(errors), statistics.median(errors)
    print(f"{len(curves)} curves, {len(errors)} points held out: MAPE {mape:.2%}, median {median:.2%}")
    assert len(curves) > 300
    assert mape <= MAX_MAPE
    assert median <= MAX_MEDIAN
