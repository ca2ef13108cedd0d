"""Preemption: takes flex calls off a light replica for streams that have a floor.

A flex call is preempted at most once, and only until the first part of its answer is delivered. It keeps its seats
until the driver reports that the engine has stopped it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headway.core.doors import Doors
from headway.core.replicas import ReplicaState

LOOKED_AT = 8  # replicas searched for flex calls, at most


class Preemption:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self.leaving = 0  # seats of calls that are being preempted

    def stays(self, call_id: str, state: ReplicaState, now: float) -> None:
        """The call's answer is being delivered: it can no longer be preempted."""
        if call_id in state.flex:
            del state.flex[call_id]
            self._doors.place(state, now)

    def left(self, call_id: str, state: ReplicaState) -> None:
        """The call is about to leave the replica."""
        self.leaving -= state.leaving.get(call_id, 0)

    def make_room(self, seats: int, fewest: int, now: float) -> Iterator[str]:
        """Choose flex calls to preempt until this many seats are free; yields their ids. A replica is skipped if
        preempting its flex calls would free fewer seats than `fewest`."""
        wanted = seats - self.leaving
        if wanted <= 0:
            return
        for state in list(islice(self._doors.light_with_flex.values(), LOOKED_AT)):
            staying = state.load - sum(state.leaving.values())
            freed = min(wanted, state.limit - staying + sum(state.flex.values()))
            if freed < fewest:
                continue  # too full even without its flex calls
            wanted -= freed
            while staying + freed > state.limit:
                call_id = next(reversed(state.flex))  # the newest call: the least work is lost
                staying -= self._preempt(call_id, state)
                yield call_id
            self._doors.place(state, now)
            if wanted <= 0:
                return

    def all_of(self, state: ReplicaState, now: float) -> Iterator[str]:
        """Preempt every flex call of the replica; yields their ids."""
        while state.flex:
            call_id = next(reversed(state.flex))
            self._preempt(call_id, state)
            yield call_id
        self._doors.place(state, now)

    def _preempt(self, call_id: str, state: ReplicaState) -> int:
        seats = state.leaving[call_id] = state.flex.pop(call_id)
        self.leaving += seats
        return seats
