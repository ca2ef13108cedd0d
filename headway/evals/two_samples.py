"""Tests whether two sets of answers to the same prompts have one distribution, and where two greedy answers diverge.

Pure. The test is a permutation test: if both sets come from one distribution, it does not matter to which set an answer
belongs. So the answers are split at random many times, and the measured distance is ranked among theirs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

Answers = Sequence[Sequence[str]]  # for each prompt, the answers to it


def distance(one: Sequence[str], other: Sequence[str]) -> float:
    """The distance of two samples of texts, 0 if they are alike: of whole texts, plus of the words at each position.

    If hardly any two texts are the same, whole texts say nothing, but the words at each position still repeat."""
    whole = _g_statistic(one, other)
    places = zip_longest(*[text.split() for text in (*one, *other)])
    return whole + sum(_g_statistic(words[: len(one)], words[len(one) :]) for words in places)


def _g_statistic(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """The G statistic of two samples against their union."""
    counts, totals = (Counter(one), Counter(other)), (len(one), len(other))
    both, whole = counts[0] + counts[1], len(one) + len(other)
    return 2 * sum(
        count * math.log(count * whole / (total * both[answer]))
        for of_one, total in zip(counts, totals, strict=True)
        for answer, count in of_one.items()
    )


def same_distribution(one: Answers, other: Answers, *, splits: int = 2000, seed: int = 0) -> float:
    """The p-value: the share of random splits whose distance is at least that of these two. Small if they differ."""
    found = sum(distance(a, b) for a, b in zip(one, other, strict=True))
    dice = random.Random(seed)
    as_far = 0
    for _ in range(splits):
        of_split = 0.0
        for a, b in zip(one, other, strict=True):
            pool = [*a, *b]
            dice.shuffle(pool)
            of_split += distance(pool[: len(a)], pool[len(a) :])
        as_far += of_split >= found - 1e-9
    return (as_far + 1) / (splits + 1)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Pairs of greedy answers: how many are the same, and after how many characters the others diverge."""

    same: int
    of: int
    parted_after: list[int]

    @property
    def share(self) -> float:
        return 1 - self.same / max(1, self.of)


def divergence(one: Sequence[str], other: Sequence[str]) -> Divergence:
    parted = [_common(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return Divergence(len(one) - len(parted), len(one), sorted(parted))


def _common(a: str, b: str) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
