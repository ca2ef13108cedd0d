"""Measure the frontier of a live server: throughput against speed per stream, from one stream to past its seats.

Knows: how many streams to measure, in which order and how often, and how results become rows, config lines and a fit.
Does not know: how load is generated (load.py) or drawn (report.py).
Invariant: a fit is judged only by points that it was not fitted to.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log
from pathlib import Path
from typing import Any

import msgspec

from headway.bench.calibrate import CurveCalibration, batches_for, measure_prompts, nine_in_ten_speed
from headway.bench.client import LoadCall, LoadClient
from headway.bench.load import Load, closed_loop, quantile
from headway.core.curve import Curve, fit
from headway.errors import SetupError

CALLS_PER_RUN = 6  # minimum in each repeat of a point
PAST_SATURATION = 1.5
SHARES = {"p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    seats: int = 64
    prompt_tokens: int = 128
    output_tokens: int = 64
    repeats: int = 3
    quick: bool = False
    profile: str | None = None  # that the server was started with, for the lines for headway.toml

    @property
    def streams(self) -> list[int]:
        """Powers of two up to the seats, and one point past them. If quick, the three that a curve is fitted to."""
        if self.quick:
            return batches_for(self.seats)
        doubling = [2**power for power in range(self.seats.bit_length()) if 2**power < self.seats]
        return [*doubling, self.seats, ceil(PAST_SATURATION * self.seats)]

    def order(self) -> list[int]:
        """Return the streams of each run: up, down, up, so that drift over time does not look like load."""
        return [count for turn in range(self.repeats) for count in (self.streams[:: -1 if turn % 2 else 1])]


@dataclass(slots=True)
class Point:
    """All repeats at one number of streams. Figures use the valid repeats, or all if none is valid."""

    streams: int
    repeats: list[Load] = field(default_factory=list)

    @property
    def runs(self) -> list[Load]:
        return [run for run in self.repeats if not run.problems()] or self.repeats

    @property
    def valid(self) -> bool:
        return any(not run.problems() for run in self.repeats)

    @property
    def calls(self) -> list[LoadCall]:
        return [call for run in self.runs for call in run.complete]

    @property
    def output_tps(self) -> float:
        return statistics.median(run.output_tps for run in self.runs)

    @property
    def tpot_s(self) -> float:
        return statistics.median(call.tpot_s for call in self.calls)

    @property
    def speed_tps(self) -> float:
        """Tokens per second of the median stream."""
        return 1 / self.tpot_s

    def speeds_by_run(self) -> list[float]:
        return [1 / statistics.median(call.tpot_s for call in run.complete) for run in self.runs]

    def problems(self) -> list[str]:
        return [f"repeat {number}: {why}" for number, run in enumerate(self.repeats, 1) for why in run.problems()]


@dataclass(slots=True)
class FrontierFit:
    """A curve fitted to three points, and its error at the other points."""

    curve: Curve
    first_token_s: dict[int, float]  # mean, at the points that the curve is fitted to
    held_out: dict[int, float]  # streams -> predicted ÷ measured seconds per token, minus 1

    @property
    def through(self) -> list[int]:
        return list(self.first_token_s)

    @property
    def mape(self) -> float | None:
        return statistics.mean(map(abs, self.held_out.values())) if self.held_out else None

    def output_tps(self, streams: int, output_tokens: int) -> float:
        """Return the throughput of all streams, with the time to first token interpolated linearly."""
        below = max(known for known in self.through if known <= streams)
        above = min(known for known in self.through if known >= streams)
        share = (streams - below) / (above - below) if above > below else 0.0
        first_s = (1 - share) * self.first_token_s[below] + share * self.first_token_s[above]
        return streams * output_tokens / (first_s + (output_tokens - 1) * self.curve.seconds_per_token(streams))


@dataclass(slots=True)
class Sweep:
    model: str
    plan: Plan
    points: list[Point] = field(default_factory=list)
    prompt_tps: float = 0.0

    def within_seats(self) -> list[Point]:
        return [point for point in self.points if point.streams <= self.plan.seats]

    def fit(self) -> FrontierFit:
        """Fit a curve to the smallest point, the largest, and the one nearest to their geometric mean."""
        points = {point.streams: point.tpot_s for point in self.within_seats()}
        first_s = {p.streams: statistics.mean(call.ttft_s for call in p.calls) for p in self.within_seats()}
        ends = min(points), max(points)
        middle = min(points, key=lambda streams: abs(log(streams**2 / (ends[0] * ends[1]))))
        through = sorted({*ends, middle})
        curve = fit([(streams, points[streams]) for streams in through])
        held_out = {
            streams: curve.seconds_per_token(streams) / tpot_s - 1
            for streams, tpot_s in points.items()
            if streams not in through
        }
        return FrontierFit(curve, {streams: first_s[streams] for streams in through}, held_out)

    def config_lines(self) -> str:
        """Return the lines for headway.toml. A point is what nine streams in ten reach, as in calibrate.py."""
        slow = [
            (point.streams, nine_in_ten_speed([1 / call.tpot_s for call in point.calls]))
            for point in self.within_seats()
        ]
        return CurveCalibration(slow, self.prompt_tps).config_lines(self.plan.profile, self.plan.seats)

    def rows(self) -> list[dict[str, Any]]:
        return [_row(self, point) for point in self.points]


def write(found: Sweep, folder: Path) -> None:
    """Write bench.json, with one row per point, and curve.toml, with the lines for headway.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(found.rows()), indent=2) + b"\n")
    (folder / "curve.toml").write_text(found.config_lines(), encoding="utf-8")


