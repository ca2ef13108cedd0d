"""Noise: how much the steps of a real engine vary in length though its batch is the same.

The factors were measured (data/engine_noise.csv, runs/engine-noise.sh): the time per token in each quarter of a second,
divided by the median. Each replica of a simulation reads them from a place of its own, over and over, so that its speed
varies as much, and stays low as long, as that of a real engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.core.progress import LOOK_S


class Noise:
    def __init__(self, factors: Sequence[float], seed: int) -> None:
        self._factors = factors
        self._seed = seed
        self._begins: dict[str, int] = {}  # where each replica began to read

    def factor(self, replica: str, now: float) -> float:
        """How many times as long as by its curve the replica's steps are now."""
        begin = self._begins.get(replica)
        if begin is None:
            begin = self._begins[replica] = random.Random(f"{self._seed} {replica}").randrange(len(self._factors))
        return self._factors[(begin + round(now / LOOK_S)) % len(self._factors)]
