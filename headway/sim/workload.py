"""Generates a synthetic workload from a recipe: arrival times, clients and lengths of calls.

Poisson arrivals have no bursts, and bursts are what breaks promises. The recipe follows public traces: a few clients
make most of the calls (Zipf), each client has its own bursts (Gamma intervals whose variation differs between clients),
demand depends on the hour and the day, lengths are lognormal, and some prompts share a prefix with the one before.

This module knows nothing about seats or replicas. The same seed gives the same calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import exp, log

from headway.core.types import Call, Tier
from headway.sim.loop import Job

HOUR_S, DAY_S = 3600.0, 86_400.0
REDRAWN_EVERY_S = 600.0  # the rate of a client is updated after this time
# Factors for 24 hours with a mean of 1: two peaks by day and a quiet night, as for a service that people use at work.
OFFICE_HOURS: tuple[float, ...] = (
    0.45, 0.4, 0.4, 0.4, 0.4, 0.45, 0.55, 0.75, 1.0, 1.25, 1.4, 1.4,
    1.2, 1.25, 1.5, 1.6, 1.5, 1.5, 1.65, 1.7, 1.25, 0.85, 0.65, 0.5,
)  # fmt: skip
FLAT_HOURS = (1.0,) * 24
WEEK = (1.12, 1.15, 1.15, 1.13, 1.08, 0.68, 0.69)  # Monday first


@dataclass(slots=True)
class Lengths:
    """Lognormal lengths: the median and the standard deviation of the logarithm, limited to `least` .. `most`."""

    median: float
    sigma: float
    most: int
    least: int = 1

    @classmethod
    def around(cls, mean: float, sigma: float, most: int) -> Lengths:
        """Lengths with this mean, before they are limited."""
        return cls(mean / exp(sigma**2 / 2), sigma, most)

    def draw(self, chance: random.Random) -> int:
        drawn = int(exp(log(self.median) + self.sigma * chance.gauss(0.0, 1.0)))
        return min(self.most, max(self.least, drawn))


@dataclass(slots=True)
class Recipe:
    """The parameters of a workload. The defaults follow a public trace of conversations (Azure 2024)."""

    calls_per_s: float
    clients: int = 100
    zipf: float = 1.1
    burstiness: float = 1.2  # coefficient of variation of the intervals, median over clients
    burst_spread: float = 1.1  # standard deviation of its logarithm: one client in ten is about four times as bursty
    hours: tuple[float, ...] = FLAT_HOURS
    week: tuple[float, ...] = (1.0,) * 7
    prompts: Lengths = field(default_factory=lambda: Lengths(1_100, 0.95, 8_000))
    answers: Lengths = field(default_factory=lambda: Lengths(49, 1.4, 1_500))
    tiers: dict[Tier, float] = field(default_factory=lambda: {"standard": 1.0})  # share of the calls of each tier


class _SimClient:
    __slots__ = ("chance", "name", "rate", "scale", "shape", "until")

    def __init__(self, name: str, rate: float, cv: float, seed: str) -> None:
        self.chance = random.Random(seed)
        self.name = name
        self.rate = rate
        self.shape = 1.0 / cv**2
        self.scale = 0.0
        self.until = 0.0  # when the scale must be updated


def synthesize(recipe: Recipe, seed: int, model: str = "m", prefix: str = "c") -> Iterator[Job]:
    """Yield calls in order of time, without end."""
    chance = random.Random(f"{seed} {prefix} clients")
    weights = [1.0 / rank**recipe.zipf for rank in range(1, recipe.clients + 1)]
    total = sum(weights)
    clients = []
    for number, weight in enumerate(weights):
        cv = recipe.burstiness * exp(recipe.burst_spread * chance.gauss(0.0, 1.0))
        rate = recipe.calls_per_s * weight / total
        clients.append(_SimClient(f"{prefix}{number}", rate, min(20.0, max(0.3, cv)), f"{seed} {prefix} {number}"))
    # Each client starts at a random time in its first interval; otherwise all would call at the start.
    heap = [(_interval(client, 0.0, recipe) * client.chance.random(), n, client) for n, client in enumerate(clients)]
    heapify(heap)
    tiers, shares = list(recipe.tiers), list(recipe.tiers.values())
    made = 0
    while True:
        at, number, client = heap[0]
        made += 1
        tier = tiers[0] if len(tiers) == 1 else client.chance.choices(tiers, shares)[0]
        call = Call(
            f"{prefix}{made}",
            model,
            tier,
            client.name,
            falls_back=True,
            prompt_tokens=recipe.prompts.draw(client.chance),
        )
        yield Job(at, call, recipe.answers.draw(client.chance))
        heapreplace(heap, (at + _interval(client, at, recipe), number, client))


def continuable(jobs: Iterator[Job]) -> Iterator[Job]:
    """The same calls; their streams can go on at another replica."""
    for job in jobs:
        job.call.is_continuable = True
        yield job


def _interval(client: _SimClient, at: float, recipe: Recipe) -> float:
    if at >= client.until:
        factor = recipe.hours[int(at / HOUR_S) % 24] * recipe.week[int(at / DAY_S) % 7]
        client.scale = 1.0 / (client.shape * client.rate * max(1e-9, factor))
        client.until = at + REDRAWN_EVERY_S
    return client.chance.gammavariate(client.shape, client.scale)
