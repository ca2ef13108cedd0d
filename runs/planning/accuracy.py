"""How far the planner is off on public measurements, and whether its bands hold. See runs/plan-accuracy.sh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from headway.plan.answers import SEEN, UNSEEN, Band
from headway.plan.step import COEFFICIENTS, seconds_per_token
from runs.measure.verdict import Bar, Verdict, at_most, finish
from runs.planning.fit import (
    MODEL_EDGE,
    NAMES,
    PAIR_EDGE,
    Array,
    Errors,
    Sample,
    by_model,
    chip_and_model_left_out,
    errors_of,
    fit,
    in_chip_band,
    in_model_band,
    model_left_out,
    quantile,
)
from runs.planning.public import public_figures
from runs.planning.rows import QUEUED, R1, SAMPLE, UNRECORDED, Row, read_rows, rows_out_only_for

console = Console(width=130)

MOST_MEDIAN, MOST_MAPE, MOST_LEFT_OUT = 0.12, 0.15, 0.20
# Nine in ten, with room for ten models and four chips being few; a band that covers more is wider than it says.
LEAST_COVERED, MOST_COVERED = 0.88, 0.97
NEAR_ENOUGH = 0.001  # bands are written to a tenth of a per cent


@dataclass(frozen=True, slots=True)
class Figures:
    median: float  # errors of the shipped planner
    mape: float
    left_out_mape: dict[str, float]  # by chip, of a fit that never saw it
    covered: dict[str, float]  # the share in the 90 % band, by what was left out and how it is counted
    is_as_fitted: bool  # the coefficients and the bands in the package are those of this run


def verdict(figures: Figures) -> Verdict:
    off = {"median error": (figures.median, MOST_MEDIAN), "MAPE": (figures.mape, MOST_MAPE)}
    off |= {f"MAPE of {chip}, left out": (mape, MOST_LEFT_OUT) for chip, mape in figures.left_out_mape.items()}
    bars = [at_most(what, found, most, ".1%") for what, (found, most) in off.items()]
    bars.append(
        Bar("coefficients and bands of the package", "as fitted" if figures.is_as_fitted else "others", "as fitted",
            figures.is_as_fitted)
    )  # fmt: skip
    bars += [
        Bar(f"in the 90 % band, {what}", f"{share:.1%}", f"{LEAST_COVERED:.0%} .. {MOST_COVERED:.0%}",
            LEAST_COVERED <= share <= MOST_COVERED)
        for what, share in figures.covered.items()
    ]  # fmt: skip
    worst = max(figures.left_out_mape.values())
    inside = ", ".join(f"{what} {share:.1%}" for what, share in figures.covered.items())
    figure = (
        f"median error {figures.median:.1%}, MAPE {figures.mape:.1%}, of chips left out at most {worst:.1%}; "
        f"in the 90 % band: {inside}"
    )
    return Verdict(figure, tuple(bars))


def summary(errors: Array) -> list[str]:
    return [f"{errors.mean():.1%}", f"{np.median(errors):.1%}", f"{np.quantile(errors, 0.9):.1%}"]


def groups(rows: list[Row], key: Callable[[Row], str]) -> Iterable[tuple[str, Array]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        found[key(row)].append(number)
    return ((name, np.array(found[name])) for name in sorted(found))


def off_by(rows: list[Row]) -> Array:
    """By what the shipped planner is off, relative to what was measured."""
    return np.array([abs(seconds_per_token(row.setup, row.batch) / row.measured_s - 1.0) for row in rows])


def print_scope(rows: list[Row], out: dict[str, int], errors: Array) -> None:
    console.print(f"{len(rows)} rows in scope of {len(rows) + sum(out.values())}. Not in scope:")
    for why, count in out.items():
        console.print(f"  {count:>5}  {why}", highlight=False)
    for why in (R1, UNRECORDED, QUEUED):
        others = rows_out_only_for(SAMPLE, why)
        cells = f"{len(others):>5} {' / '.join(summary(off_by(others)))}"
        console.print(f"  not in scope, scored all the same: {cells}  {why}", highlight=False, soft_wrap=True)
    with_unknown = np.concatenate([errors, off_by(rows_out_only_for(SAMPLE, UNRECORDED))])
    console.print(f"in scope and those of 0 chips together: {' / '.join(summary(with_unknown))}")


def print_coefficients(fitted: Array) -> bool:
    """Whether they are those in the package."""
    shipped = np.array([COEFFICIENTS.get(name, 0.0) for name in NAMES])
    table = Table("coefficient", "fitted", "shipped")
    for name, new, old in zip(NAMES, fitted, shipped, strict=True):
        table.add_row(name, f"{new:.4g}", f"{old:.4g}")
    console.print(table)
    return bool(np.allclose(fitted, shipped, rtol=0.005, atol=0.005))


def print_errors(rows: list[Row], sample: Sample, errors: Array) -> dict[str, float]:
    """By chip, model and engine; chips and models also by a fit that never saw them. MAPE of the chips judged."""
    judged: dict[str, float] = {}
    keys: dict[str, Callable[[Row], str]] = {
        "chip": lambda r: r.chip, "model": lambda r: r.model, "engine": lambda r: r.engine,
    }  # fmt: skip
    table = Table("", "rows", "MAPE", "median", "p90", "left out: MAPE", "median", "p90")
    for kind, key in keys.items():
        for name, where in groups(rows, key):
            cells = [f"{kind} {name}", str(len(where)), *summary(errors[where])]
            if kind != "engine":
                off = errors_of(sample, where, np.setdiff1d(np.arange(len(rows)), where))
                cells += summary(off)
                if kind == "chip" and name in sample.judged_chips():
                    judged[name] = float(off.mean())
                elif kind == "chip":
                    cells[0] += " (too few to judge)"
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    return judged


def print_coverage(seen: Errors, unseen: Errors) -> None:
    """Which share lies in the band, by chip and by model."""
    table = Table("in the 90 % band", "rows", "model left out", "model and chip left out")
    for kind, place in (("chip", 0), ("model", 1)):
        for name in sorted({pair[place] for pair in seen}):
            cells = [f"{kind} {name}"]
            parts = [[inside for pair, inside in covered.items() if pair[place] == name] for covered in (seen, unseen)]
            cells.append(str(sum(len(part) for part in parts[0])))
            cells += [f"{np.concatenate(part).mean():.1%}" if part else "-" for part in parts]
            table.add_row(*cells)
        table.add_section()
    console.print(table)


def shares(what: str, each: str, covered: Iterable[Array]) -> dict[str, float]:
    """All rows together, and the mean over groups, so that a model with many rows does not stand for the others."""
    parts = list(covered)
    return {
        f"{what}, all rows": float(np.concatenate(parts).mean()),
        f"{what}, mean of {each}": float(np.mean([part.mean() for part in parts])),
    }


def print_band(name: str, band: Band, errors: Iterable[Array], edge: float) -> bool:
    """Whether it is the one in the package."""
    parts = list(errors)
    made = np.array([quantile(parts, 0.5), quantile(parts, edge)])
    shipped = np.array([band.half, band.nine_in_ten], dtype=float)
    cells = [f"{half:.1%} in half of the cases, {edge:.1%} in nine of ten" for half, edge in (made, shipped)]
    console.print(f"band of {name}: {cells[0]}; shipped: {cells[1]}", highlight=False)
    return bool(np.allclose(made, shipped, atol=NEAR_ENOUGH))


def main() -> int:
    rows, out = read_rows(SAMPLE)
    sample, errors = Sample.of(rows), off_by(rows)
    fitted = fit(sample.x, sample.y)
    is_as_fitted = print_coefficients(fitted)
    again = np.abs(sample.x @ fitted / sample.y - 1.0)
    console.print(f"the fit: {' / '.join(summary(again))}; shipped: {' / '.join(summary(errors))}")
    print_scope(rows, out, errors)
    judged = print_errors(rows, sample, errors)
    public_figures(rows, console)
    of_models, of_chips = model_left_out(sample), chip_and_model_left_out(sample)
    is_as_fitted &= print_band("measured chips", SEEN, by_model(of_models), MODEL_EDGE)
    is_as_fitted &= print_band("other chips", UNSEEN, of_chips.values(), PAIR_EDGE)
    seen, unseen = in_model_band(sample, of_models), in_chip_band(sample, of_chips)
    print_coverage(seen, unseen)
    covered = shares("models left out", "models", by_model(seen)) | shares(
        "chips left out", "models on chips", unseen.values()
    )
    figures = Figures(float(np.median(errors)), float(errors.mean()), judged, covered, is_as_fitted)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    raise SystemExit(main())
