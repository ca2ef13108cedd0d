"""The reserve: how many light seats there should be, and how many of them standard calls must leave free.

A full replica becomes light only as its streams end. So light seats are provided for the express demand that is
forecast for one *lead* ahead, the time that a full replica takes to empty, plus a width for what the forecast misses:

    wanted = forecast + width * sqrt(dispersion * forecast)

Demand is the number of express streams present, aboard or held. Several forecasters follow it, with and without a
trend; the one with the smallest errors one lead ahead is used. The dispersion is the mean squared error of its
forecasts, as a share of the forecast: about 1 for steady arrivals, more for bursts.

Standard calls may ride on light seats. They must leave some free, by a width of its own, which can be smaller: a riding
call leaves sooner than a full replica empties.

Both widths follow what express calls waited. Once in each lead, the width that was at fault rises by the share of calls
that waited too long, and both fall a little, so that few calls wait too long and no more seats are kept than needed.
Without express demand nothing is kept.

This module depends only on the number of express streams and their waits; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from typing import Final

from headway.core.learnt import MOST, LearntForecaster, LearntReserve, within

STEP_S: Final = 0.5
FIRST_LEAD_S, LONGEST_LEAD_S = 8.0, 120.0
LEAST_DISPERSION = 1.0  # of arrivals that are independent of each other
ERRORS_REMEMBERED = 8.0  # leads
MOST_MADE = int(LONGEST_LEAD_S / STEP_S)  # forecasts of one lead
MOST_SAID = 9.0  # times the dispersion: a larger error of a forecast counts as this
# Both widths are numbers of standard deviations.
FIRST_WIDTH, MOST_WIDTH = 2.0, 8.0
FIRST_FREE, MOST_FREE = 2.0, 8.0
# The shares of express calls that may be late: for want of light seats, and because seats were given to other calls.
LATE_SHARE, LATE_AFTER_RIDE = 0.02, 0.03
GAIN = 2.5  # how much a width rises in one lead if all calls are late,
MOST_CHANGE = 0.5  # at most;
ENOUGH_CALLS = 100  # with fewer in a lead it changes less: a small demand says little about its bursts
RIDE_S = 4.0  # a seat that was given to a call without a floor is missing for about this long
RETURNING = 0.5  # the share of a dip of demand below its forecast that is over before a riding call has left


@dataclass(slots=True)
class Forecaster:
    """Exponential smoothing of the level and the slope of demand (Holt). The smoothing times are in leads."""

    level_leads: float
    slope_leads: float
    level: float = 0.0
    slope: float = 0.0  # per step
    dispersion: float = LEAST_DISPERSION
    made: deque[float] = field(default_factory=deque)  # the forecasts of the last lead, oldest first

    def step(self, present: float, lead_steps: float) -> None:
        if len(self.made) >= lead_steps:
            forecast = self.made.popleft()
            while len(self.made) >= lead_steps:
                self.made.popleft()
            error = min((present - forecast) ** 2 / max(1.0, forecast), MOST_SAID * self.dispersion)
            self.dispersion += (error - self.dispersion) / (ERRORS_REMEMBERED * lead_steps)
        if not self.level:
            self.level = float(present)  # demand begins
        before = self.level
        expected = self.level + self.slope
        self.level = expected + (present - expected) / max(1.0, self.level_leads * lead_steps)
        self.slope += (self.level - before - self.slope) / max(1.0, self.slope_leads * lead_steps)
        self.made.append(max(0.0, self.level + self.slope * lead_steps))

    def learnt(self) -> LearntForecaster:
        return LearntForecaster(self.level, self.slope, self.dispersion, list(self.made))

    def recall(self, learnt: LearntForecaster) -> None:
        self.level = within(learnt.level, -MOST)
        self.slope = within(learnt.slope, -MOST)
        self.dispersion = within(learnt.dispersion, 0.0)
        self.made = deque(within(one, 0.0) for one in learnt.made[-MOST_MADE:])

    def settle(self, present: float) -> None:
        """Demand was the same for a long time."""
        self.level, self.slope = float(present), 0.0
        self.made.clear()


class Reserve:
    def __init__(self, max_wait_s: float) -> None:
        self.allow(max_wait_s)
        self.present = 0
        self.lead_s = FIRST_LEAD_S  # set by the pool
        self._width = FIRST_WIDTH
        self._free_width = FIRST_FREE
        self._last_ride_at = -inf
        self._stepped_at: float | None = None
        self._steered_at = 0.0
        self._calls = self._late = self._late_after_ride = 0
        self._forecast = 0.0
        self._deviation = 0.0
        self._forecasters = [Forecaster(4.0, inf), Forecaster(1.0, inf), Forecaster(1.0, 2.0), Forecaster(0.5, 1.0)]

    def allow(self, max_wait_s: float) -> None:
        """Express calls may wait so long. If it is infinite, no seats are kept ready."""
        self._max_wait_s = max_wait_s
        self._keeps_none = max_wait_s == inf

    def change(self, by: int, now: float) -> None:
        self._advance(now)
        self.present += by

    def wanted_seats(self, now: float) -> int:
        """The total number of light seats that there should be, taken or ready."""
        if not self._keeps_none:
            self._advance(now)
        return self.last_wanted_seats

    def wanted_free(self, now: float) -> int:
        """The number of light seats that calls without a floor must leave free."""
        self._advance(now)
        return self.last_wanted_free

    # The same as of the last event. Reading these changes nothing, so that a recorded run replays.

    @property
    def last_wanted_seats(self) -> int:
        if self._keeps_none:
            return self.present
        return max(self.present, ceil(self._forecast + self._width * self._deviation - 0.5))

    @property
    def last_wanted_free(self) -> int:
        if self._keeps_none or self._forecast < 0.5:
            return 0
        missing = RETURNING * max(0.0, self._forecast - self.present)
        return ceil(missing + self._free_width * self._deviation - 0.01)

    def ridden(self, now: float) -> None:
        """A light seat was given to a call without a floor."""
        self._last_ride_at = now

    def waited(self, waited_s: float, now: float) -> None:
        """An express call boarded, or gave up. If it was late and light seats were given away shortly before, that was
        at fault."""
        self._calls += 1
        if waited_s > self._max_wait_s:
            is_after_ride = now - self._last_ride_at < waited_s + RIDE_S
            self._late += not is_after_ride
            self._late_after_ride += is_after_ride

    def learnt(self, now: float) -> LearntReserve:
        return LearntReserve(
            self.lead_s,
            self._width,
            self._free_width,
            self._calls,
            self._late,
            self._late_after_ride,
            self._forecast,
            self._deviation,
            None if self._last_ride_at == -inf else now - self._last_ride_at,
            None if self._stepped_at is None else now - self._stepped_at,
            now - self._steered_at,
            [one.learnt() for one in self._forecasters],
        )

    def recall(self, learnt: LearntReserve, age_s: float, now: float) -> None:
        """Go on from what another core had seen of demand. The streams that are present are known already."""
        self.lead_s = within(learnt.lead_s, 0.0)
        self._width = within(learnt.width, 0.0, MOST_WIDTH)
        self._free_width = within(learnt.free_width, 0.0, MOST_FREE)
        self._calls = int(within(learnt.calls, 0))
        self._late = int(within(learnt.late, 0, self._calls))
        self._late_after_ride = int(within(learnt.late_after_ride, 0, self._calls))
        self._forecast = within(learnt.forecast, 0.0)
        self._deviation = within(learnt.deviation, 0.0)
        self._last_ride_at = -inf if learnt.since_ride_s is None else now - within(learnt.since_ride_s + age_s, 0.0)
        self._stepped_at = None if learnt.since_step_s is None else now - within(learnt.since_step_s + age_s, 0.0)
        self._steered_at = now - within(learnt.since_steered_s + age_s, 0.0)
        for mine, other in zip(self._forecasters, learnt.forecasters, strict=False):
            mine.recall(other)

    def _steer(self) -> None:
        if self._calls:
            gain = GAIN * min(1.0, self._calls / ENOUGH_CALLS)
            change = gain * (self._late / self._calls - LATE_SHARE)
            self._width = min(MOST_WIDTH, max(0.0, self._width + min(MOST_CHANGE, change)))
            change = gain * (self._late_after_ride / self._calls - LATE_AFTER_RIDE)
            self._free_width = min(MOST_FREE, max(0.0, self._free_width + min(MOST_CHANGE, change)))
        self._calls = self._late = self._late_after_ride = 0

    def _advance(self, now: float) -> None:
        if self._stepped_at is None:
            self._stepped_at = now
        passed = now - self._stepped_at
        if passed < STEP_S:
            return
        if passed > LONGEST_LEAD_S:
            for one in self._forecasters:
                one.settle(self.present)
            self._stepped_at = now - STEP_S
        lead_steps = max(1.0, min(self.lead_s, LONGEST_LEAD_S) / STEP_S)
        while now - self._stepped_at >= STEP_S:
            self._stepped_at += STEP_S
            for one in self._forecasters:
                one.step(self.present, lead_steps)
        if now - self._steered_at >= self.lead_s:
            self._steered_at = now
            self._steer()
        best = min(self._forecasters, key=lambda one: one.dispersion)
        self._forecast = max(0.0, best.level + best.slope * lead_steps)
        self._deviation = sqrt(max(LEAST_DISPERSION, best.dispersion) * self._forecast)