async def sweep(
    url: str, model: str, plan: Plan, on_run: Callable[[int, Load | None], None], key: str | None = None
) -> Sweep:
    """Measure the frontier. Calls `on_run` with the streams before each run, and with its result after it."""
    points = {streams: Point(streams) for streams in plan.streams}
    found = Sweep(model, plan, list(points.values()))
    client = LoadClient(url, model, key, seed=int(time.time()))  # a cache may still hold the prompts of the last run
    try:
        found.prompt_tps = await measure_prompts(client)
        for streams in plan.order():
            on_run(streams, None)
            generations = ceil(CALLS_PER_RUN / streams)
            run = await closed_loop(client, streams, plan.prompt_tokens, plan.output_tokens, generations)
            if not run.complete:
                raise SetupError(f"every call with {streams} streams failed: {'; '.join(run.problems())}")
            points[streams].repeats.append(run)
            on_run(streams, run)
    finally:
        client.close()
    return found


def _row(found: Sweep, point: Point) -> dict[str, Any]:
    """Return InferenceX's fields (times in seconds, a whole server counts as one GPU) and then our own."""
    calls, plan = point.calls, found.plan
    lags_s = [lag_s for run in point.runs for lag_s in run.lags_s]
    both_tps = statistics.median(run.output_tps + run.prompt_tps for run in point.runs)
    unknown = "unknown"  # a server does not report its hardware
    return {
        "hw": unknown,
        "model": found.model,
        "framework": "vllm",
        "precision": unknown,
        "spec_decoding": unknown,
        "isl": plan.prompt_tokens,
        "osl": plan.output_tokens,
        "conc": point.streams,
        "tput_per_gpu": both_tps,
        "output_tput_per_gpu": point.output_tps,
        **_spread("ttft", [call.ttft_s for call in calls]),
        **_spread("tpot", [call.tpot_s for call in calls]),
        **_speeds([call.tpot_s for call in calls]),
        **_spread("e2el", [call.latency_s for call in calls]),
        "calls": len(calls),
        "refusals": sum(call.refusals for call in calls),
        "mean_prompt_tokens": statistics.mean(call.prompt_tokens for call in calls),
        "nine_in_ten_intvty": nine_in_ten_speed([1 / call.tpot_s for call in calls]),
        "output_tput_by_repeat": [run.output_tps for run in point.runs],
        "median_intvty_by_repeat": point.speeds_by_run(),
        "client_lag_p99": quantile(lags_s, 0.99),
        "valid": point.valid,
        "valid_repeats": sum(not run.problems() for run in point.repeats),
        "problems": point.problems(),
    }


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"mean_{name}": statistics.mean(values),
        f"median_{name}": statistics.median(values),
        **{f"{label}_{name}": quantile(values, share) for label, share in SHARES.items()},
        f"std_{name}": statistics.pstdev(values),
    }


def _speeds(tpots_s: list[float]) -> dict[str, float]:
    """As in InferenceX, the p90 of speeds is the speed at the p90 of times: that of a slow stream."""
    of_times = _spread("intvty", tpots_s)
    return {key: 1 / tpot_s for key, tpot_s in of_times.items() if not key.startswith("std")} | {
        "std_intvty": statistics.pstdev(1 / tpot_s for tpot_s in tpots_s)
    }
