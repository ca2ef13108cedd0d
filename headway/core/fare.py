"""Seat-time: the time of a replica, divided among the calls it was spent on.

On a heavy replica each stream aboard takes an equal share. A light replica carries few streams so that its express
streams are fast. A call without a floor that rides there pays for one seat of a full replica, as it would on a heavy
one; the express streams pay for the rest, including empty seats. While a light replica has no express stream aboard,
its empty seats are the reserve: a cost of the express tiers that is charged to no call.

Invariant, exact to the microsecond while the replica is empty: busy = charged to calls + reserve. All arithmetic is in
integers: time is counted in microseconds, and shares in units of 1/FINE microsecond, so rounding errors do not add up.

Cost: O(1) per change, whatever the batch. One counter for express streams and one for the others grow by what one
stream takes. A call pays the growth of its counter between boarding and leaving, for each of its seats.
"""

from __future__ import annotations

from typing import Final

FINE: Final = 1 << 40  # units per microsecond


class SeatTime:
    """The time counters of one replica. Call `advance` before every change of the streams aboard, of the seats, and of
    light or heavy."""

    def __init__(self, seats: int, now: float) -> None:
        self.busy_us = 0
        self.charged_us = 0
        self.seats = seats
        self._at_us = _microseconds(now)
        self._express_took = 0  # by one express stream since the start, in 1/FINE microseconds
        self._other_took = 0
        self._reserve_took = 0
        self._loose = 0  # rounding remainder of the calls that left, less than a microsecond

    @property
    def reserve_us(self) -> int:
        return self._reserve_took // FINE

    def advance(self, now: float, *, express: int, others: int, light: bool) -> None:
        """Count the time until `now`, during which this many streams were aboard."""
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
        each = passed * FINE // max(self.seats, aboard)  # more may be aboard after the seats were reduced
        self._other_took += each
        rest = passed * FINE - others * each
        if express:
            self._express_took += rest // express
        else:
            self._reserve_took += rest

    def taken(self, *, express: bool) -> int:
        """The time that one stream of this kind took since the start. A call pays the difference of two such marks."""
        return self._express_took if express else self._other_took

    def charge(self, mark: int, seats: int = 1, *, express: bool, is_last: bool) -> int:
        """The seat-time of a call that leaves, in microseconds. The last call aboard also pays what rounding left."""
        if is_last:
            paid = self.busy_us - self.reserve_us - self.charged_us
            self._loose = 0
        else:
            paid, self._loose = divmod((self.taken(express=express) - mark) * seats + self._loose, FINE)
        self.charged_us += paid
        return paid


def _microseconds(now: float) -> int:
    exact = now * 1e6
    if exact < 0.0:
        return round(exact)
    whole = int(exact)  # compiled, this takes a tenth of the time of round(), with the same result
    rest = exact - whole
    return whole + 1 if rest > 0.5 or (rest == 0.5 and whole & 1) else whole
