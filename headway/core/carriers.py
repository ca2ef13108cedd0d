"""Replicas as boarding sees them: a carrier with who is aboard, and rows of carriers by a small number.

Knows how many streams a carrier may have and how many tokens its curve says each of them was given. Which carrier a
call takes is boarding.py's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from headway.core.feedback import Feedback
from headway.core.types import Replica, Tier


@dataclass(slots=True)
class Rider:
    """A stream aboard."""

    tier: Tier
    boarded_at: float
    boarded_given: float  # the carrier's `given` at that moment


@dataclass(slots=True)
class Carrier:
    """A replica with what is aboard."""

    replica: Replica
    caps: dict[Tier, int] = field(default_factory=dict)  # the largest batch that keeps each express tier's floor here
    light_seats: int = 0  # the largest of them: what the replica offers while it is light
    open: bool = False
    light: bool = False
    aboard: dict[str, Rider] = field(default_factory=dict)
    express: dict[Tier, int] = field(default_factory=dict)  # express streams aboard, by tier
    flex: dict[str, None] = field(default_factory=dict)  # calls aboard that may be put off, the newest last
    leaving: set[str] = field(default_factory=set)  # calls that are being put off: aboard until the engine let go
    feedback: Feedback = field(default_factory=Feedback)
    caps_slowness: float = 1.0  # the feedback's, when the caps were made from it
    given: float = 0.0  # tokens each stream was given since the start, by the curve as it was measured
    given_at: float = 0.0
    rows: Rows | None = None
    row: int = 0
    ready: int = 0  # free light seats, as counted in the total

    @property
    def limit(self) -> int:
        """How many streams it may carry as it is now."""
        if not self.light:
            return self.replica.seats
        return min([self.light_seats, *(self.caps[tier] for tier, count in self.express.items() if count)])

    @property
    def carries_express(self) -> bool:
        return any(self.express.values())

    def has_room_for(self, tier: Tier) -> bool:
        """For an express call: what is aboard and what it asks for itself are both respected."""
        return len(self.aboard) < min(self.limit, self.caps.get(tier, 0))

    def board(self, call_id: str, tier: Tier, now: float) -> None:
        self._advance(now)
        self.aboard[call_id] = Rider(tier, now, self.given)

    def leave(self, call_id: str, now: float) -> tuple[Rider, float]:
        """Take the stream off; returns it and the seconds per token that the curve had foreseen for it."""
        self._advance(now)
        rider = self.aboard.pop(call_id)
        self.flex.pop(call_id, None)
        self.leaving.discard(call_id)
        given = self.given - rider.boarded_given
        return rider, (now - rider.boarded_at) / given if given > 0 else 0.0

    def _advance(self, now: float) -> None:
        if self.aboard and self.replica.curve is not None:
            self.given += (now - self.given_at) / self.replica.curve.seconds_per_token(len(self.aboard))
        self.given_at = now


class Rows:
    """Carriers in rows by a small number; the first non-empty row from either end is found without looking."""

    def __init__(self) -> None:
        self._rows: list[OrderedDict[str, Carrier]] = []
        self._mask = 0

    def put(self, carrier: Carrier, row: int) -> None:
        while len(self._rows) <= row:
            self._rows.append(OrderedDict())
        self._rows[row][carrier.replica.name] = carrier
        self._mask |= 1 << row
        carrier.rows, carrier.row = self, row

    def take(self, carrier: Carrier) -> None:
        row = self._rows[carrier.row]
        del row[carrier.replica.name]
        if not row:
            self._mask &= ~(1 << carrier.row)
        carrier.rows = None

    def lowest(self, avoid: Set[str] = frozenset()) -> Carrier | None:
        if not self._mask:
            return None
        if not avoid:
            return next(iter(self._rows[(self._mask & -self._mask).bit_length() - 1].values()))
        return next((c for row in self._rows for name, c in row.items() if name not in avoid), None)

    def from_highest(self, avoid: Set[str]) -> Iterator[Carrier]:
        """The first carrier of each row, highest row first."""
        for row in reversed(self._rows):
            found = next((c for name, c in row.items() if name not in avoid), None)
            if found is not None:
                yield found
