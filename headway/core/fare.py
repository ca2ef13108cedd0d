"""Seat-time: every second of a replica, shared out among the calls it was spent on.

On a heavy replica each stream aboard takes an equal part of the second. A light replica carries few so that its
express streams are fast: a call without a floor that rides there pays for one seat of a full replica, as it would
elsewhere, and the express streams pay for all the rest, empty seats included. While a light replica waits with no
express stream aboard, its empty seats are the reserve's: a cost of the express tiers, and of no call.

Invariant, to the microsecond, whenever nobody is aboard: busy = charged to calls + reserve. Integers only: time comes
in seconds and is counted in microseconds, shares in a fine part of those, so that nothing is lost however many come.

Cost: O(1) per change, whatever the batch: two counters grow by what a stream of either kind takes, and a call pays the
difference between when it boarded and when it left, for each of its seats.
"""

from __future__ import annotations

FINE = 1 << 40  # parts of a microsecond


class SeatTime:
    """The clock of one replica. `advance` comes before every change of who is aboard, of its seats, and of whether
    it is light."""

    def __init__(self, seats: int, now: float) -> None:
        self.busy_us = 0
        self.charged_us = 0
        self.seats = seats
        self._at_us = _microseconds(now)
        self._express_took = 0  # by each express stream since the start, in fine parts
        self._other_took = 0
        self._reserve_took = 0
        self._loose = 0  # less than a microsecond that those who left did not pay

    @property
    def reserve_us(self) -> int:
        return self._reserve_took // FINE

    def advance(self, now: float, *, express: int, others: int, light: bool) -> None:
        """Time has passed with so many aboard."""
        now_us = _microseconds(now)
        passed, self._at_us = max(0, now_us - self._at_us), max(now_us, self._at_us)
        aboard = express + others
        if not passed or not (aboard or light):
            return
        self.busy_us += passed
        if not light:
            each = passed * FINE // aboard
            self._express_took += each
            self._other_took += each
            return
        each = passed * FINE // max(self.seats, aboard)  # more may be aboard when it was given fewer seats
        self._other_took += each
        rest = passed * FINE - others * each
        if express:
            self._express_took += rest // express
        else:
            self._reserve_took += rest

    def taken(self, *, express: bool) -> int:
        """What a stream of this kind has taken since the start; the difference of two such marks is a call's."""
        return self._express_took if express else self._other_took

    def charge(self, mark: int, seats: int = 1, *, express: bool, is_last: bool) -> int:
        """The seat-time of a call that leaves, in microseconds. The last one aboard settles what rounding left."""
        if is_last:
            paid = self.busy_us - self.reserve_us - self.charged_us
            self._loose = 0
        else:
            paid, self._loose = divmod((self.taken(express=express) - mark) * seats + self._loose, FINE)
        self.charged_us += paid
        return paid


def _microseconds(now: float) -> int:
    return round(now * 1e6)
