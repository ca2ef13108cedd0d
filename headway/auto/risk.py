"""A mistake budget: how far a student may be trusted within it, and whether that still holds.

An excess mistake is one that the student makes and the full model would not have made. A budget of 2 % means: of all
calls at most 2 % end in one, with the confidence stated. The student's answer is taken where its score is at least a
threshold; a lower threshold takes more answers and can only add excess mistakes. That is what makes the search honest:

    threshold()   Learn-then-Test: thresholds fixed beforehand are tried from the strictest on, each with an exact
                  binomial test, and the search ends at the first that fails. The last that passed keeps the budget
                  with the confidence stated, however many were tried.
    Watch         while it serves: a bet against "the budget is kept" on every audited call. If it is kept, the bet
                  wins twenty times its stake at any time whatever with a chance of 1 in 20 at most, so it may be looked
                  at after every call. Once it has won, the student is not trusted until it is calibrated anew, on calls
                  that nobody looked at before.

Pure: no clock, no chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf, lgamma, log, log1p

CONFIDENCE = 0.95
# From "only what is certain" to "everything", finest where scores crowd. Fixed here, never chosen by looking at data.
THRESHOLDS = (1.0, *(1 - 10 ** (step / 50 - 4) for step in range(200)), 0.0)
# What the bet is placed on: the true rate is so many times the budget. Small breaks are found slowly, large ones fast.
SUSPICIONS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0)
BLOCK = 25  # audits after which a part of the stake is set anew


@dataclass(slots=True)
class Judged:
    """A call that both models answered and whose right answer is known."""

    score: float
    is_excess: bool  # the student is wrong, the full model right
    differs: bool = False  # the two said different things: all that can be seen where no right answer is known


def calls_needed(budget: float, confidence: float = CONFIDENCE) -> int:
    """The fewest calls that can show a budget kept: as many without a single mistake."""
    return ceil(log(1 - confidence) / log1p(-budget))


def threshold(judged: Sequence[Judged], budget: float, confidence: float = CONFIDENCE) -> float:
    """The lowest score at which the student's answers may be taken; infinite where none may be.

    `judged` must be a fair sample of calls to come, and the scores must not have been fitted on it.
    """
    if not 0 < budget < 1:
        raise ValueError(f"a budget of {budget} is not a share")
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
    """What share of calls may differ while the budget is kept: the budget, and the differences that did no harm.

    While it serves nobody knows which answer is right, only whether the full model says the same. Two that differ can
    both be wrong, or both right, or the student alone be right; how often was counted on tasks of known answer.
    """
    harmless = sum(one.differs and not one.is_excess and one.score >= level for one in judged)
    return min(0.99, budget + at_most(harmless, len(judged), confidence))


def at_most(mistakes: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The highest rate that so few mistakes allow (Clopper and Pearson's bound, from above)."""
    if mistakes >= of:
        return 1.0
    low, high = mistakes / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(mistakes, of, middle) > 1 - confidence else (low, middle)
    return high


def binomial_cdf(mistakes: int, of: int, rate: float) -> float:
    """The chance of so few mistakes or fewer, if `rate` were true."""
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
    """The running bet. `see` is told of every audited call, in the order in which they were served.

    A student that was good for long and then gets worse must not have to use up what was lost on its good days: a part
    of the stake is kept back and set anew with every block of audits, less of it each time, so that all parts together
    are one stake.

    `is_alert` asks for more audits, from a call that should not be until enough others speak against it. Which calls
    are looked at may depend on what was seen before, never on the call itself.
    """

    budget: float
    confidence: float = CONFIDENCE
    audited: int = 0
    excess: int = 0
    is_broken: bool = False
    is_alert: bool = False
    _rates: list[float] = field(default_factory=list)
    _won: list[float] = field(default_factory=list)  # by each suspicion
    _kept_back: float = 1.0
    _recent: float = 0.0  # how far the last calls speak for thrice the budget, as a logarithm

    def __post_init__(self) -> None:
        self._rates = [min(0.99, times * self.budget) for times in SUSPICIONS]
        self._won = [0.0] * len(SUSPICIONS)

    def see(self, is_excess: bool) -> None:
        if self.is_broken:
            return
        if self.audited % BLOCK == 0:
            self._set_anew(self.audited // BLOCK)
        self.audited += 1
        self.excess += is_excess
        for place, rate in enumerate(self._rates):
            self._won[place] *= rate / self.budget if is_excess else (1 - rate) / (1 - self.budget)
        thrice = self._rates[SUSPICIONS.index(3.0)]
        ratio = thrice / self.budget if is_excess else (1 - thrice) / (1 - self.budget)
        self._recent = max(0.0, self._recent + log(ratio))
        self.is_alert = self._recent > 0
        self.is_broken = self.won() >= 1 / (1 - self.confidence)

    def _set_anew(self, block: int) -> None:
        """Of the stake 1/2, 1/6, 1/12, ..: together all of it."""
        part = 1 / ((block + 1) * (block + 2))
        self._kept_back -= part
        for place in range(len(self._won)):
            self._won[place] += part / len(self._won)

    def won(self) -> float:
        """What the stake has become."""
        return self._kept_back + sum(self._won)
