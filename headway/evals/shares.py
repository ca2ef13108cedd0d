"""Shares with Wilson's interval, and the exact McNemar test for two targets on the same tasks.

Pure arithmetic: does not know what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt

Z_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Share:
    """`count` out of `of`, with Wilson's 95 % interval."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / max(1, self.of)

    @property
    def interval(self) -> tuple[float, float]:
        if self.of == 0:
            return 0.0, 1.0
        n, p, z2 = self.of, self.value, Z_95**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z_95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} ({low:.1%} .. {high:.1%})"


def mcnemar(only_one: int, only_other: int) -> float:
    """The two-sided p-value of "both are right equally often", from the numbers of tasks that only one gets right."""
    discordant = only_one + only_other
    tail = sum(comb(discordant, k) for k in range(min(only_one, only_other) + 1))
    return min(1.0, 2 * tail / (1 << discordant))
