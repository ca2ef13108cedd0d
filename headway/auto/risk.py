"""Statistics of a mistake budget: which scores keep it, and whether it is still kept in service.

An excess mistake is one that the student makes and the full model would not make. A budget of 2 % means that at most
2 % of all calls end in an excess mistake, with the stated confidence. The student's answer is used if its score reaches
a threshold. A lower threshold uses more answers and can only add excess mistakes, which makes this search valid:

    threshold()   Learn-then-Test: a fixed list of thresholds is tested from the strictest on, each with an exact
                  binomial test, until the first one fails. The last that passed keeps the budget with the stated
                  confidence, no matter how many were tested.
    Watch         a sequential test in service: each audited call is a bet against "the budget is kept". If it is kept,
                  the probability that the stake ever grows twentyfold is at most 1 in 20, so the result may be checked
                  after every call. Once the stake has grown that much, the student is not trusted until it is
                  calibrated again, on tasks that were not used before.

Pure: no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf, lgamma, log, log1p

CONFIDENCE = 0.95
# From 1 (certain) to 0 (everything), densest near 1, where most scores are. Fixed here, never chosen from data.
THRESHOLDS = (1.0, *(1 - 10 ** (step / 50 - 4) for step in range(200)), 0.0)
# Each bet assumes that the true rate is this multiple of the budget. Small excesses are found slowly, large ones fast.
SUSPICIONS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0)
BLOCK = 25  # audits between two additions to the stake


@dataclass(slots=True)
class Judged:
    """A call that both models answered and whose right answer is known."""

    score: float
    is_excess: bool  # the student is wrong and the full model right
    differs: bool = False  # the two answers differ, which is all that audits can see


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


@dataclass(slots=True)
class Watch:
    """The sequential test. Call `see` for every audited call, in the order in which they were served.

    The bets lose while the student is good. To notice a student that gets worse later, part of the stake is held back
    and added with each block of audits, a smaller part each time, so that all parts sum to one stake.

    `is_alert` asks for more audits: it is set by an excess mistake, until enough other calls outweigh it. Which calls
    are audited may depend on earlier audits, never on the call itself.
    """

    budget: float
    confidence: float = CONFIDENCE
    audited: int = 0
    excess: int = 0
    is_broken: bool = False
    is_alert: bool = False
    _rates: list[float] = field(default_factory=list)
    _won: list[float] = field(default_factory=list)  # current stake for each of SUSPICIONS
    _kept_back: float = 1.0
    _recent: float = 0.0  # log-likelihood of three times the budget over the recent audits, at least 0

    def __post_init__(self) -> None:
        self._rates = [min(0.99, times * self.budget) for times in SUSPICIONS]
        self._won = [0.0] * len(SUSPICIONS)

    def see(self, is_excess: bool) -> None:
        if self.is_broken:
            return
        if self.audited % BLOCK == 0:
            self._add_stake(self.audited // BLOCK)
        self.audited += 1
        self.excess += is_excess
        for place, rate in enumerate(self._rates):
            self._won[place] *= rate / self.budget if is_excess else (1 - rate) / (1 - self.budget)
        thrice = self._rates[SUSPICIONS.index(3.0)]
        ratio = thrice / self.budget if is_excess else (1 - thrice) / (1 - self.budget)
        self._recent = max(0.0, self._recent + log(ratio))
        self.is_alert = self._recent > 0
        self.is_broken = self.won() >= 1 / (1 - self.confidence)

    def _add_stake(self, block: int) -> None:
        """Adds 1/2, 1/6, 1/12, ... of the stake, which sum to 1."""
        part = 1 / ((block + 1) * (block + 2))
        self._kept_back -= part
        for place in range(len(self._won)):
            self._won[place] += part / len(self._won)

    def won(self) -> float:
        """The current value of the stake."""
        return self._kept_back + sum(self._won)
