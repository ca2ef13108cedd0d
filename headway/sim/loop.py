"""The simulator: a heap of times where the gateway has a clock, around the very machine that serves.

Drives core/machine.py with arrivals, completions and ticks, and does what it says on replicas in virtual time. The same
inputs give the same run, to the last digit. Policy is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from headway.core.machine import Machine
from headway.core.types import (
    Action,
    Arrived,
    Board,
    Call,
    Downgrade,
    Finished,
    Hold,
    Refuse,
    Replica,
    ReplicaUp,
    Ticked,
    Tier,
)
from headway.sim.engine import SimReplica

TICK_S = 1.0


@dataclass(slots=True)
class Job:
    """A call to simulate: when it comes and how many tokens it takes."""

    at: float
    call: Call
    tokens: int


@dataclass(slots=True)
class Trip:
    """What became of a job."""

    job: Job
    tier: Tier  # as served
    boarded_at: float | None = None
    ended_at: float | None = None
    refused: bool = False

    @property
    def speed_tps(self) -> float:
        assert self.boarded_at is not None
        assert self.ended_at is not None
        return self.job.tokens / max(1e-9, self.ended_at - self.boarded_at)

    @property
    def waited_s(self) -> float:
        return (self.boarded_at if self.boarded_at is not None else self.job.at) - self.job.at


class Simulation:
    def __init__(self, machine: Machine, replicas: list[Replica]) -> None:
        self.now = 0.0
        self.machine = machine
        self.trips: dict[str, Trip] = {}
        self._replicas: dict[str, SimReplica] = {}
        self._heap: list[tuple[float, int, str, int]] = []  # time, order, replica or "", its version
        self._order = count()
        for replica in replicas:
            assert replica.curve is not None
            self._replicas[replica.name] = SimReplica(replica.name, replica.curve)
            self._do_all(machine.step(ReplicaUp(replica), 0.0))

    def run(self, jobs: Iterator[Job], until: float) -> Iterator[Trip]:
        """Play the jobs, which come in order of time; yields each trip when it ends."""
        next_job = next(jobs, None)
        next_tick = TICK_S
        while True:
            at = min(next_tick, next_job.at if next_job else until, self._heap[0][0] if self._heap else until)
            if at >= until:
                return
            self.now = at
            if self._heap and self._heap[0][0] <= at:
                yield from self._complete()
            elif next_job is not None and next_job.at <= at:
                yield from self._arrive(next_job)
                next_job = next(jobs, None)
            else:
                next_tick += TICK_S
                yield from self._do_all(self.machine.step(Ticked(), at))

    def _arrive(self, job: Job) -> list[Trip]:
        self.trips[job.call.id] = Trip(job, job.call.tier)
        return self._do_all(self.machine.step(Arrived(job.call), self.now))

    def _complete(self) -> list[Trip]:
        _, _, name, version = heappop(self._heap)
        if not name:
            return self._do_all(self.machine.step(Ticked(), self.now))
        replica = self._replicas[name]
        if version != replica.version:
            return []
        call_id = replica.finish(self.now)
        self._expect(replica)
        trip = self.trips.pop(call_id)
        trip.ended_at = self.now
        return [trip, *self._do_all(self.machine.step(Finished(call_id, 0, trip.job.tokens, trip.speed_tps), self.now))]

    def _do_all(self, actions: list[Action]) -> list[Trip]:
        ended = []
        for action in actions:
            trip = self.trips.get(action.call_id)
            if trip is None:
                continue
            match action:
                case Board(replica=name, tier=tier):
                    trip.boarded_at, trip.tier = self.now, tier
                    replica = self._replicas[name]
                    replica.board(action.call_id, trip.job.tokens, self.now)
                    self._expect(replica)
                case Hold(until=until):
                    heappush(self._heap, (until, next(self._order), "", 0))
                case Downgrade():
                    trip.tier = "standard"
                case Refuse():
                    trip.refused = True
                    trip.ended_at = self.now
                    ended.append(self.trips.pop(action.call_id))
        return ended

    def _expect(self, replica: SimReplica) -> None:
        at = replica.next_completion()
        if at is not None:
            heappush(self._heap, (at, next(self._order), replica.name, replica.version))
