"""Caps: how many streams each floor allows on each replica of a pool.

A cap comes from the replica's curve, corrected by the measured speed of streams with a floor (feedback.py). Without a
curve the speed of a replica is unknown and its caps are 0. A replica that became slow suddenly is shut out: its caps
are 0 for a while. This module does not know which streams are aboard.
"""

from __future__ import annotations

from collections import OrderedDict

from headway.core.doors import Doors
from headway.core.feedback import Feedback
from headway.core.replicas import ReplicaState
from headway.core.types import Replica

FEEDBACK_STEP = 0.01  # caps are computed again when the measured slowness has changed by more than this share


class Caps:
    def __init__(self, floors: list[float], margin: float, doors: Doors) -> None:
        self.floors = floors
        self._margin = margin
        self._doors = doors
        self._shut_out: OrderedDict[str, ReplicaState] = OrderedDict()  # the first to be let back in comes first
        self._most: dict[float, int] = {}  # cache by floor, cleared when the fleet changes

    def fleet_changed(self) -> None:
        """A replica was added, changed, drained or removed."""
        self._most.clear()

    def most_streams(self, floor_tps: float) -> int:
        """The largest cap of any replica that calls can wait for, from its curve without correction; for a floor of 0,
        the largest number of seats. O(replicas) after a change of the fleet, otherwise O(1)."""
        most = self._most.get(floor_tps)
        if most is None:
            replicas = [state.replica for state in self._doors.replicas.values() if not state.draining]
            caps = [self._cap(replica, floor_tps, 1.0) if floor_tps else replica.seats for replica in replicas]
            most = self._most[floor_tps] = max(caps, default=0)
        return most

    def refresh(self, state: ReplicaState) -> None:
        """Compute the caps of the replica again. The caller must call Doors.place afterwards."""
        state.caps_slowness = state.feedback.slowness
        is_shut_out = state.replica.name in self._shut_out
        state.caps = {
            floor_tps: 0 if is_shut_out else self._cap(state.replica, floor_tps, state.caps_slowness)
            for floor_tps in self.floors
        }
        self._doors.caps_changed(state)

    def _cap(self, replica: Replica, floor_tps: float, slowness: float) -> int:
        if replica.curve is None:
            return 0
        return replica.curve.slower(slowness).largest_batch(floor_tps, replica.seats, self._margin)

    # --- measured speed ---

    def learn(self, state: ReplicaState, slowness: float, now: float) -> None:
        """Record the slowness of a stream with a floor that ended. The caller must call Doors.place afterwards."""
        feedback = state.feedback
        feedback.observe(slowness, now)
        if feedback.shut_out_until > now:
            self._shut_out[state.replica.name] = state
            self._shut_out.move_to_end(state.replica.name)
            self.refresh(state)
        elif abs(feedback.slowness / state.caps_slowness - 1.0) > FEEDBACK_STEP:
            self.refresh(state)

    def let_back_in(self, now: float) -> None:
        while self._shut_out:
            state = next(iter(self._shut_out.values()))
            if state.feedback.shut_out_until > now:
                return
            del self._shut_out[state.replica.name]
            self.refresh(state)
            self._doors.place(state, now)

    def forget(self, state: ReplicaState) -> None:
        """Reset what was measured: the replica was removed or has another curve."""
        state.feedback = Feedback()
        self._shut_out.pop(state.replica.name, None)

    def is_shut_out(self, replica: str) -> bool:
        return replica in self._shut_out
