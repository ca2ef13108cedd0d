"""What streams with a floor really got beside what the curve had foreseen: follows a replica that drifts, and shuts
out one that is suddenly slow.

    slowness = seconds per token measured ÷ seconds per token by the curve

A floor is kept by every stream and not by the average one, so the estimate leans to the slow side: a stream slower than
it pulls ten times as hard as a faster one, which settles where about one stream in ten is slower. A single stream moves
it little, however slow it was; three in a row that are far slower are no chance, and close the replica to calls with a
floor for a while. Speculation is in these figures as it turned out: nothing is assumed of acceptance.

Knows nothing of seats; `now` is an argument.
"""

from __future__ import annotations

from math import inf

PULL_OF_SLOWER, PULL_OF_FASTER = 0.1, 0.01
MOST_ONE_STREAM_SAYS = 1.5  # times the present estimate
LEAST, MOST = 0.5, 4.0  # beyond these the curve is no longer of this replica: it must be measured again

SUDDEN = 1.5  # times slower than the estimate,
IN_A_ROW = 3  # this often,
SHUT_OUT_S = 30.0  # keeps calls with a floor away for this long


class Feedback:
    def __init__(self) -> None:
        self.slowness = 1.0
        self.shut_out_until = -inf
        self._slow_in_a_row = 0

    def observe(self, slowness: float, now: float) -> None:
        """One stream with a floor has ended; so much slower than the curve it was (1.0: as foreseen)."""
        self._slow_in_a_row = self._slow_in_a_row + 1 if slowness > SUDDEN * self.slowness else 0
        if self._slow_in_a_row >= IN_A_ROW:
            self._slow_in_a_row = 0
            self.shut_out_until = now + SHUT_OUT_S
        says = min(slowness, MOST_ONE_STREAM_SAYS * self.slowness)
        pull = PULL_OF_SLOWER if says > self.slowness else PULL_OF_FASTER
        self.slowness = min(MOST, max(LEAST, self.slowness + pull * (says - self.slowness)))
