"""The profiles that are compared: curves from published points of one model on one chip, and published gains.

The points are those of Qwen3-32B on H100 with vLLM, prompts and answers of 1,024 tokens, for each tensor parallel
degree that was measured, up to 128 streams. The time per token in them includes the prompts of other streams. The gains
are those of EAGLE-3 on the same chip, measured with a smaller model up to 64 streams; beyond there are none.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from headway.core.curve import Curve, Point, fit
from headway.core.types import ModelPolicy
from headway.plan.chips import CHIPS
from headway.plan.gains import gains_for
from headway.plan.memory import seats
from headway.plan.models import model_shape
from headway.plan.step import Setup

POINTS = Path(__file__).parents[2] / "data" / "silicon_sample.csv"
MEASURED = {
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "backend": "vllm",
    "backend_version": "0.12.0",
    "isl": "1024",
    "osl": "1024",
}
SETUP = Setup(model_shape("qwen3-32b"), CHIPS["h100"], 1, "bf16")
GAINS = gains_for("eagle3", "h100")
MOST_SEATS = 256  # twice as many as were measured
STANDARD_TPS = 40.0  # every standard stream gets this; the planner's default
FLOOR_TPS = 100.0  # 2.5 times as much
MARGIN = ModelPolicy({}).margin
SEAT_SHARES = (1.0, 0.75, 0.5)
LAST_COUNTS = 16  # times as much as another point of a drafter's curve: standard calls run with all seats taken


@dataclass(frozen=True)
class Profile:
    chips: int
    drafter: bool
    seats: int
    curve: tuple[float, float, float]  # a, c, d
    light_seats: int  # with FLOOR_TPS and the margin

    @property
    def name(self) -> str:
        return f"TP{self.chips}{' drafter' if self.drafter else ''} ({self.seats})"

    @property
    def fitted(self) -> Curve:
        return Curve(*self.curve)

    def tps(self, streams: int) -> float:
        """Of a chip whose replica has so many."""
        return streams * self.fitted.speed_tps(streams) / self.chips

    @property
    def standard_tps(self) -> float:
        return self.tps(self.seats)


@cache
def points() -> dict[int, list[Point]]:
    """By tensor parallel degree. A batch that was measured more than once counts with its mean."""
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with POINTS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if all(row[name] == value for name, value in MEASURED.items()):
                found[int(row["tp_size"])][int(row["batch_size"])].append(float(row["silicon_tpot_ms"]) / 1000)
    return {
        chips: sorted((batch, mean(seconds)) for batch, seconds in by_batch.items())
        for chips, by_batch in sorted(found.items())
    }


def profile_of(chips: int, *, drafter: bool, seats: int, floor_tps: float = FLOOR_TPS) -> Profile:
    """A drafter's curve is fitted up to the seats: so a replica with few is not judged by what many would lose."""
    curve = _plain(chips)
    if drafter:
        batches = sorted({1, seats, *(batch for batch, _ in GAINS.by_batch if batch < seats)})
        drafted = [(batch, curve.seconds_per_token(batch) / GAINS.at(batch)) for batch in batches]
        curve = fit(drafted + drafted[-1:] * (LAST_COUNTS - 1))
    light = curve.largest_batch(floor_tps, seats, MARGIN)
    return Profile(chips, drafter, seats, (curve.a, curve.c, curve.d), light)


def profiles(standard_tps: float = STANDARD_TPS, floor_tps: float = FLOOR_TPS) -> list[Profile]:
    """Each degree with and without a drafter, and with several numbers of seats, all of which give standard streams
    their speed and fit into memory. A drafter also with the most streams that were measured."""
    made = set()
    for chips in points():
        fitting = min(MOST_SEATS, seats(Setup(SETUP.shape, SETUP.chip, chips, SETUP.precision)))
        for drafter in (False, True):
            numbers = range(1, fitting + 1)
            kept = [n for n in numbers if _speed_tps(chips, n, drafter=drafter) >= standard_tps]
            most = max(kept, default=0)
            chosen = {round(share * most) for share in SEAT_SHARES} | ({GAINS.most_streams} if drafter else set())
            made |= {
                profile_of(chips, drafter=drafter, seats=number, floor_tps=floor_tps)
                for number in chosen
                if 0 < number <= most
            }
    return sorted(made, key=lambda one: (one.chips, one.drafter, one.seats))


def _speed_tps(chips: int, streams: int, *, drafter: bool) -> float:
    gain = GAINS.at(streams) if drafter else 1.0
    return gain * _plain(chips).speed_tps(streams)


@cache
def _plain(chips: int) -> Curve:
    return fit(points()[chips])
