"""Whose calls come when, and how long they are, made up from a recipe.

Plain Poisson arrivals hide the bursts that break promises. The recipe follows what public traces show: a few clients
make most of the calls (Zipf), each client comes in bursts of its own (Gamma intervals whose variation differs between
clients), demand follows the hour and the day, lengths are lognormal, and part of the prompts begin like one before.

Knows nothing of seats or replicas. The same seed gives the same calls.
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
REDRAWN_EVERY_S = 600.0  # a client's rate follows the hour in steps of this length
# The factors of 24 hours, two humps and a quiet night, with a mean of 1: a service that people use in their day.
OFFICE_HOURS: tuple[float, ...] = (
    0.45, 0.4, 0.4, 0.4, 0.4, 0.45, 0.55, 0.75, 1.0, 1.25, 1.4, 1.4,
    1.2, 1.25, 1.5, 1.6, 1.5, 1.5, 1.65, 1.7, 1.25, 0.85, 0.65, 0.5,
)  # fmt: skip
FLAT_HOURS = (1.0,) * 24
WEEK = (1.12, 1.15, 1.15, 1.13, 1.08, 0.68, 0.69)  # Monday first


@dataclass(slots=True)
class Lengths:
    """Lognormal: the median and the spread of its logarithm, cut at `most`."""

    median: float
    sigma: float
    most: int
    least: int = 1

    @classmethod
    def around(cls, mean: float, sigma: float, most: int) -> Lengths:
        """With this mean, but for what is cut."""
        return cls(mean / exp(sigma**2 / 2), sigma, most)

    def draw(self, chance: random.Random) -> int:
        drawn = int(exp(log(self.median) + self.sigma * chance.gauss(0.0, 1.0)))
        return min(self.most, max(self.least, drawn))


@dataclass(slots=True)
class Recipe:
    """A workload to make up. The defaults are those of a public trace of conversations (Azure 2024)."""

    calls_per_s: float
    clients: int = 100
    zipf: float = 1.1
    burstiness: float = 1.2  # median over clients of the coefficient of variation of intervals
    burst_spread: float = 1.1  # of its logarithm: one client in ten is about four times as bursty
    hours: tuple[float, ...] = FLAT_HOURS
    week: tuple[float, ...] = (1.0,) * 7
    prompts: Lengths = field(default_factory=lambda: Lengths(1_100, 0.95, 8_000))
    answers: Lengths = field(default_factory=lambda: Lengths(49, 1.4, 1_500))
    shared_prompts: float = 0.35  # the part of a client's calls that begin like its last
    tiers: dict[Tier, float] = field(default_factory=lambda: {"standard": 1.0})  # their shares of the calls


class _SimClient:
    __slots__ = ("chance", "name", "rate", "scale", "session", "shape", "until")

    def __init__(self, name: str, rate: float, cv: float, seed: str) -> None:
        self.chance = random.Random(seed)
        self.name = name
        self.rate = rate
        self.shape = 1.0 / cv**2
        self.scale = 0.0
        self.until = 0.0  # the scale is good until then
        self.session = 0


def synthesize(recipe: Recipe, seed: int, model: str = "m", prefix: str = "c") -> Iterator[Job]:
    """Calls without end, in order of time."""
    chance = random.Random(f"{seed} {prefix} clients")
    weights = [1.0 / rank**recipe.zipf for rank in range(1, recipe.clients + 1)]
    total = sum(weights)
    clients = []
    for number, weight in enumerate(weights):
        cv = recipe.burstiness * exp(recipe.burst_spread * chance.gauss(0.0, 1.0))
        rate = recipe.calls_per_s * weight / total
        clients.append(_SimClient(f"{prefix}{number}", rate, min(20.0, max(0.3, cv)), f"{seed} {prefix} {number}"))
    # Each begins somewhere in its interval, else all would come at the start.
    heap = [(_interval(client, 0.0, recipe) * client.chance.random(), n, client) for n, client in enumerate(clients)]
    heapify(heap)
    tiers, shares = list(recipe.tiers), list(recipe.tiers.values())
    made = 0
    while True:
        at, number, client = heap[0]
        made += 1
        tier = tiers[0] if len(tiers) == 1 else client.chance.choices(tiers, shares)[0]
        if client.chance.random() >= recipe.shared_prompts:
            client.session += 1
        call = Call(
            f"{prefix}{made}",
            model,
            tier,
            client.name,
            falls_back=True,
            affinity=f"{client.name} {client.session}",
            prompt_tokens=recipe.prompts.draw(client.chance),
        )
        yield Job(at, call, recipe.answers.draw(client.chance))
        heapreplace(heap, (at + _interval(client, at, recipe), number, client))


def _interval(client: _SimClient, at: float, recipe: Recipe) -> float:
    if at >= client.until:
        factor = recipe.hours[int(at / HOUR_S) % 24] * recipe.week[int(at / DAY_S) % 7]
        client.scale = 1.0 / (client.shape * client.rate * max(1e-9, factor))
        client.until = at + REDRAWN_EVERY_S
    return client.chance.gammavariate(client.shape, client.scale)
