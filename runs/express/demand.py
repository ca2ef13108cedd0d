"""The demand of runs/express-rule.sh: fast calls that swing and burst, beside more standard calls than fit."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core.types import Call, Tier
from headway.sim.loop import Job

SECONDS, WARM_UP_S = 360.0, 60.0
TOKENS_MEDIAN, TOKENS_SIGMA = 220, 0.8
STANDARD_PER_S = 420.0  # more than the fleet can serve: standard calls always wait
FAST_PER_S = 45.0
DATA = Path(__file__).parents[2] / "data"


@dataclass(frozen=True)
class Demand:
    """How fast calls arrive: two geometric waves over the run, or the shape of a trace stretched over it."""

    swing: float  # highest rate ÷ lowest
    burstiness: float  # coefficient of variation of the times between arrivals; 1 is Poisson
    shape: tuple[float, ...] = ()  # of a trace: rates of equal spans, relative to their mean

    @property
    def name(self) -> str:
        return "Azure's hour" if self.shape else f"swing {self.swing:g}, burstiness {self.burstiness:g}"

    def rate_per_s(self, at: float) -> float:
        if self.shape:
            return FAST_PER_S * self.shape[min(len(self.shape) - 1, int(at / SECONDS * len(self.shape)))]
        return FAST_PER_S * math.exp(0.5 * math.log(self.swing) * math.sin(2 * math.pi * at / (SECONDS / 2)))


def azure_hour() -> Demand:
    """The calls per minute of Azure's conversation trace, an hour compressed into the run, with Poisson arrivals."""
    calls = _column("azure_minutes.csv", "calls")
    mean = sum(calls) / len(calls)
    return Demand(max(calls) / min(calls), 1.0, tuple(count / mean for count in calls))


def engine_noise() -> tuple[float, ...]:
    """The factors of step times that runs/engine-noise.sh measured on real vLLM."""
    return tuple(_column("engine_noise.csv", "factor"))


def _column(name: str, column: str) -> list[float]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return [float(row[column]) for row in csv.DictReader(file)]


CELLS = tuple(Demand(swing, burstiness) for swing in (1.0, 2.0, 5.0) for burstiness in (1.0, 2.0))


def _tokens(chance: random.Random) -> int:
    return max(20, min(4000, round(chance.lognormvariate(math.log(TOKENS_MEDIAN), TOKENS_SIGMA))))


def fast_jobs(demand: Demand, seed: int, model: str, tier: Tier) -> Iterator[Job]:
    chance = random.Random(f"fast {seed}")
    shape, at, number = 1 / demand.burstiness**2, 0.0, 0
    while True:
        at += chance.gammavariate(shape, 1 / shape) / demand.rate_per_s(at)
        number += 1
        yield Job(at, Call(f"f{number}", model, tier), _tokens(chance))


def standard_jobs(seed: int, model: str) -> Iterator[Job]:
    chance = random.Random(f"standard {seed}")
    at, number = 0.0, 0
    while True:
        at += chance.expovariate(STANDARD_PER_S)
        number += 1
        yield Job(at, Call(f"s{number}", model, "standard"), _tokens(chance))
