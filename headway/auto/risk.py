"""Statistics of a mistake budget: which scores keep it. core/watch.py tests whether it is still kept in service.

An excess mistake is one that the student makes and the full model would not make. A budget of 2 % means that at most
2 % of all calls end in an excess mistake, with the stated confidence. The student's answer is used if its score reaches
a threshold. A lower threshold uses more answers and can only add excess mistakes, which makes this search valid:

    threshold()   Learn-then-Test: a fixed list of thresholds is tested from the strictest on, each with an exact
                  binomial test, until the first one fails. The last that passed keeps the budget with the stated
                  confidence, no matter how many were tested.

Pure: no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, lgamma, log, log1p

from headway.core.trust import NEVER, LimitPolicy
from headway.core.watch import CONFIDENCE

# From 1 (certain) to 0 (everything), densest near 1, where most scores are. Fixed here, never chosen from data.
THRESHOLDS = (1.0, *(1 - 10 ** (step / 50 - 4) for step in range(200)), 0.0)


@dataclass(slots=True)
class Judged:
    """A call that both models answered and whose right answer is known."""

    score: float
    is_excess: bool  # the student is wrong and the full model right
    differs: bool = False  # the two answers differ, which is all that audits can see
    temperature: float = 0.0  # at which both models were asked


def calls_needed(budget: float, confidence: float = CONFIDENCE) -> int:
    """The fewest calls that can show that a budget is kept: all of them without a mistake."""
    return ceil(log(1 - confidence) / log1p(-budget))


def threshold(judged: Sequence[Judged], budget: float, confidence: float = CONFIDENCE) -> float:
    """The lowest score at which the student's answers may be used; infinite if none may be.

    `judged` must be a representative sample of future calls, and the scores must not have been fitted on it.
    """
    if not 0 < budget < 1:
        raise ValueError(f"the budget must be between 0 and 1, got {budget}")
    excess = sorted((one.score for one in judged if one.is_excess), reverse=True)
    found, mistakes = inf, 0
    for level in THRESHOLDS:
        while mistakes < len(excess) and excess[mistakes] >= level:
            mistakes += 1
        if binomial_cdf(mistakes, len(judged), budget) > 1 - confidence:
            break
        found = level
    return found


def watched_rate(judged: Sequence[Judged], level: float, budget: float, confidence: float = CONFIDENCE) -> float:
    """The share of calls that may differ while the budget is kept: the budget plus the rate of harmless differences.

    In service the right answer is unknown; an audit shows only whether the full model's answer differs. Two
    different answers can both be wrong or both right, or only the student's can be right. Calibration counts how often.
    """
    harmless = sum(one.differs and not one.is_excess and one.score >= level for one in judged)
    return min(0.99, budget + at_most(harmless, len(judged), confidence))


def by_temperature(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Each task is asked once at each temperature, so only rows of one temperature are independent."""
    groups: dict[float, list[Judged]] = {}
    for one in judged:
        groups.setdefault(one.temperature, []).append(one)
    return list(groups.values()) or [[]]


def limit_of(judged: Sequence[Judged], budget: float, audit_share: float) -> LimitPolicy:
    """What a budget allows at every temperature, whatever the mix of calls: the strictest level of all."""
    groups = by_temperature(judged)
    level = max(threshold(group, budget) for group in groups)
    may_differ = max(watched_rate(group, level, budget) for group in groups)
    return LimitPolicy(budget, min(level, NEVER), may_differ, audit_share)


def at_most(mistakes: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The upper bound of the mistake rate, by Clopper and Pearson, after `mistakes` in `of` calls."""
    if mistakes >= of:
        return 1.0
    low, high = mistakes / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(mistakes, of, middle) > 1 - confidence else (low, middle)
    return high


def binomial_cdf(mistakes: int, of: int, rate: float) -> float:
    """The probability of at most this many mistakes in `of` calls at the given rate."""
    if mistakes >= of or rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0
    whole = lgamma(of + 1)
    terms = (
        exp(whole - lgamma(k + 1) - lgamma(of - k + 1) + k * log(rate) + (of - k) * log1p(-rate))
        for k in range(mistakes + 1)
    )
    return min(1.0, sum(terms))
