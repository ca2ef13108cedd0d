"""What is on its way between the processes of a simulated cell, and what happens there at a set time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.types import Action, Event
from headway.sim.loop import Message, SimTrip

TimerKind = Literal["decided", "dies", "takes over", "connects", "counts", "summary"]


@dataclass(slots=True)
class RelayReported:
    """A relay has told all its calls."""

    relay: int


@dataclass(slots=True)
class EngineCounted:
    """The engine of a replica was probed, and runs so many streams."""

    replica: str
    streams: int


QueueItem = Event | RelayReported | EngineCounted


@dataclass(slots=True)
class ToDispatcher(Message):
    cell: int
    epoch: int
    items: list[QueueItem]


@dataclass(slots=True)
class ToRelay(Message):
    cell: int
    action: Action


@dataclass(slots=True)
class Timer(Message):
    """`number` is of a cell, or of a relay if that connects or counts. It is void if the epoch is over."""

    what: TimerKind
    number: int
    epoch: int
    takeover_s: float = 0.0


@dataclass(slots=True)
class Deadline(Message):
    """Of a held call, or, if it is overdue, of the dispatcher's word after that."""

    call_id: str
    at: float
    is_overdue: bool = False


@dataclass(slots=True)
class HandedOn(Message):
    """A call arrives at another cell."""

    trip: SimTrip
