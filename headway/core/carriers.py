"""Replicas as boarding sees them: a carrier with who is aboard, and rows of carriers by a small number.

Knows how many streams a carrier may have and how many tokens its curve says each of them was given. Which carrier a
call takes is boarding.py's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from headway.core.fare import SeatTime
from headway.core.feedback import Feedback
from headway.core.types import EXPRESS, Call, Replica, Tier

PROMPT_SHARE = 0.05  # of a light replica's time may go to newcomers' prompts,
PROMPT_WINDOW_S = 5.0  # of any stretch as long as this


@dataclass(slots=True)
class Rider:
    """A stream aboard."""

    tier: Tier
    boarded_at: float
    boarded_given: float  # the carrier's `given` at that moment,
    boarded_taken: int  # and what streams of its kind had taken of its time (fare.py)


@dataclass(slots=True)
class PromptTime:
    """The time that prompts of newcomers have taken from the streams with a floor aboard, less what has passed since.

    While an engine reads a prompt nobody aboard is given tokens: the delay is the prompt's, however it is cut into
    chunks. The margin above a floor pays for a small share of that, and no more may board than it pays for.
    """

    taken_s: float = 0.0
    at: float = 0.0

    def has_room_for(self, seconds: float, now: float) -> bool:
        return self._now(now) + seconds <= PROMPT_SHARE * PROMPT_WINDOW_S

    def take(self, seconds: float, now: float) -> None:
        self.taken_s, self.at = self._now(now) + seconds, now

    def _now(self, now: float) -> float:
        return max(0.0, self.taken_s - PROMPT_SHARE * (now - self.at))


@dataclass(slots=True)
class Carrier:
    """A replica with what is aboard."""

    replica: Replica
    time: SeatTime
    caps: dict[Tier, int] = field(default_factory=dict)  # the largest batch that keeps each express tier's floor here
    light_seats: int = 0  # the largest of them: what the replica offers while it is light
    open: bool = False
    light: bool = False
    aboard: dict[str, Rider] = field(default_factory=dict)
    express: dict[Tier, int] = field(default_factory=dict)  # streams with a floor aboard, by tier; no zeros
    flex: dict[str, None] = field(default_factory=dict)  # calls aboard that may be put off, the newest last
    leaving: set[str] = field(default_factory=set)  # calls that are being put off: aboard until the engine let go
    feedback: Feedback = field(default_factory=Feedback)
    caps_slowness: float = 1.0  # the feedback's, when the caps were made from it
    given: float = 0.0  # tokens each stream was given since the start, by the curve as it was measured
    given_at: float = 0.0
    prompts: PromptTime = field(default_factory=PromptTime)
    rows: Rows | None = None
    row: int = 0
    ready: int = 0  # free light seats, as counted in the total

    @property
    def limit(self) -> int:
        """How many streams it may carry as it is now."""
        if not self.light:
            return self.replica.seats
        return min([self.light_seats, *[self.caps[tier] for tier in self.express]])

    def has_room_for(self, call: Call, now: float) -> bool:
        """For an express call: the floors of those aboard and its own are kept."""
        return len(self.aboard) < min(self.limit, self.caps.get(call.tier, 0)) and self.has_time_for(call, now)

    def has_time_for(self, call: Call, now: float) -> bool:
        """Would reading its prompt leave those aboard their floors?"""
        return not self.express or self.prompts.has_room_for(self._reading_s(call), now)

    def board(self, call: Call, now: float) -> None:
        self.advance(now)
        if self.express:
            self.prompts.take(self._reading_s(call), now)
        taken = self.time.taken(express=call.tier in EXPRESS)
        self.aboard[call.id] = Rider(call.tier, now, self.given, taken)
        if call.tier in EXPRESS:
            self.express[call.tier] = self.express.get(call.tier, 0) + 1
        elif call.tier == "flex" and not call.was_put_off:
            self.flex[call.id] = None

    def _reading_s(self, call: Call) -> float:
        return call.prompt_tokens / self.replica.prompt_tps if self.replica.prompt_tps else 0.0

    def leave(self, call_id: str, now: float) -> tuple[Rider, int]:
        """Take the stream off; returns it and its seat-time in microseconds."""
        self.advance(now)
        rider = self.aboard.pop(call_id)
        seat_us = self.time.charge(rider.boarded_taken, express=rider.tier in EXPRESS, is_last=not self.aboard)
        self.flex.pop(call_id, None)
        self.leaving.discard(call_id)
        if rider.tier in EXPRESS:
            self.express[rider.tier] -= 1
            if not self.express[rider.tier]:
                del self.express[rider.tier]
        return rider, seat_us

    def foreseen_s(self, rider: Rider, now: float) -> float:
        """Seconds per token that the curve had foreseen for it until now; 0 if nothing was."""
        given = self.given - rider.boarded_given
        return (now - rider.boarded_at) / given if given > 0 else 0.0

    def advance(self, now: float) -> None:
        """Count the time until now as it was. Comes before every change of who is aboard, or of light and heavy."""
        express = sum(self.express.values())
        self.time.advance(now, express=express, others=len(self.aboard) - express, light=self.light)
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
        mask = self._mask
        while mask:
            row = self._rows[(mask & -mask).bit_length() - 1]
            for name, carrier in row.items():
                if name not in avoid:
                    return carrier
            mask &= mask - 1
        return None

    def from_highest(self, avoid: Set[str]) -> Iterator[Carrier]:
        """The first carrier of each row, highest row first."""
        mask = self._mask
        while mask:
            number = mask.bit_length() - 1
            for name, carrier in self._rows[number].items():
                if name not in avoid:
                    yield carrier
                    break
            mask ^= 1 << number
