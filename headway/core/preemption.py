"""Preemption: takes calls off their replica, to go on at another one or later.

- For streams with a floor, flex calls make way on light replicas. If the pool moves streams, so do other calls without
  a floor that can go on elsewhere.
- The streams of a replica that drains leave while others have free seats for them.
- While a stream with a floor falls behind, the flex calls beside it make way.

A call that has begun is paused until it finds a seat, so it must be able to go on, and it is taken off at most
MAX_MOVES times. Any other call is preempted at most once, if it is flex. A call keeps its seats until the driver
reports that the engine has stopped it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import islice
from typing import Final

from headway.core.doors import Doors
from headway.core.pace import FreedSeats, Pace
from headway.core.replicas import ReplicaState, Stream
from headway.core.types import Call
from headway.core.waiting import WaitingRoom

LOOKED_AT: Final = 8  # replicas searched for calls to preempt, at most
MOVE_S: Final = 0.15  # until the seats of a call that is taken off are free: the driver waits 0.1 s for the engine
# So many streams may be on their way that each expects a seat within this time: a small part of MAX_PAUSE_S.
EXPECTED_PAUSE_S: Final = 1.0
EXPRESS_PAUSE_S: Final = 0.15  # of a stream with a floor that finds a seat at once
MISSES: Final = 4  # calls of a draining replica that find no seat elsewhere, before the others wait for the next step

Find = Callable[[Call, float, Set[str], float], ReplicaState | None]


class Preemption:
    def __init__(self, doors: Doors, waiting: WaitingRoom, pace: Pace) -> None:
        self._doors = doors
        self._waiting = waiting
        self._pace = pace
        self.leaving = 0  # seats of calls that are being preempted
        self.leaving_express = 0  # of these, with a floor
        self._leaving_kv = 0  # tokens of memory of these calls
        self._freed_heavy = FreedSeats()  # by calls that ended, for calls without a floor
        self._freed_light = FreedSeats()

    def stays(self, call_id: str, state: ReplicaState, now: float) -> None:
        """The call's answer is being delivered, and it cannot go on elsewhere."""
        state.stays(call_id)
        self._doors.place(state, now)

    def left(self, stream: Stream, state: ReplicaState) -> None:
        """The call is about to leave the replica."""
        if stream.call.id in state.leaving:
            self._count(stream, -1)

    def ended(self, state: ReplicaState, seats: int, now: float) -> None:
        """A call has ended there."""
        if not state.open or not state.free:
            return
        (self._freed_light if state.light and not state.retiring else self._freed_heavy).add(seats, now)

    def all_of(self, state: ReplicaState, now: float) -> Iterator[str]:
        """Preempt every flex call of the replica; yields their ids."""
        for call_id in reversed(list(state.flex)):
            self._take_off(call_id, state)
            yield call_id
        self._doors.place(state, now)

    # --- room for express calls ---

    def make_room(self, seats: int, fewest: int, now: float) -> Iterator[str]:
        """Choose calls to preempt until this many light seats are free; yields their ids. A replica is skipped if
        preempting its calls would free fewer seats than `fewest`."""
        wanted = seats - self._doors.coming
        room = 0
        if self._doors.moves_streams:
            wanted -= int(self._freed_light.per_s(now) * MOVE_S)  # they will be free as soon
            room = self._room(now)
        for state in list(islice(self._doors.removable.from_lowest(), LOOKED_AT)) if wanted > 0 else ():
            calls = self._calls_of(state, now)
            gained = min(wanted, state.limit - state.staying + sum(state.aboard[one].call.choices for one in calls))
            most_left = state.limit - gained
            if gained < fewest or not self._is_worth_it(state, calls, most_left, now):
                continue  # too full even without these calls
            for call_id in calls:
                if state.staying <= most_left or (room <= 0 and call_id not in state.flex):
                    break
                room -= 0 if call_id in state.flex else state.movable[call_id]
                self._take_off(call_id, state)
                yield call_id
            self._doors.place(state, now)
            wanted -= gained
            if wanted <= 0:
                return

    def _calls_of(self, state: ReplicaState, now: float) -> list[str]:
        """The calls of a light replica that may make way, in this order: the newest flex call first, because the least
        work is lost; then those that the next replica reads soonest."""
        calls = list(reversed(state.flex))
        if self._doors.moves_streams:
            others = [one for one in state.movable if one not in state.flex]
            calls += sorted(others, key=lambda one: state.read_again(one, now))
        return calls

    def _is_worth_it(self, state: ReplicaState, calls: list[str], most_left: int, now: float) -> bool:
        """Whether the first of these calls are moved for less than it gains, until so many streams are left: the seats
        are free sooner than if the streams were left to end, by more than the time for which others read them again."""
        curve = state.replica.curve
        if not self._doors.moves_streams or curve is None:
            return True
        ends_s = curve.emptying_s(state.staying, most_left) + (0.0 if most_left else curve.seconds_per_token(1))
        moved_s = self._moved_s(state.staying - most_left, now) + self._read_again_s(state, calls, most_left, now)
        return moved_s <= self._pace.answer_tokens * ends_s

    def _read_again_s(self, state: ReplicaState, calls: list[str], most_left: int, now: float) -> float:
        """How long other replicas read what they are given of these calls, if they are as fast as this one. What they
        have in their caches is not known."""
        tokens, staying = 0.0, state.staying
        for call_id in calls if state.replica.prompt_tps else ():
            if staying <= most_left:
                break
            tokens += state.read_again(call_id, now)
            staying -= state.aboard[call_id].call.choices
        return tokens / state.replica.prompt_tps if tokens else 0.0

    def _moved_s(self, streams: int, now: float) -> float:
        """In how many seconds so many streams could have seats elsewhere."""
        without = streams - self._free()
        per_s = self._freed_heavy.per_s(now)
        return MOVE_S + (without / max(per_s, 1e-9) if without > 0 else 0.0)

    def _free(self) -> int:
        """Free seats for calls without a floor, except those for which some are on their way."""
        free = self._doors.free_heavy + self._doors.free_retiring
        return free - (self.leaving - self.leaving_express) - self._waiting.returned_seats

    def _room(self, now: float) -> int:
        return self._free() + int(self._freed_heavy.per_s(now) * EXPECTED_PAUSE_S)

    def lead_s(self, state: ReplicaState, emptying_s: float, now: float) -> float:
        """How long before they are needed light seats must be asked for: until a full replica has emptied, in
        `emptying_s` if its streams are left to end, or sooner if they move."""
        curve = state.replica.curve
        if not self._doors.moves_streams or curve is None:
            return emptying_s
        movable = sum(state.movable.values())
        fixed = max(state.load - movable, state.light_seats)
        moved_s = self._moved_s(max(0, state.load - fixed), now)
        return min(emptying_s, moved_s + self._pace.answer_tokens * curve.emptying_s(fixed, state.light_seats))

    # --- replicas that retire ---

    def leave_retiring(self, now: float) -> Iterator[str]:
        """Choose the last streams with a floor of a replica that retires, if there are light seats for all of them and
        their floors allow the pause; yields their ids. The replica is heavy as soon as they have left."""
        for state in islice(self._doors.retiring_by_express.from_lowest(), LOOKED_AT):
            seats = sum(state.movable_express.values())
            if seats > self._doors.ready + self._riders() - self.leaving_express:
                return
            if seats == state.express_seats and all(
                state.can_pause(one, EXPRESS_PAUSE_S, now) for one in state.movable_express
            ):
                for call_id in list(state.movable_express):
                    self._take_off(call_id, state)
                    yield call_id
                self._doors.place(state, now)
                return

    def _riders(self) -> int:
        """Seats of streams that can be taken off light replicas which carry no more than their limit."""
        few = islice(self._doors.removable.from_lowest(), LOOKED_AT)
        return sum(sum(state.movable.values()) for state in few if not state.removable_bucket)

    # --- replicas that drain ---

    def leave_draining(self, spare: int, find: Find, now: float) -> Iterator[str]:
        """Choose streams of draining replicas for which others have free seats, of which `spare` are light ones that
        calls without a floor may take; yields their ids."""
        light_room = self._doors.ready - self.leaving_express
        for state in list(islice(self._doors.draining_movable.values(), LOOKED_AT)):
            before = self.leaving_express
            yield from self._leave(state, list(state.movable_express), light_room, find, now)
            taken = self.leaving_express - before
            light_room -= taken
            spare = min(spare - taken, light_room)
            yield from self._leave(state, list(state.movable), self._free() + max(0, spare), find, now)
            self._doors.place(state, now)

    def _leave(self, state: ReplicaState, calls: list[str], room: int, find: Find, now: float) -> Iterator[str]:
        """Take those of the calls off that have seats elsewhere, in at most `room` seats."""
        misses = 0
        for call_id in calls:
            stream = state.aboard[call_id]
            if room <= 0 or misses == MISSES:
                return
            if stream.call.choices > room or not self._has_seat(state, stream, find, now):
                misses += 1
                continue
            room -= stream.call.choices
            self._take_off(call_id, state)
            yield call_id

    def _has_seat(self, state: ReplicaState, stream: Stream, find: Find, now: float) -> bool:
        """Whether a replica has seats for the call, and memory for it and all that are on their way."""
        tokens = round(state.read_again(stream.call.id, now))
        found = find(replace(stream.call, prompt_tokens=tokens), stream.floor_tps, frozenset(), now)
        if found is None:
            return False
        budget = found.replica.kv_tokens
        return not budget or found.kv_taken + self._leaving_kv + stream.kv_tokens <= budget

    # --- counts ---

    def _take_off(self, call_id: str, state: ReplicaState) -> None:
        self._count(state.take_off(call_id), +1)

    def _count(self, stream: Stream, change: int) -> None:
        seats = change * stream.call.choices
        self.leaving += seats
        self.leaving_express += seats if stream.floor_tps else 0
        self._leaving_kv += change * stream.kv_tokens
