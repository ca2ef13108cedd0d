"""Compares the curve with the measured speed of streams that have a floor. The estimate follows a replica whose speed
drifts; a replica that becomes slow suddenly is shut out.

    slowness = measured seconds per token ÷ seconds per token by the curve

A floor must be kept for every stream, not only on average, so the estimate is biased to the slow side: a stream slower
than the estimate changes it ten times as much as a faster one. It settles where about one stream in ten is slower. The
effect of a single stream is bounded, however slow it was. Three streams in a row that are much slower are no
coincidence and close the replica to calls with a floor for a while. The effect of speculative decoding is part of the
measured speed; no acceptance rate is assumed.

This module knows nothing about seats; `now` is an argument.
"""

from __future__ import annotations

from math import inf

PULL_OF_SLOWER, PULL_OF_FASTER = 0.1, 0.01
MOST_ONE_STREAM_SAYS = 1.5  # times the current estimate; a slower stream counts as this
LEAST, MOST = 0.5, 4.0  # outside this range the curve does not describe the replica and must be measured again

SUDDEN = 1.5  # a stream slower than this many times the estimate is suddenly slow
IN_A_ROW = 3  # after this many such streams in a row
SHUT_OUT_S = 30.0  # no call with a floor boards for this long


class Feedback:
    def __init__(self) -> None:
        self.slowness = 1.0
        self.shut_out_until = -inf
        self._slow_in_a_row = 0

    def observe(self, slowness: float, now: float) -> None:
        """Record the slowness of a stream with a floor that has ended; 1.0 is as the curve predicts."""
        self._slow_in_a_row = self._slow_in_a_row + 1 if slowness > SUDDEN * self.slowness else 0
        if self._slow_in_a_row >= IN_A_ROW:
            self._slow_in_a_row = 0
            self.shut_out_until = now + SHUT_OUT_S
        says = min(slowness, MOST_ONE_STREAM_SAYS * self.slowness)
        pull = PULL_OF_SLOWER if says > self.slowness else PULL_OF_FASTER
        self.slowness = min(MOST, max(LEAST, self.slowness + pull * (says - self.slowness)))
