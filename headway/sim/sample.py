"""Quantiles of any number of values in bounded memory."""

from __future__ import annotations

import random

SAMPLE = 20_000


class Sample:
    """Keeps at most SAMPLE values by reservoir sampling: each value is equally likely to be kept."""

    def __init__(self, seed: str) -> None:
        self.values: list[float] = []
        self._seen = 0
        self._chance = random.Random(seed)

    def add(self, value: float) -> None:
        self._seen += 1
        if len(self.values) < SAMPLE:
            self.values.append(value)
        elif (place := int(self._chance.random() * self._seen)) < SAMPLE:
            self.values[place] = value

    def quantile(self, share: float) -> float:
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
