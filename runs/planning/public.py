"""The planner beside public figures that it was not fitted on. See runs/plan-accuracy.sh."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from statistics import median

from rich.console import Console
from rich.table import Table

from headway.plan.answers import PricedFloor, band_of, offers_of, quote
from headway.plan.chips import CHIPS, Precision
from headway.plan.memory import fewest_chips
from headway.plan.models import model_shape
from headway.plan.step import PLAIN, Engine, Setup, Speculation, seconds_per_token
from runs.planning.rows import Row

STANDARD_TPS = 40.0
FLOORS_TPS = (60.0, 80.0, 100.0)
LABS_STANDARD_TPS, LABS_FAST_TPS = 65.0, 170.0
DRAFTS = Speculation(3, 0.7)
# InferenceX, single node: medians over chips and engines; at 4 streams from 0.99 to 2.27.
DRAFT_GAINS = {4: 1.57, 16: 1.38, 32: 1.43, 64: 1.29, 256: 1.38}


@dataclass(frozen=True, slots=True)
class Series:
    """Tok/s of a stream by concurrency, as InferenceX published them."""

    words: str
    model: str
    chip: str
    chips: int
    engine: Engine
    lengths: tuple[int, int]
    tps: dict[int, float]


# DeepSeek-R1 has the shape of V3. None of these chips but H200 and B300 is in the fit, and no row of R1 is.
SERIES = (
    Series("MI300X, R1", "deepseek-v3", "mi300x", 8, "sglang", (1024, 1024),
           {4: 68.6, 8: 58.7, 16: 47.6, 32: 35.7, 64: 24.6}),
    Series("MI355X, R1", "deepseek-v3", "mi355x", 8, "sglang", (1024, 8192),
           {4: 106.6, 8: 95.6, 16: 76.7, 32: 57.7, 64: 46.0}),
    Series("H200, R1", "deepseek-v3", "h200", 8, "sglang", (1024, 8192),
           {4: 97.4, 8: 81.9, 16: 63.0, 32: 45.2, 64: 32.2}),
    Series("B300, R1", "deepseek-v3", "b300", 8, "sglang", (1024, 1024), {1: 142, 4: 120, 16: 80.7, 64: 47.2}),
    Series("TPU7x, Qwen3.5 on 4", "qwen3.5-397b-a17b", "tpu7x", 4, "vllm", (8192, 1024),
           {4: 131.6, 8: 103.6, 16: 71.3, 32: 48.4, 64: 30.8}),
)  # fmt: skip
# (model, chip, precision, tok/s of a stream as published)
SRAM_SPEEDS: tuple[tuple[str, str, Precision, float], ...] = (
    ("llama-3.1-8b", "wse-3", "bf16", 1800),
    ("llama-3.1-70b", "wse-3", "bf16", 450),
    ("gpt-oss-120b", "wse-3", "fp4", 3000),
    ("llama-3.1-70b", "groq-v1", "int8", 300),
    ("gpt-oss-120b", "groq-v1", "fp4", 476),
)


def public_figures(rows: list[Row], console: Console) -> None:
    _measured_multiples(rows, console)
    _other_chips(console)
    _drafts(console)
    _labs(console)
    _sram(console)


def _measured_multiples(rows: list[Row], console: Console) -> None:
    """The price of a floor beside 40 tok/s, from the measured rows and from what is predicted for the same rows."""
    measured: dict[str, dict[int, list[PricedFloor]]] = defaultdict(lambda: defaultdict(list))
    predicted: dict[str, dict[int, list[PricedFloor]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = f"{row.model} {row.chip} {row.setup.precision} {row.engine} {row.lengths}"
        for found, seconds in ((measured, row.measured_s), (predicted, seconds_per_token(row.setup, row.batch))):
            n = row.setup.chips
            found[name][n].append(PricedFloor(n, row.batch, 1 / seconds, seconds * n / row.batch))
    off: dict[float, list[float]] = defaultdict(list)
    for name in measured:
        for floor_tps in FLOORS_TPS:
            real, said = (_interpolated(one[name], floor_tps) for one in (measured, predicted))
            if real is not None and said is not None:
                off[floor_tps].append(said / real - 1)
    for floor_tps, ratios in off.items():
        sizes = sorted(abs(one) for one in ratios)
        console.print(
            f"price multiple of {floor_tps:g} beside {STANDARD_TPS:g} tok/s, predicted and measured, {len(ratios)} "
            f"configurations: off by {median(sizes):.0%} in half of them, {sizes[int(0.9 * len(sizes))]:.0%} in nine "
            f"of ten, {median(ratios):+.0%} in the middle",
            highlight=False,
            soft_wrap=True,
        )


def _interpolated(by_chips: dict[int, list[PricedFloor]], floor_tps: float) -> float | None:
    costs = []
    for tps in (STANDARD_TPS, floor_tps):
        found = [cost for offers in by_chips.values() if (cost := _cost_at(offers, tps)) is not None]
        costs.append(min(found, default=None))
    standard, fast = costs
    return None if standard is None or fast is None else fast / standard


def _cost_at(offers: list[PricedFloor], tps: float) -> float | None:
    """Between two neighbours in speed, on a logarithmic scale; nothing beyond the ends."""
    line = sorted(offers, key=lambda one: one.stream_tps)
    for slow, fast in pairwise(line):
        if slow.stream_tps <= tps <= fast.stream_tps and fast.stream_tps > slow.stream_tps:
            share = (tps - slow.stream_tps) / (fast.stream_tps - slow.stream_tps)
            return exp(log(slow.cost_s) + share * (log(fast.cost_s) - log(slow.cost_s)))
    return None


def _other_chips(console: Console) -> None:
    table = Table("InferenceX, fp8", "tok/s by concurrency", "predicted", "off by, mean")
    for one in SERIES:
        setup = Setup(model_shape(one.model), CHIPS[one.chip], one.chips, "fp8", one.engine, *one.lengths)
        said = {batch: 1 / seconds_per_token(setup, batch) for batch in one.tps}
        off = sum(abs(one.tps[batch] / said[batch] - 1) for batch in said) / len(said)
        real_line, said_line = (" ".join(f"{b}:{tps:.0f}" for b, tps in line.items()) for line in (one.tps, said))
        table.add_row(one.words, real_line, said_line, f"{off:.0%}")
    console.print(table)


def _drafts(console: Console) -> None:
    """Pairs of DeepSeek-R1 on one node with and without its drafts; how many there were and were taken is not said."""
    plain = Setup(model_shape("deepseek-v3"), CHIPS["h200"], 8, "fp8", "sglang")
    table = Table("gain of drafts, DeepSeek-R1", "measured, median", "1 draft at 0.8", "3 drafts at 0.7")
    for batch, gain in DRAFT_GAINS.items():
        cells = []
        for speculation in (Speculation(1, 0.8), DRAFTS):
            drafted = replace(plain, speculation=speculation)
            cells.append(f"{seconds_per_token(plain, batch) / seconds_per_token(drafted, batch):.2f}")
        table.add_row(f"{batch} streams", f"{gain:.2f}", *cells)
    console.print(table)


def _labs(console: Console) -> None:
    """Two labs sell 65 -> 170 tok/s for 2 and 6 times the price, of models and on chips that they do not name."""
    table = Table("65 -> 170 tok/s, vLLM, 1024/1024", "fastest", "multiple", f"with {DRAFTS.drafted} drafts at 0.7")
    drafted: list[float] = []
    for model, chip, precision in (
        ("gpt-oss-120b", "b200", "fp4"), ("minimax-m2.5", "b200", "fp4"), ("qwen3.5-397b-a17b", "b200", "fp8"),
        ("glm-4.5", "b200", "fp8"), ("deepseek-v3", "b200", "fp4"), ("kimi-k2.5", "gb200", "fp4"),
        ("llama-3.1-70b", "h200", "fp8"),
    ):  # fmt: skip
        cells, fastest = [], []
        for speculation in (PLAIN, DRAFTS):
            setup = Setup(model_shape(model), CHIPS[chip], 8, precision, speculation=speculation)  # type: ignore[arg-type]
            offers = offers_of(setup)
            found = quote(offers, LABS_STANDARD_TPS, LABS_FAST_TPS, band_of(setup))
            cells.append("not reached" if found.multiple is None else f"{found.multiple:.1f}")
            if speculation is DRAFTS and found.multiple is not None:
                drafted.append(found.multiple)
            fastest.append(f"{max(one.stream_tps for one in offers):.0f}")
        table.add_row(f"{model} {precision} {chip}", " / ".join(fastest), *cells)
    console.print(table)
    console.print(
        f"the labs charge 2 and 6 times; with drafts these are {median(drafted):.1f} in the middle, {min(drafted):.1f} "
        f"at least, {max(drafted):.1f} at most. Which model, chips and speculation the labs have is not public.",
        highlight=False,
        soft_wrap=True,
    )


def _sram(console: Console) -> None:
    table = Table("SRAM", "chips", "published tok/s", "predicted", "off by")
    for model, chip, precision, tps in SRAM_SPEEDS:
        setup = Setup(model_shape(model), CHIPS[chip], 1, precision, prompt_tokens=128)
        setup = replace(setup, chips=fewest_chips(setup))
        said = 1 / seconds_per_token(setup, 1)
        table.add_row(
            f"{model} {precision} {chip}", str(setup.chips), f"{tps:,.0f}", f"{said:,.0f}", f"{said / tps - 1:+.0%}"
        )
    console.print(table)
