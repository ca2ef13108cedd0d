"""Finds the replica with seats for a call, by the express rule (pool.py). Boards nobody."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from headway.core.doors import Doors
from headway.core.prefix_affinity import PrefixAffinity
from headway.core.replicas import ReplicaState
from headway.core.reserve import Reserve
from headway.core.types import Call

# A call accepts this many more streams than on the emptiest replica if its prefix was read there.
AFFINITY_SLACK: Final = 2


class Finder:
    def __init__(self, doors: Doors, reserve: Reserve, affinity: PrefixAffinity) -> None:
        self._doors = doors
        self._reserve = reserve
        self._affinity = affinity

    def express_seat(self, call: Call, floor_tps: float, avoid: Set[str], now: float) -> ReplicaState | None:
        # Prefer a replica that has express streams aboard and has read this prompt prefix before. Otherwise best fit:
        # the light replica with the fewest free seats, so that others keep room for calls that need more.
        known = self._known(call, avoid, now)
        if known is not None and (known.retiring or not known.express_seats):
            known = None
        for candidate in (known, self._doors.light.lowest(avoid, call.choices)):
            if candidate is not None and candidate.has_room_for(call, floor_tps, now):
                return candidate
        # A call with a stricter floor or a long prompt may need an emptier replica, or one that retires. Without free
        # seats elsewhere none is called back for it: the reserve decides that. If streams move, a seat on a replica
        # that does not retire can be had at once.
        may_call_back = self._doors.ready and not self._doors.moves_streams
        for queue in (self._doors.light, self._doors.retiring) if may_call_back else (self._doors.light,):
            for state in queue.from_highest(avoid, call.choices):
                if state.has_room_for(call, floor_tps, now):
                    return state
        if self._doors.may_another_be_light:
            for heavy in self._doors.heavy.ranks:
                emptiest = heavy.lowest(avoid)
                if emptiest is not None and emptiest.has_room_for(call, floor_tps, now):
                    return emptiest
        return None

    def heavy_seat(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """The heavy replica that a call without a floor would board; None if there is none."""
        emptiest = self._doors.emptiest(avoid)
        if emptiest is not None and not (emptiest.free >= call.choices and emptiest.has_memory_for(call)):
            # A larger replica may have more free seats and more memory.
            larger = self._doors.heavy_by_free.from_highest(avoid, call.choices)
            emptiest = next((state for state in larger if state.has_memory_for(call)), None)
        known = self._known(call, avoid, now)
        if emptiest is None or known is None or not known.is_among_heavy or known.free < call.choices:
            return emptiest
        if not known.has_memory_for(call):
            return emptiest
        return known if known.load <= emptiest.load + AFFINITY_SLACK else emptiest

    def _known(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """The open replica that the last call with the same affinity key boarded, if it was not long ago."""
        name = self._affinity.last(call, now)
        state = self._doors.replicas.get(name) if name is not None and name not in avoid else None
        return state if state is not None and state.open else None

    def ride(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """A light replica for a call without a floor, if enough light seats are ready beyond the reserve."""
        for state in self._doors.retiring.from_highest(avoid, call.choices):
            if state.can_take(call, now):
                return state
        if self.spare(now) < call.choices:
            return None
        fits = self._doors.light.lowest(avoid, call.choices)
        if fits is not None and not fits.can_take(call, now):
            emptier = self._doors.light.from_highest(avoid, call.choices)
            fits = next((state for state in emptier if state.can_take(call, now)), None)
        return fits

    def spare(self, now: float) -> int:
        """The number of light seats that are ready beyond the reserve."""
        return max(0, self._doors.ready - self._reserve.wanted_free(now))
