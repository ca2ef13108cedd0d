"""How many replicas a pool should have: out at once, in slowly.

Boarding adapts first, in milliseconds: it makes replicas light or heavy and lets calls ride. A new replica takes
minutes. So the number of replicas follows what is *needed* for the demand one start ahead:

    needed = light replicas for the express seats that the reserve wants + heavy ones for the standard load and the
             calls that wait
    target = forecast of needed + width * sqrt(dispersion * forecast)

The forecast is that of the reserve without its trends, over one start instead of one lead. The width is a number of
standard deviations that follows from two costs (ScalingRules): of replicas that may be needed, each is kept that is
more likely missing, weighed by its cost, than idle.

*Out:* if the target is above what was wanted, it is wanted at once. So is what the last few readings all needed: a step
of demand is reached in one order, and a burst that boarding absorbs orders nothing.
*In:* only what was not needed for a whole cool-down, once in each cool-down, by at most a quarter, and only while every
running replica takes calls. A start costs as much as an idle replica for that time, so one that may be needed again
sooner is cheaper to keep.

Flex calls fill seats that are idle anyway and are not counted, unless some have waited for half of their time: then the
idle seats do not suffice, and all flex calls count like standard ones.

The policy says how many. Whoever runs it chooses which: it opens a draining replica again before it starts a new one,
drains the emptiest heavy one first (demand.first_to_drain), and stops a replica only when it is empty.

This module depends only on readings of demand; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import NormalDist
from typing import Final

from headway.core.demand import PoolDemand
from headway.core.reserve import Forecaster

STEPS: Final = 36  # readings in one start
SHORTEST_STEP_S: Final = 1.0
RECENT: Final = 1 / 3  # of a start: the mean of its readings is forecast. What all of them need is ordered at once
COOL_DOWN: Final = 1.0  # starts
MOST_IN: Final = 0.25  # of the replicas, in one cool-down
IDLE: Final = 0.05  # of the replicas, at least one, must be too many: fewer come and go by chance
ROUNDING: Final = 0.05  # replicas; less than this needs none


@dataclass(slots=True)
class ScalingRules:
    """`start_s`: from the order of a replica until it takes calls. `shortage_cost`: what a missing replica costs, as a
    multiple of an idle one. `utilisation`: the share of its throughput that a heavy replica should give; the rest is
    for arrivals that vary within seconds."""

    min_replicas: int
    max_replicas: int
    start_s: float
    shortage_cost: float = 2.0
    utilisation: float = 0.95


class ScalingPolicy:
    def __init__(self, rules: ScalingRules) -> None:
        self.rules = rules
        self.every_s = max(SHORTEST_STEP_S, rules.start_s / STEPS)  # how often `wanted` should be called
        self.cool_down_s = COOL_DOWN * rules.start_s
        self.forecasters = [Forecaster(4.0, inf), Forecaster(1.0, inf)]  # a trend overshoots (docs/design/0013)
        self._width = max(0.0, NormalDist().inv_cdf(rules.shortage_cost / (1.0 + rules.shortage_cost)))
        self._wanted: int | None = None
        self._stepped_at = -inf
        self.needed = 0.0  # by the last reading
        self._recent_readings = max(1, round(RECENT * rules.start_s / self.every_s))
        self._held: deque[tuple[float, int]] = deque(maxlen=max(2, self._recent_readings))  # by two, how fast it grows
        self._recent: deque[float] = deque(maxlen=self._recent_readings)
        self._targets: deque[tuple[float, int]] = deque()  # of the last cool-down, with the time; falling
        self._may_fall_at = inf

    def wanted(self, demand: PoolDemand | None, running: int, now: float) -> int:
        """The number of replicas that there should be. `demand` is None if it could not be read: nothing changes.
        `running` counts the replicas that take calls or are starting, not those that drain or have failed."""
        rules = self.rules
        if self._wanted is None:
            self._wanted = running
            self._may_fall_at = now + self.cool_down_s
        if demand is not None and demand.seats and now - self._stepped_at >= self.every_s:
            target = self._target(demand, now)
            if target >= self._wanted:
                self._wanted = target
            elif now >= self._may_fall_at and demand.replicas >= running:
                self._fall(now)
        self._wanted = min(rules.max_replicas, max(rules.min_replicas, self._wanted))
        return self._wanted

    def _fall(self, now: float) -> None:
        assert self._wanted is not None
        most = self._targets[0][1]
        if self._wanted - most >= max(1.0, IDLE * self._wanted):
            self._wanted = max(most, self._wanted - max(1, int(MOST_IN * self._wanted)))
            self._may_fall_at = now + self.cool_down_s

    def _target(self, demand: PoolDemand, now: float) -> int:
        """The target now, which is also kept for a cool-down."""
        held = held_seats(demand)
        self._held.append((now, held))
        before_at, before = self._held[0]
        held_per_s = max(0, held - before) / (now - before_at) if now > before_at else 0.0
        self.needed = needed = needed_replicas(demand, self.rules, held_per_s)
        if self._stepped_at == -inf:
            for one in self.forecasters:
                one.dispersion = 1.0 / demand.seats  # of streams that are independent of each other
        # By the errors until now: one more replica needed must never lower the target.
        best = min(self.forecasters, key=lambda one: one.dispersion)
        dispersion = best.dispersion
        self._recent.append(needed)
        forecast = self._forecast(best, sum(self._recent) / len(self._recent), now)
        sustained = min(self._recent) if len(self._recent) == self._recent_readings else 0.0
        target = ceil(max(sustained, forecast + self._width * sqrt(dispersion * forecast)) - ROUNDING)
        while self._targets and self._targets[-1][1] <= target:
            self._targets.pop()
        self._targets.append((now, target))
        while self._targets[0][0] < now - self.cool_down_s:
            self._targets.popleft()
        return target

    def _forecast(self, best: Forecaster, needed: float, now: float) -> float:
        """For one start ahead. After a gap of a start or more the forecasters begin again."""
        lead_steps = self.rules.start_s / self.every_s
        passed = now - self._stepped_at
        if passed >= self.rules.start_s + self.every_s:
            for one in self.forecasters:
                one.settle(needed)
            passed = self.every_s
        for _ in range(int(passed / self.every_s)):
            for one in self.forecasters:
                one.step(needed, lead_steps)
        self._stepped_at = now
        return max(0.0, best.level + best.slope * lead_steps)


def held_seats(demand: PoolDemand) -> int:
    """Seats that are missing now."""
    return demand.standard_held + demand.flex_late


def needed_replicas(demand: PoolDemand, rules: ScalingRules, held_per_s: float) -> float:
    """`held_per_s`: by how much the missing seats grow.

    A replica is light or heavy, so light ones are whole. Of several, the standard share must stay heavy. A full fleet
    does not show how much more would come: that is what the growth of those who wait says. Those who wait already are
    to be served within a start."""
    wanted = ceil(demand.express_seats / demand.light_seats) if demand.light_seats else 0
    light = max(wanted, demand.light_replicas)
    load = demand.standard_load + (demand.flex_load if demand.flex_late else 0.0)
    calls_per_s = held_per_s + held_seats(demand) / rules.start_s
    both = light + load / rules.utilisation + calls_per_s * demand.answer_s / demand.seats
    if both > 1.0 and demand.standard_share < 1.0:
        return max(both, wanted / (1.0 - demand.standard_share))
    return both
