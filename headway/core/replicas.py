"""Replicas as their pool sees them: what is aboard each of them, and queues of replicas in buckets by a small number.

Knows how many streams a replica may carry and how many tokens its curve says each of them was given. Which replica a
call boards is decided in pool.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from headway.core.fare import SeatTime
from headway.core.feedback import Feedback
from headway.core.types import Call, Replica

PROMPT_SHARE = 0.05  # of a light replica's time may go to newcomers' prompts,
PROMPT_WINDOW_S = 5.0  # of any stretch as long as this


@dataclass(slots=True)
class Stream:
    """A call aboard, with as many seats as choices. `floor_tps` is 0 where nothing is promised."""

    call: Call
    floor_tps: float
    boarded_at: float
    boarded_given: float  # the replica's `given` at that moment,
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
        return max(0.0, self.taken_s - PROMPT_SHARE * (now - self.at)) + seconds <= PROMPT_SHARE * PROMPT_WINDOW_S

    def take(self, seconds: float, now: float) -> None:
        self.taken_s, self.at = max(0.0, self.taken_s - PROMPT_SHARE * (now - self.at)) + seconds, now


@dataclass(slots=True)
class ReplicaState:
    """A replica with what is aboard."""

    replica: Replica
    time: SeatTime
    caps: dict[float, int] = field(default_factory=dict)  # the largest batch that keeps each floor here
    light_seats: int = 0  # the largest of them: what the replica offers while it is light
    open: bool = False
    draining: bool = False
    light: bool = False
    aboard: dict[str, Stream] = field(default_factory=dict)
    load: int = 0  # seats they have taken
    express: dict[float, int] = field(default_factory=dict)  # seats taken by streams with a floor, by floor; no zeros
    express_seats: int = 0  # all of them
    flex: dict[str, int] = field(default_factory=dict)  # seats of the calls that may be preempted, the newest last
    leaving: dict[str, int] = field(default_factory=dict)  # of those being preempted: taken until the engine let go
    feedback: Feedback = field(default_factory=Feedback)
    caps_slowness: float = 1.0  # the feedback's, when the caps were made from it
    given: float = 0.0  # tokens each stream was given since the start, by the curve as it was measured
    given_at: float = 0.0
    prompts: PromptTime = field(default_factory=PromptTime)
    # Where doors.py has put it and what it has counted of it: free seats, and among the light ones.
    is_among_light: bool = False
    is_among_heavy: bool = False
    bucket: int = 0
    free: int = 0
    counted_replicas: int = 0
    counted_seats: int = 0

    @property
    def limit(self) -> int:
        """How many streams it may carry as it is now."""
        if not self.light:
            return self.replica.seats
        limit = self.light_seats
        for floor_tps in self.express:
            limit = min(limit, self.caps[floor_tps])
        return limit

    def has_room_for(self, call: Call, floor_tps: float, now: float) -> bool:
        """For an express call: the floors of those aboard and its own are kept."""
        if call.choices > self.free or self.load + call.choices > self.caps[floor_tps]:
            return False
        return self.has_time_for(call, now)

    def has_time_for(self, call: Call, now: float) -> bool:
        """Would reading its prompt leave those aboard their floors?"""
        if not self.express_seats or not self.replica.prompt_tps:
            return True
        return self.prompts.has_room_for(call.prompt_tokens / self.replica.prompt_tps, now)

    def board(self, call: Call, floor_tps: float, now: float) -> None:
        self.advance(now)
        if self.express_seats and self.replica.prompt_tps:
            self.prompts.take(call.prompt_tokens / self.replica.prompt_tps, now)
        taken = self.time.taken(express=floor_tps > 0.0)
        self.aboard[call.id] = Stream(call, floor_tps, now, self.given, taken)
        self.load += call.choices
        if floor_tps:
            self.express[floor_tps] = self.express.get(floor_tps, 0) + call.choices
            self.express_seats += call.choices
        elif call.tier == "flex" and not call.was_preempted:
            self.flex[call.id] = call.choices

    def leave(self, call_id: str, now: float) -> tuple[Stream, int]:
        """Take the stream off; returns it and its seat-time in microseconds."""
        self.advance(now)
        stream = self.aboard.pop(call_id)
        floor_tps, seats = stream.floor_tps, stream.call.choices
        is_last = not self.aboard
        seat_us = self.time.charge(stream.boarded_taken, seats, express=floor_tps > 0.0, is_last=is_last)
        self.load -= seats
        self.flex.pop(call_id, None)
        self.leaving.pop(call_id, None)
        if floor_tps:
            self.express_seats -= seats
            self.express[floor_tps] -= seats
            if not self.express[floor_tps]:
                del self.express[floor_tps]
        return stream, seat_us

    def foreseen_s(self, stream: Stream, now: float) -> float:
        """Seconds per token that the curve had foreseen for it until now; 0 if nothing was."""
        given = self.given - stream.boarded_given
        return (now - stream.boarded_at) / given if given > 0 else 0.0

    def change(self, replica: Replica, now: float) -> None:
        """It has other seats, another curve or another speed of reading prompts from now on."""
        self.advance(now)
        self.replica = replica
        self.time.seats = replica.seats

    def advance(self, now: float) -> None:
        """Count the time until now as it was. Comes before every change of who is aboard, of light and
        heavy, and of the replica."""
        express = self.express_seats
        self.time.advance(now, express=express, others=self.load - express, light=self.light)
        if self.load and self.replica.curve is not None:
            self.given += (now - self.given_at) / self.replica.curve.seconds_per_token(self.load)
        self.given_at = now


class BucketQueue:
    """Replicas in buckets by a small number. A bit mask finds the first non-empty bucket from either end."""

    def __init__(self) -> None:
        self._buckets: list[OrderedDict[str, ReplicaState]] = []
        self._mask = 0

    def __contains__(self, state: ReplicaState) -> bool:
        """Looks at all of them: for invariants.py."""
        return any(state is one for replicas in self._buckets for one in replicas.values())

    def put(self, state: ReplicaState, bucket: int) -> None:
        while len(self._buckets) <= bucket:
            self._buckets.append(OrderedDict())
        self._buckets[bucket][state.replica.name] = state
        self._mask |= 1 << bucket

    def take(self, state: ReplicaState, bucket: int) -> None:
        replicas = self._buckets[bucket]
        del replicas[state.replica.name]
        if not replicas:
            self._mask &= ~(1 << bucket)

    def bucket(self, number: int) -> Iterable[ReplicaState]:
        return self._buckets[number].values() if number < len(self._buckets) else ()

    def lowest(self, avoid: Set[str], least: int = 0) -> ReplicaState | None:
        """The first replica of the lowest bucket from `least` on."""
        mask = self._mask >> least << least
        while mask:
            for name, state in self._buckets[(mask & -mask).bit_length() - 1].items():
                if name not in avoid:
                    return state
            mask &= mask - 1
        return None

    def from_highest(self, avoid: Set[str], least: int = 0) -> Iterator[ReplicaState]:
        """The first replica of each bucket, from the highest down to `least`."""
        mask = self._mask >> least << least
        while mask:
            number = mask.bit_length() - 1
            for name, state in self._buckets[number].items():
                if name not in avoid:
                    yield state
                    break
            mask ^= 1 << number
