"""Are two sets of answers to the same prompts from one distribution? And where do two greedy answers part?

Pure. The test is a permutation test: if both came from the same distribution, it does not matter which half an answer
is called to be of, so the halves are dealt anew many times and the distance found is ranked among theirs.
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
    """How far two samples of texts are apart, 0 where they are alike: as wholes, and word by word.

    Where hardly two texts are the same, wholes say nothing; the words at each place still repeat."""
    whole = _apart(one, other)
    places = zip_longest(*[text.split() for text in (*one, *other)])
    return whole + sum(_apart(words[: len(one)], words[len(one) :]) for words in places)


def _apart(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """How far two samples are from having been dealt from their sum: the G statistic."""
    counts, totals = (Counter(one), Counter(other)), (len(one), len(other))
    both, whole = counts[0] + counts[1], len(one) + len(other)
    return 2 * sum(
        count * math.log(count * whole / (total * both[answer]))
        for of_one, total in zip(counts, totals, strict=True)
        for answer, count in of_one.items()
    )


def same_distribution(one: Answers, other: Answers, *, deals: int = 2000, seed: int = 0) -> float:
    """The p-value: the share of dealings in which the halves are as far apart as these two. Small: they differ."""
    found = sum(distance(a, b) for a, b in zip(one, other, strict=True))
    dice = random.Random(seed)
    as_far = 0
    for _ in range(deals):
        dealt = 0.0
        for a, b in zip(one, other, strict=True):
            pool = [*a, *b]
            dice.shuffle(pool)
            dealt += distance(pool[: len(a)], pool[len(a) :])
        as_far += dealt >= found - 1e-9
    return (as_far + 1) / (deals + 1)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of pairs of greedy answers: how many are the same, and after how many characters the others part."""

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
