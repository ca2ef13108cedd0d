"""The demand of runs/scaling.sh: the hour of Azure's conversation trace, stretched over a day."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from heapq import merge
from pathlib import Path

from headway.core.types import Call, Tier
from headway.sim.loop import Job
from headway.sim.workload import DAY_S, Lengths

DATA = Path(__file__).parents[2] / "data"
PROMPTS = Lengths(1_100, 0.95, 8_000)
ANSWERS = Lengths(880, 0.8, 8_000, least=20)


CALLS: dict[Tier, float] = {"fast": 1.2, "standard": 9.6, "flex": 0.5}  # each second, on average over the day


def day_shape() -> tuple[float, ...]:
    """The calls of each minute of the trace, relative to their mean."""
    with (DATA / "azure_minutes.csv").open(newline="", encoding="utf-8") as file:
        calls = [float(row["calls"]) for row in csv.DictReader(file)]
    mean = sum(calls) / len(calls)
    return tuple(one / mean for one in calls)


def factor_at(shape: tuple[float, ...], at: float) -> float:
    """Between the middles of two parts of the day the demand changes evenly."""
    place = max(0.0, at / DAY_S * len(shape) - 0.5)
    first = min(len(shape) - 1, int(place))
    second = min(len(shape) - 1, first + 1)
    return shape[first] + (shape[second] - shape[first]) * (place - first)


def day_jobs(seed: int, model: str) -> Iterator[Job]:
    return merge(*(_jobs(tier, seed, model) for tier in CALLS), key=lambda job: job.at)


def _jobs(tier: Tier, seed: int, model: str) -> Iterator[Job]:
    """Poisson arrivals."""
    chance, day = random.Random(f"{tier} {seed}"), day_shape()
    at, number = 0.0, 0
    while True:
        at += chance.expovariate(CALLS[tier] * factor_at(day, at))
        number += 1
        call = Call(f"{tier} {number}", model, tier, prompt_tokens=PROMPTS.draw(chance))
        yield Job(at, call, ANSWERS.draw(chance))
