"""The simulator: drives the same machine as the live gateway, with a heap of event times instead of a clock.

It sends arrivals, completions, ticks and faults to core/machine.py and applies the actions to replicas in virtual time.
The same inputs give exactly the same run. It makes no policy decisions. Here core is called directly, as in a gateway
of one process; dispatched.py puts the link to a dispatcher between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from headway.core.machine import Machine
from headway.core.progress import LOOK_S, StreamProgress
from headway.core.types import (
    MIN_TOKENS_FOR_PROMISE,
    TICK_S,
    Action,
    Arrived,
    Board,
    Call,
    Cut,
    Delivering,
    Downgrade,
    Event,
    Failed,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Preempt,
    Refuse,
    Replica,
    ReplicaBehind,
    ReplicaDown,
    ReplicaRecovered,
    ReplicaUp,
    Ticked,
    Tier,
    own_pools,
)
from headway.sim.engine import SimReplica
from headway.sim.noise import Noise

How = Literal["finished", "refused", "cut"]


@dataclass(slots=True)
class Job:
    """A call to simulate: when it arrives and how many tokens each of its choices takes."""

    at: float
    call: Call
    tokens: int


@dataclass(slots=True)
class SimTrip:
    """The result of a job."""

    job: Job
    tier: Tier  # as served
    relay: int = 0
    downgraded_at: float | None = None
    boarded_at: float | None = None
    first_at: float = 0.0
    ended_at: float | None = None
    how: How = "finished"

    @property
    def speed_tps(self) -> float:
        """(tokens - 1) / (time of last token - time of first token): the speed that a floor promises."""
        assert self.ended_at is not None
        return (self.job.tokens - 1) / max(1e-9, self.ended_at - self.first_at)

    @property
    def refused(self) -> bool:
        return self.how == "refused"

    @property
    def waited_s(self) -> float:
        return (self.boarded_at if self.boarded_at is not None else self.job.at) - self.job.at


@dataclass(slots=True)
class Fault:
    """A replica dies and comes back, or its steps take `slowness` times as long for a while."""

    at: float
    replica: str
    lasts_s: float
    slowness: float | None = None  # None if it dies


class Message:
    """Something that arrives at its time in the heap (messages.py)."""


class Simulation:
    def __init__(
        self,
        policies: dict[str, ModelPolicy],
        replicas: list[Replica],
        first_token_s: float = 0.0,
        faults: tuple[Fault, ...] = (),
        noise: Noise | None = None,
        cells: int = 1,
    ) -> None:
        self.now = 0.0
        self._policies = policies
        self.machines = [Machine(*own_pools(policies)) for _ in range(cells)]
        self.trips: dict[str, SimTrip] = {}
        self._known = {replica.name: replica for replica in replicas}
        self._first_token_s = first_token_s
        self._replicas: dict[str, SimReplica] = {}
        self._aboard: dict[str, SimReplica] = {}  # by call
        # Time, order, and the event: a replica's event and the version for which it is valid; the first token of a flex
        # call; a message; or None if a held call has its deadline.
        self._heap: list[tuple[float, int, SimReplica | str | Message | None, int]] = []
        self._order = count()
        self._faults: list[tuple[float, int, Fault, bool]] = []  # and whether it ends
        self._down: set[str] = set()  # replicas that are dead
        self._noise = noise
        self._progress: dict[str, StreamProgress] = {}  # of the calls aboard that have a floor
        self._behind: set[str] = set()  # replicas on which one falls behind
        # A replica as fast as its curve keeps every floor; then nobody needs to look.
        self._is_watched = noise is not None or any(one.slowness for one in faults)
        for number, fault in enumerate(faults):
            heappush(self._faults, (fault.at, number, fault, False))
        for name in self._known:
            self._start(name)

    @property
    def aboard(self) -> int:
        """The number of calls aboard."""
        return len(self._aboard)

    @property
    def over_limit(self) -> int:
        """Calls that boarded a replica beyond what a floor aboard allows, by the replicas' own counts."""
        return sum(replica.over_limit for replica in self._replicas.values())

    def run(self, jobs: Iterator[Job], until: float) -> Iterator[SimTrip]:
        """Simulate the jobs, which must be in order of time; yields each trip when it ends."""
        next_job = next(jobs, None)
        next_tick = TICK_S
        next_look = 0.0 if self._is_watched else until
        heap, faults = self._heap, self._faults
        while True:
            at = heap[0][0] if heap else until
            if next_job is not None and next_job.at < at:
                at = next_job.at
            at = min(at, next_tick, next_look, faults[0][0] if faults else until)
            if at >= until or (next_job is None and not self.trips):
                return
            self.now = at
            if heap and heap[0][0] <= at:
                yield from self._due()
            elif next_job is not None and next_job.at <= at:
                yield from self.arrive(next_job)
                next_job = next(jobs, None)
            elif faults and faults[0][0] <= at:
                yield from self._fault()
            elif next_look <= at:
                next_look += LOOK_S
                yield from self._look()
            else:
                next_tick += TICK_S
                yield from self._tick()

    def arrive(self, job: Job) -> list[SimTrip]:
        """The job arrives now. Returns the trips that end because of this."""
        self.trips[job.call.id] = SimTrip(job, job.call.tier)
        return self._step(0, Arrived(job.call))

    # What dispatched.py does in another way.

    def _step(self, relay: int, event: Event) -> list[SimTrip]:  # noqa: ARG002 (there is one)
        """The relay tells what happened. Returns the trips that end because of this."""
        return self._do_all(self.machines[0].step(event, self.now))

    def _tick(self) -> list[SimTrip]:
        return self._step(0, Ticked())

    def _prober(self, name: str) -> int:  # noqa: ARG002 (there is one)
        """The relay that watches over the replica."""
        return 0

    def _replica_dies(self, name: str) -> list[SimTrip]:
        return self._step(self._prober(name), ReplicaDown(name))

    def _delivered(self, message: Message) -> list[SimTrip]:
        raise NotImplementedError

    def _due(self) -> list[SimTrip]:
        _, _, replica, version = heappop(self._heap)
        if replica is None:
            return self._step(0, Ticked())
        if isinstance(replica, str):
            if replica in self._aboard and (flex := self.trips[replica]).first_at <= self.now:
                return self._step(flex.relay, Delivering(replica))
            return []
        if isinstance(replica, Message):
            return self._delivered(replica)
        if version != replica.version:
            return []
        call_id = replica.due(self.now)
        self._expect(replica)
        if call_id is None:
            return []
        del self._aboard[call_id]
        self._progress.pop(call_id, None)
        trip = self.trips.pop(call_id)
        trip.ended_at = self.now
        job = trip.job
        speed_tps = trip.speed_tps if job.tokens >= MIN_TOKENS_FOR_PROMISE else None
        return [trip, *self._step(trip.relay, Finished(call_id, job.call.prompt_tokens, job.tokens, speed_tps))]

    def _do_all(self, actions: list[Action]) -> list[SimTrip]:
        """Apply the actions of one step. Calls are taken off last: core then acts again and needs every Board done."""
        ended: list[SimTrip] = []
        taken_off: list[Action] = []
        for action in actions:
            if isinstance(action, (Cut, Preempt)):
                taken_off.append(action)
            elif (trip := self.trips.get(action.call_id)) is not None:
                self._do(action, trip, ended)
        for action in taken_off:
            if (trip := self.trips.get(action.call_id)) is not None:
                self._do(action, trip, ended)
        return ended

    def _do(self, action: Action, trip: SimTrip, ended: list[SimTrip]) -> None:
        match action:
            case Board(replica=name, tier=tier, floor_tps=floor_tps):
                replica = self._aboard[action.call_id] = self._replicas[name]
                trip.boarded_at, trip.tier = self.now, tier
                call, tokens = trip.job.call, trip.job.tokens
                trip.first_at = replica.board(call.id, call.prompt_tokens, tokens, self.now, call.choices, floor_tps)
                self._expect(replica)
                if floor_tps and self._is_watched:
                    self._progress[call.id] = StreamProgress(floor_tps)
                if tier == "flex":  # preemptible until its first token; core does not need this event for others
                    heappush(self._heap, (trip.first_at, next(self._order), action.call_id, 0))
            case Hold(for_s=for_s):
                heappush(self._heap, (self.now + for_s, next(self._order), None, 0))
            case Downgrade():
                trip.tier, trip.downgraded_at = "standard", self.now
            case Refuse():
                trip.how = "refused"
                trip.ended_at = self.now
                ended.append(self.trips.pop(action.call_id))
            case Preempt() | Cut():
                ended += self._take_off(action.call_id, trip, is_preempted=isinstance(action, Preempt))

    def _take_off(self, call_id: str, trip: SimTrip, *, is_preempted: bool) -> list[SimTrip]:
        """Take the call off its replica. If it has no token yet, it may board another."""
        replica = self._aboard.pop(call_id)
        self._progress.pop(call_id, None)
        replica.leave(call_id, self.now)
        self._expect(replica)
        if is_preempted or self.now < trip.first_at:
            trip.boarded_at = None
            return self._step(trip.relay, Failed(call_id, "preempted" if is_preempted else "waiting"))
        trip.how, trip.ended_at = "cut", self.now
        del self.trips[call_id]
        return [trip, *self._step(trip.relay, Left(call_id))]

    # --- floors of running streams ---

    def _look(self) -> list[SimTrip]:
        """Look at the streams with a floor, as gateway/floors.py does, and let the replicas' noise change."""
        if self._noise is not None:
            for name, replica in self._replicas.items():
                replica.set_noise(self._noise.factor(name, self.now), self.now)
                self._expect(replica)
        behind = {
            self._aboard[call_id].name
            for call_id, progress in self._progress.items()
            if self._is_late(call_id, progress)
        }
        changed = sorted((behind ^ self._behind) - self._down)
        self._behind = behind
        ended: list[SimTrip] = []
        for name in changed:
            event = ReplicaBehind(name) if name in behind else ReplicaRecovered(name)
            ended += self._step(self._prober(name), event)
        return ended

    def _is_late(self, call_id: str, progress: StreamProgress) -> bool:
        trip, left = self.trips[call_id], self._aboard[call_id].tokens_left(call_id, self.now)
        if left is None or self.now <= trip.first_at:
            return False
        return progress.falls_behind(trip.job.tokens - left, trip.first_at, self.now, self.now)

    # --- replicas ---

    def _start(self, name: str) -> list[SimTrip]:
        known = self._known[name]
        assert known.curve is not None
        self._replicas[name] = SimReplica(name, known.curve, known.prompt_tps, self._first_token_s)
        return self._step(self._prober(name), ReplicaUp(known))

    # --- faults ---

    def _fault(self) -> list[SimTrip]:
        _, number, fault, is_over = heappop(self._faults)
        if not is_over:
            heappush(self._faults, (fault.at + fault.lasts_s, number, fault, True))
        if fault.slowness is None:
            if is_over:
                self._down.discard(fault.replica)
                return self._start(fault.replica)
            self._down.add(fault.replica)
            return self._replica_dies(fault.replica)
        replica = self._replicas[fault.replica]
        replica.slow_down(1.0 if is_over else fault.slowness, self.now)
        self._expect(replica)
        return []

    def _expect(self, replica: SimReplica) -> None:
        at = replica.next_event()
        if at is not None:
            heappush(self._heap, (at, next(self._order), replica, replica.version))
