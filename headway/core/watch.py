"""The sequential test of a mistake budget in service: each audited call is a bet against "the budget is kept".

If it is kept, the probability that the stake ever grows twentyfold is at most 1 in 20, so the result may be looked at
after every call. Knows only whether each audited call differed, in the order in which the calls were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log

CONFIDENCE = 0.95
# Each bet assumes that the true rate is this multiple of the budget. Small excesses are found slowly, large ones fast.
SUSPICIONS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0)
THRICE = SUSPICIONS.index(3.0)
BLOCK = 25  # audits between two additions to the stake


@dataclass(slots=True)
class Watch:
    """Call `see` for every audited call, in the order of the sample.

    The bets lose while the student is good. To notice a student that gets worse later, part of the stake is held back
    and added with each block of audits, a smaller part each time, so that all parts sum to one stake.

    `is_alert` is set by a call that differs, until enough others outweigh it: the first counts twice, because one that
    is seen stands for others that were not sampled. Which calls are audited may depend on earlier audits, never on the
    call itself.
    """

    budget: float
    confidence: float = CONFIDENCE
    audited: int = 0
    excess: int = 0
    is_broken: bool = False
    is_alert: bool = False
    _if_excess: list[float] = field(default_factory=list)  # what a bet is multiplied by, for each of SUSPICIONS
    _if_not: list[float] = field(default_factory=list)
    _won: list[float] = field(default_factory=list)  # current stake for each of SUSPICIONS
    _kept_back: float = 1.0
    _recent: float = 0.0  # log-likelihood of three times the budget over the recent audits, at least 0

    def __post_init__(self) -> None:
        rates = [min(0.99, times * self.budget) for times in SUSPICIONS]
        self._if_excess = [rate / self.budget for rate in rates]
        self._if_not = [(1 - rate) / (1 - self.budget) for rate in rates]
        self._won = [0.0] * len(SUSPICIONS)

    def see(self, is_excess: bool) -> None:
        if self.is_broken:
            return
        if self.audited % BLOCK == 0:
            self._add_stake(self.audited // BLOCK)
        self.audited += 1
        self.excess += is_excess
        factors = self._if_excess if is_excess else self._if_not
        self._won = [stake * factor for stake, factor in zip(self._won, factors, strict=True)]
        change = log(factors[THRICE])
        if is_excess:
            self._recent = max(self._recent, change) + change
        else:
            self._recent = max(0.0, self._recent + change)
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
