"""Finds the replica with seats for a call, by the express rule (pool.py). Boards nobody.

Of the replicas that may take a call, one that is expected to have more of its prompt in its cache is preferred: never
against a floor, a cap or the reserve, and never one that is much fuller than the emptiest.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from typing import Final

from headway.core.adapter_affinity import AdapterAffinity
from headway.core.doors import Doors
from headway.core.prefix_index import PrefixIndex
from headway.core.replicas import ReplicaState
from headway.core.reserve import Reserve
from headway.core.types import Call

# A call without a floor accepts so many more streams than on the emptiest replica for a prefix that was read there, or
# for its adapter; or this part of its seats more, if that costs less there.
MORE_STREAMS: Final = 2
MORE_SEATS: Final = 1 / 8


class Finder:
    def __init__(self, doors: Doors, reserve: Reserve, adapters: AdapterAffinity, prefixes: PrefixIndex) -> None:
        self._doors = doors
        self._reserve = reserve
        self._adapters = adapters
        self._prefixes = prefixes

    def express_seat(self, call: Call, floor_tps: float, avoid: Set[str], now: float) -> ReplicaState | None:
        # Best fit: the light replica with the fewest free seats, so that others keep room for calls that need more. But
        # rather one with express streams aboard that has more of the prompt in its cache, or has the adapter.
        fits = self._doors.light.lowest(avoid, call.choices)
        if fits is not None and not fits.has_room_for(call, floor_tps, now):
            fits = None
        cached = fits.prefixes.cached_tokens(call) if fits is not None else 0
        known = [state for state in self._holders(call, avoid) if state.prefixes.cached_tokens(call) > cached]
        for state in [*known, *self._adapters_last(call, avoid, now)]:
            is_express = state.is_among_light and not state.is_among_retiring and state.express_seats > 0
            if is_express and state.has_room_for(call, floor_tps, now):
                return state
        if fits is not None:
            return fits
        # A call with a stricter floor or a long prompt may need an emptier replica, or one that retires. Without free
        # seats elsewhere none is called back for it: the reserve decides that. If streams move, a seat on a replica
        # that does not retire can be had at once.
        may_call_back = self._doors.ready and not self._doors.moves_streams
        for queue in (self._doors.light, self._doors.retiring) if may_call_back else (self._doors.light,):
            for state in queue.from_highest(avoid, call.choices):
                if state.has_room_for(call, floor_tps, now):
                    return state
        if self._doors.may_another_be_light:
            for rank, heavy in enumerate(self._doors.heavy.ranks):
                emptiest = heavy.lowest(avoid)
                if emptiest is None:
                    continue
                of_rank = [state for state in known if state.is_among_heavy and state.rank == rank]
                for state in [*of_rank, emptiest]:
                    if state.has_room_for(call, floor_tps, now):
                        return state
        return None

    def heavy_seat(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """Where a call without a floor would board if a heavy replica has a seat: there, or on one that retires and has
        read more of its prompt."""
        emptiest = self._doors.emptiest(avoid)
        if emptiest is not None and not (emptiest.free >= call.choices and emptiest.has_memory_for(call)):
            # A larger replica may have more free seats and more memory.
            larger = self._doors.heavy_by_free.from_highest(avoid, call.choices)
            emptiest = next((state for state in larger if state.has_memory_for(call)), None)
        if emptiest is None:
            return None
        best, least_s = emptiest, -1.0
        cached = emptiest.prefixes.cached_tokens(call)
        for state in self._holders(call, avoid):
            is_timed = state.replica.prompt_tps > 0.0 and emptiest.replica.prompt_tps > 0.0
            has_more = state.prefixes.cached_tokens(call) > cached
            if not has_more or not _may_board_rather(state, emptiest, call, now, MORE_SEATS if is_timed else 0.0):
                continue
            if not is_timed:
                return state
            least_s = least_s if least_s >= 0.0 else emptiest.cost_s(call, now)
            costs_s = state.cost_s(call, now)
            if costs_s < least_s:
                best, least_s = state, costs_s
        for state in self._adapters_last(call, avoid, now) if best is emptiest else ():
            if _may_board_rather(state, emptiest, call, now):
                return state
        return best

    def _holders(self, call: Call, avoid: Set[str]) -> list[ReplicaState]:
        """A few open replicas that are expected to hold much of the prompt, the most first."""
        if not call.prefix_keys:
            return []
        states = [self._doors.replicas[part.name] for part in self._prefixes.holders(call)]
        return [state for state in states if state.open and state.replica.name not in avoid]

    def _adapters_last(self, call: Call, avoid: Set[str], now: float) -> list[ReplicaState]:
        """The open replica that the last call to the same adapter boarded, if it was not long ago."""
        name = self._adapters.last(call.model, now)
        state = self._doors.replicas.get(name) if name is not None and name not in avoid else None
        return [state] if state is not None and state.open else []

    def ride(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """A light replica for a call without a floor, if enough light seats are ready beyond the reserve."""
        holders = self._holders(call, avoid)
        retiring = [state for state in holders if state.is_among_retiring and state.free >= call.choices]
        for state in chain(retiring, self._doors.retiring.from_highest(avoid, call.choices)):
            if state.can_take(call, now):
                return state
        if self.spare(now) < call.choices:
            return None
        for state in holders:
            if state.is_among_light and state.free >= call.choices and state.can_take(call, now):
                return state
        fits = self._doors.light.lowest(avoid, call.choices)
        if fits is not None and not fits.can_take(call, now):
            emptier = self._doors.light.from_highest(avoid, call.choices)
            fits = next((state for state in emptier if state.can_take(call, now)), None)
        return fits

    def spare(self, now: float) -> int:
        """The number of light seats that are ready beyond the reserve."""
        return max(0, self._doors.ready - self._reserve.wanted_free(now))


def _may_board_rather(state: ReplicaState, emptiest: ReplicaState, call: Call, now: float, share: float = 0.0) -> bool:
    """Whether a call without a floor may board this one instead of the emptiest heavy one: it has room, and if it is
    heavy it is not much fuller. `share` of its seats may be taken more if that is more than MORE_STREAMS."""
    if state.free < call.choices:
        return False
    if state.is_among_retiring:
        return state.can_take(call, now)
    if not state.is_among_heavy or not state.has_memory_for(call):
        return False
    return state.load <= emptiest.load + max(MORE_STREAMS, int(emptiest.replica.seats * share))
