"""Compares the curve with the measured speed of streams that have a floor.

    slowness = measured seconds per token ÷ seconds per token by the curve

A floor must be kept for a share of the streams that the owner sets, the *kept target*, not only on average. So caps are
made from a quantile of slowness:

    quantile = mean slowness of the replica * (1 + width * spread)

Each replica has a mean of its own, which follows its speed. Slow streams are rare, so the pool learns from the streams
of all its replicas how slow they are: the spread is their standard deviation above the mean of their replica. The width
starts as that of a normal distribution and follows what happens: a stream slower than the quantile raises it, any other
lowers it a little, such that in the long run half as many are slower as the kept target allows, whatever the
distribution is (adaptive conformal inference). If all that it allows were aimed at, the target would be missed in
every second minute. The effect of a single stream is bounded, however slow it was. The effect of speculative decoding
is part of the measured speed; no acceptance rate is assumed.

This module knows nothing about seats and time.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Final

from headway.core.learnt import LearntCaps, LearntReplica, within

MEAN_PULL: Final = 0.2  # of one stream
FIRST_STREAMS, REMEMBERED_STREAMS = 10, 500  # as if so many streams had been as fast as predicted; and later
MOST_ONE_STREAM_SAYS: Final = 1.5  # times the current mean; for the mean, a slower stream counts as this
ROUNDING: Final = 1e-3
LEAST, MOST = 0.5, 4.0  # outside this range the curve does not describe the replica and must be measured again
AIMED_SHARE = 0.5  # of the misses that the kept target allows
WIDTH_GAIN, LEAST_WIDTH, MOST_WIDTH = 0.2, 0.25, 20.0
# A stream further above the mean than both, as a share of it and in standard deviations, counts as this far.
FAR, FAR_DEVIATIONS = 0.1, 3.0
MOST_SQUARE = 16.0  # taken from another core


class Spread:
    """How far the slow streams of a pool are from the mean of their replicas."""

    def __init__(self, kept_target: float) -> None:
        self.aim(kept_target)
        self._square = 0.0
        self._streams = FIRST_STREAMS

    def aim(self, kept_target: float) -> None:
        self._aimed_misses = AIMED_SHARE * (1.0 - kept_target)
        self._width = NormalDist().inv_cdf(kept_target)

    @property
    def share(self) -> float:
        """The distance of the quantile from the mean, as a share of the mean."""
        return self._width * sqrt(self._square)

    def observe(self, above_mean: float, *, is_missed: bool) -> None:
        """Record a stream: its distance from the mean of its replica, as a share of it. One that missed its floor was
        too slow, whatever the quantile says."""
        if self._streams < REMEMBERED_STREAMS:
            self._streams += 1  # while the spread is learnt, the width says nothing
        else:
            is_beyond = is_missed or above_mean > self.share + ROUNDING
            width = self._width + WIDTH_GAIN * (is_beyond - self._aimed_misses)
            self._width = min(MOST_WIDTH, max(LEAST_WIDTH, width))
        # Fast streams do not say how slow others are. Half of the streams are above the mean, so these count twice.
        above = min(max(0.0, above_mean), max(FAR, FAR_DEVIATIONS * sqrt(self._square)))
        self._square += (2.0 * above * above - self._square) / self._streams

    def learnt(self, caps_share: float, replicas: list[LearntReplica]) -> LearntCaps:
        return LearntCaps(self._width, self._square, self._streams, caps_share, replicas)

    def recall(self, learnt: LearntCaps) -> None:
        self._width = within(learnt.width, 0.0, MOST_WIDTH)
        self._square = within(learnt.square, 0.0, MOST_SQUARE)
        self._streams = int(within(learnt.streams, FIRST_STREAMS, REMEMBERED_STREAMS))

    def forget(self) -> None:
        """No replica may carry a stream, so nothing is learnt: assume less, to try again."""
        self._square *= 0.5


class Feedback:
    """The slowness of one replica."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self.mean = 1.0

    @property
    def slowness(self) -> float:
        """The quantile."""
        return self.mean * (1.0 + self._spread.share)

    def observe(self, slowness: float, *, is_missed: bool) -> None:
        """Record the slowness of a stream with a floor that has ended; 1.0 is as the curve predicts."""
        self._spread.observe(slowness / self.mean - 1.0, is_missed=is_missed)
        mean = self.mean + MEAN_PULL * (min(slowness, MOST_ONE_STREAM_SAYS * self.mean) - self.mean)
        self.mean = min(MOST, max(LEAST, mean))
