"""Watches the streams with a floor while they run, and tells core of replicas on which one falls behind.

Core is told when that begins and when it is over: at most once in each LOOK_S for each replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.core.progress import LOOK_S, StreamProgress
from headway.core.types import Event, ReplicaBehind, ReplicaRecovered
from headway.gateway.trip import Trip


@dataclass(slots=True)
class _WatchedStream:
    trip: Trip
    progress: StreamProgress


class FloorWatch:
    def __init__(self, tell: Callable[[Event], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._streams: dict[str, _WatchedStream] = {}  # by call
        self._behind: set[str] = set()  # replicas

    @contextmanager
    def watching(self, trip: Trip) -> Iterator[None]:
        """While the trip's answer is read. Nothing is watched if it has no floor, or is behind because it has moved."""
        if not trip.grant.floor_tps or trip.moves:
            yield
            return
        self._streams[trip.call.id] = _WatchedStream(trip, StreamProgress(trip.grant.floor_tps))
        try:
            yield
        finally:
            del self._streams[trip.call.id]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        now = self._clock()
        behind = {one.trip.grant.replica for one in self._streams.values() if _falls_behind(one, now)}
        changed = behind ^ self._behind
        self._behind = behind
        for name in sorted(changed):
            self._tell(ReplicaBehind(name) if name in behind else ReplicaRecovered(name))


def _falls_behind(watched: _WatchedStream, now: float) -> bool:
    """Of several choices the longest counts: others may have ended. A stream whose tokens the engine does not count, or
    whose client reads slowly, says nothing."""
    meter = watched.trip.meter
    if meter.first_at is None or meter.last_at is None or meter.is_final:
        return False
    if not meter.has_usage or watched.trip.reader_was_slow:
        return False
    return watched.progress.falls_behind(max(meter.usage().outputs), meter.first_at, meter.last_at, now)
