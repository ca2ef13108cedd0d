"""Queues of replicas in buckets by a small number, and by rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from typing import Final

from headway.core.replicas import ReplicaState

LOOKED_AT: Final = 4  # replicas of a bucket, if the first cannot take a call
NOBODY: Final[Set[str]] = frozenset()


class BucketQueue:
    """Replicas in buckets by a small number. A bit mask finds the lowest and the highest non-empty bucket."""

    def __init__(self) -> None:
        self._buckets: list[OrderedDict[str, ReplicaState]] = []
        self._mask = 0

    def __contains__(self, state: ReplicaState) -> bool:
        """Searches all buckets. Only for invariants.py."""
        return any(state is one for replicas in self._buckets for one in replicas.values())

    def __bool__(self) -> bool:
        return self._mask != 0

    def put(self, state: ReplicaState, bucket: int) -> None:
        while len(self._buckets) <= bucket:
            self._buckets.append(OrderedDict())
        replicas = self._buckets[bucket]
        if not replicas:
            self._mask |= 1 << bucket
        replicas[state.replica.name] = state

    def take(self, state: ReplicaState, bucket: int) -> None:
        replicas = self._buckets[bucket]
        del replicas[state.replica.name]
        if not replicas:
            self._mask &= ~(1 << bucket)

    def lowest(self, avoid: Set[str], least: int = 0) -> ReplicaState | None:
        """The first replica, not in `avoid`, of the lowest non-empty bucket that is at least `least`."""
        mask = self._mask >> least << least
        while mask:
            for state in self._buckets[(mask & -mask).bit_length() - 1].values():
                if not avoid or state.replica.name not in avoid:
                    return state
            mask &= mask - 1
        return None

    def from_lowest(self) -> Iterator[ReplicaState]:
        mask = self._mask
        while mask:
            yield from self._buckets[(mask & -mask).bit_length() - 1].values()
            mask &= mask - 1

    def from_highest(self, avoid: Set[str], least: int = 0) -> Iterator[ReplicaState]:
        """A few replicas, not in `avoid`, of each bucket, from the highest down to `least`."""
        mask = self._mask >> least << least
        while mask:
            number = mask.bit_length() - 1
            looked_at = 0
            for state in self._buckets[number].values():
                if not avoid or state.replica.name not in avoid:
                    yield state
                    looked_at += 1
                    if looked_at == LOOKED_AT:
                        break
            mask ^= 1 << number


class RankedQueue:
    """The same for each rank; the lowest rank comes first. A replica keeps its rank while it is in the queue."""

    def __init__(self) -> None:
        self.ranks: list[BucketQueue] = [BucketQueue()]

    def __contains__(self, state: ReplicaState) -> bool:
        """Searches all buckets. Only for invariants.py."""
        return any(state in queue for queue in self.ranks)

    def __bool__(self) -> bool:
        return any(queue for queue in self.ranks)

    def put(self, state: ReplicaState, bucket: int) -> None:
        while len(self.ranks) <= state.rank:
            self.ranks.append(BucketQueue())
        self.ranks[state.rank].put(state, bucket)

    def take(self, state: ReplicaState, bucket: int) -> None:
        self.ranks[state.rank].take(state, bucket)

    def lowest(self, avoid: Set[str], least: int = 0) -> ReplicaState | None:
        for queue in self.ranks:
            if (state := queue.lowest(avoid, least)) is not None:
                return state
        return None

    def lowest_of_last(self) -> ReplicaState | None:
        """The same, but the highest rank comes first."""
        for queue in reversed(self.ranks):
            if (state := queue.lowest(NOBODY)) is not None:
                return state
        return None

    def lowest_of_all(self, avoid: Set[str]) -> ReplicaState | None:
        """Of any rank, by the buckets alone; of several the one of the highest rank."""
        if len(self.ranks) == 1:
            return self.ranks[0].lowest(avoid)
        best: ReplicaState | None = None
        for queue in reversed(self.ranks):
            state = queue.lowest(avoid)
            if state is not None and (best is None or state.bucket < best.bucket):
                best = state
        return best

    def from_lowest(self) -> Iterator[ReplicaState]:
        for queue in self.ranks:
            yield from queue.from_lowest()

    def from_highest(self, avoid: Set[str], least: int = 0) -> Iterator[ReplicaState]:
        for queue in self.ranks:
            yield from queue.from_highest(avoid, least)
