"""The doors of a pool's replicas: which are open, which of them are light, and how many seats are free.

A replica is *light* while it takes no streams beyond its light seats (the largest batch that keeps a floor), otherwise
*heavy*. A replica that is not open takes no calls; it stays light only while it carries a stream with a floor. The
standard share limits how many replicas may be light.

This module does not decide which call boards next. Every change of a replica ends with `place`, which updates the
queues and the counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from itertools import islice
from typing import Final

from headway.core.replica_queues import NOBODY, BucketQueue, RankedQueue
from headway.core.replicas import ReplicaState

LOOKED_AT: Final = 8  # replicas that are compared, at most


class Doors:
    def __init__(self, standard_share: float, *, moves_streams: bool = False) -> None:
        self.replicas: dict[str, ReplicaState] = {}
        self.open_replicas = 0
        self.light_replicas = 0  # except those that are draining
        self.light_seats = 0  # of light replicas, taken or free
        self.emptying_seats = 0  # of these, not taken by express streams and not usable before other streams have left
        self.ready = 0  # free seats of open light replicas that do not retire
        self.free_heavy = 0  # free seats of open heavy replicas
        # Heavy, open and with a free seat, by load: those that could be light, and those that cannot keep any floor
        # because they have no curve or are too slow. Two queues, so that neither is searched past the others.
        self.heavy = RankedQueue()
        self.never_light = BucketQueue()
        self.heavy_by_free = BucketQueue()  # heavy and open, by free seats; full ones are in bucket 0
        self.light = RankedQueue()  # light, open, not retiring, with a free light seat, by free seats
        self.retiring = RankedQueue()  # retiring and open, by free seats
        self.retiring_by_express = RankedQueue()  # the same, by the seats that streams with a floor take
        self.free_retiring = 0  # free light seats of open replicas that retire
        self._by_express = RankedQueue()  # light, open, not retiring, with express streams aboard, by their seats
        # Light, open, not retiring, with a call that may make way for one with a floor, by how many streams must leave
        # before a seat is free.
        self.removable = BucketQueue()
        self.coming = 0  # light seats that will be free when the calls that are being preempted have left
        self.idle_light = RankedQueue()  # light, open, no express stream aboard; all in bucket 0
        self.full_heavy = RankedQueue()  # heavy, open and full, and could be light; all in bucket 0
        self.draining: set[str] = set()
        self.draining_movable: OrderedDict[str, ReplicaState] = OrderedDict()  # draining, with calls that may leave
        self.standard_share = standard_share
        self.moves_streams = moves_streams
        self._placed = 0

    # --- replicas come and go ---

    @property
    def known_replicas(self) -> int:
        """The number of replicas that a call can wait for: open, or closed after a failure."""
        return len(self.replicas) - len(self.draining)

    def open(self, state: ReplicaState, now: float) -> None:
        state.draining = False
        self.draining.discard(state.replica.name)
        self._set_open(state, now, value=True)

    def close(self, state: ReplicaState, now: float) -> None:
        self._set_open(state, now, value=False)

    def drain(self, state: ReplicaState, now: float) -> None:
        state.draining = True
        self.draining.add(state.replica.name)
        self._set_open(state, now, value=False)

    def remove(self, state: ReplicaState, now: float) -> None:
        """Remove the replica. Streams aboard are no longer counted."""
        name = state.replica.name
        self.close(state, now)
        self.set_light(state, now, value=False)
        self._count_light(state)
        self.draining.discard(name)
        self.draining_movable.pop(name, None)
        del self.replicas[name]

    def _set_open(self, state: ReplicaState, now: float, *, value: bool) -> None:
        if state.open != value:
            state.open = value
            self.open_replicas += 1 if value else -1
        self.place(state, now)

    # --- light and heavy ---

    @property
    def max_light_replicas(self) -> int:
        """The number that the standard share allows. A single open replica cannot be divided, so it may be light."""
        if self.open_replicas == 1:
            return 1
        return int(self.open_replicas * (1.0 - self.standard_share) + 1e-9)

    @property
    def may_another_be_light(self) -> bool:
        return self.light_replicas < self.max_light_replicas

    def emptiest(self, avoid: Set[str]) -> ReplicaState | None:
        """The emptiest heavy replica, or of several the one that was placed first; None if none has a free seat."""
        one, other = self.heavy.lowest_of_all(avoid), self.never_light.lowest(avoid)
        if one is None or other is None:
            return one or other
        return one if (one.bucket, one.placed) < (other.bucket, other.placed) else other

    def provide(self, wanted: int, now: float) -> None:
        """Make replicas light or heavy until there are as many light seats, taken or ready, as wanted, if possible."""
        while self.light_seats - self.emptying_seats < wanted:
            if (state := self._next_called_back()) is None:
                break
            state.retiring = False
            self.place(state, now)
        while self.light_seats < wanted and self.may_another_be_light:
            if (state := self._next_light()) is None:
                break
            self.set_light(state, now, value=True)
            self.place(state, now)
        while (state := self.idle_light.lowest_of_last()) is not None:
            spare = self.light_seats - state.light_seats >= wanted
            if not spare and self.light_replicas <= self.max_light_replicas:
                break
            self.set_light(state, now, value=False)
            self.place(state, now)
        while (least := self._by_express.lowest_of_last()) is not None:
            if self.light_seats - self.emptying_seats - least.light_seats < wanted:
                break
            least.retiring = True
            self.place(least, now)

    def _next_called_back(self) -> ReplicaState | None:
        """The retiring replica that takes express calls again: the one with the most free seats, or if those of other
        calls can be had at once, the one that would have been light for longest."""
        queue = self.retiring_by_express if self.moves_streams else self.retiring
        return next(queue.from_highest(NOBODY), None)

    def _next_light(self) -> ReplicaState | None:
        """The heavy replica whose doors are closed next: the emptiest one of the lowest rank. If its streams can move,
        of a few it is the one with the fewest streams that cannot, then the fewest that must leave, then the least that
        they read again."""
        if not self.moves_streams:
            return next(self._could_be_light(), None)
        return min(islice(self._could_be_light(), LOOKED_AT), key=_cost_of_emptying, default=None)

    def _could_be_light(self) -> Iterator[ReplicaState]:
        for rank in range(max(len(self.heavy.ranks), len(self.full_heavy.ranks))):
            for queue in (self.heavy, self.full_heavy):
                if rank < len(queue.ranks):
                    yield from queue.ranks[rank].from_lowest()

    def set_rank(self, state: ReplicaState, rank: int, now: float) -> None:
        if state.rank != rank:
            self._take_out(state)
            state.rank = rank
            self.place(state, now)

    def set_light(self, state: ReplicaState, now: float, *, value: bool) -> None:
        """The caller must call `place` afterwards."""
        if state.light != value:
            state.advance(now)
            state.light = value

    def place(self, state: ReplicaState, now: float) -> None:
        """Put the replica into the queues it belongs to and count its seats. Needed after every change of a replica."""
        self._take_out(state)
        if state.light and not state.express_seats and (state.retiring or not (state.open and state.light_seats)):
            self.set_light(state, now, value=False)
        state.retiring = state.retiring and state.light
        if state.light or state.counted_seats or state.counted_replicas:
            self._count_light(state)
        if state.draining and (state.movable or state.movable_express):
            self.draining_movable[state.replica.name] = state
        elif self.draining_movable:
            self.draining_movable.pop(state.replica.name, None)
        if not state.open:
            return
        state.free = max(0, state.limit - state.load)
        if state.light:
            state.is_among_light = True
            state.is_among_retiring = state.retiring
            if state.retiring:
                self.free_retiring += state.free
                self.retiring.put(state, state.free)
                self.retiring_by_express.put(state, state.express_seats)
                state.retiring_bucket = state.express_seats
            elif state.free:
                self.light.put(state, state.free)
                self.ready += state.free
            state.express_bucket = 0 if state.retiring else state.express_seats
            if state.express_bucket:
                self._by_express.put(state, state.express_bucket)
            if not state.retiring:
                self._place_removable(state)
            if not state.express_seats:
                state.is_idle_light = True
                self.idle_light.put(state, 0)
        else:
            state.is_among_heavy = True
            self.heavy_by_free.put(state, state.free)
            if state.free:
                self._placed += 1
                state.bucket, state.placed = state.load, self._placed
                state.is_never_light = not state.light_seats
                (self.never_light if state.is_never_light else self.heavy).put(state, state.bucket)
                self.free_heavy += state.free
            elif state.light_seats:
                state.is_full_heavy = True
                self.full_heavy.put(state, 0)

    def _place_removable(self, state: ReplicaState) -> None:
        state.is_among_removable = bool(state.flex or (self.moves_streams and state.movable))
        if state.is_among_removable:
            state.removable_bucket = max(0, state.staying - state.limit)
            self.removable.put(state, state.removable_bucket)
        if state.leaving:
            state.counted_coming = max(0, state.limit - state.staying) - state.free
            self.coming += state.counted_coming

    def _take_out(self, state: ReplicaState) -> None:
        if state.is_among_heavy:
            state.is_among_heavy = False
            self.heavy_by_free.take(state, state.free)
            if state.free:
                (self.never_light if state.is_never_light else self.heavy).take(state, state.bucket)
                self.free_heavy -= state.free
            elif state.is_full_heavy:
                state.is_full_heavy = False
                self.full_heavy.take(state, 0)
        elif state.is_among_light:
            state.is_among_light = False
            if state.is_among_retiring:
                self.free_retiring -= state.free
                self.retiring.take(state, state.free)
                self.retiring_by_express.take(state, state.retiring_bucket)
            elif state.free:
                self.light.take(state, state.free)
                self.ready -= state.free
            if state.express_bucket:
                self._by_express.take(state, state.express_bucket)
            if state.is_among_removable:
                state.is_among_removable = False
                self.removable.take(state, state.removable_bucket)
            self.coming -= state.counted_coming
            state.counted_coming = 0
            if state.is_idle_light:
                state.is_idle_light = False
                self.idle_light.take(state, 0)
        state.free = 0

    def _count_light(self, state: ReplicaState) -> None:
        """Update the counts of light replicas and light seats. A draining replica takes no calls: only the seats taken
        by its express streams are counted, and another replica may be light in its place. The same for a replica that
        retires; but if streams move, those seats should be had elsewhere, so that it need not stay light for them."""
        replicas = seats = emptying = 0
        if state.light:
            replicas = 0 if state.draining else 1
            seats = state.light_seats
            if state.draining or state.retiring:
                seats = 0 if state.retiring and self.moves_streams else state.express_seats
            emptying = max(0, seats - state.express_seats) if state.load > state.light_seats else 0
        self.emptying_seats += emptying - state.counted_emptying
        state.counted_emptying = emptying
        self.light_replicas += replicas - state.counted_replicas
        self.light_seats += seats - state.counted_seats
        state.counted_replicas, state.counted_seats = replicas, seats


def _cost_of_emptying(state: ReplicaState) -> tuple[int, int, int, int]:
    fixed = state.load - sum(state.movable.values())
    return state.rank, max(0, fixed - state.light_seats), max(0, state.load - state.light_seats), state.context
