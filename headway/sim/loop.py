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
    Stage,
    Ticked,
    Tier,
    own_pools,
)
from headway.sim.engine import SimReplica
from headway.sim.noise import Noise

How = Literal["finished", "refused", "cut"]
SEAT_RELEASE_S = 0.1  # an engine stops a stream so long after its driver stopped reading (gateway/replicas.py)


@dataclass(slots=True)
class Job:
    """A call to simulate: when it arrives and how many tokens each of its choices takes."""

    at: float
    call: Call
    tokens: int
    blocks: tuple[int, ...] = ()  # of the prompt: two prompts with the same block are the same up to its end


@dataclass(slots=True)
class SimTrip:
    """The result of a job. A stream that was moved has boarded several replicas; `boarded_at` and `first_at` are of the
    first, so that its speed includes the pauses."""

    job: Job
    tier: Tier  # as served
    relay: int = 0
    downgraded_at: float | None = None
    boarded_at: float | None = None
    first_at: float = 0.0
    ended_at: float | None = None
    how: How = "finished"
    moves: int = 0
    paused_s: float = 0.0  # between the last token of one replica and the first of the next, all pauses
    given: int = 0  # tokens of each choice, when it left the last replica
    given_at: float = 0.0  # when that was
    resumed_at: float = 0.0  # of the first token of this replica
    is_leaving: bool = False  # its engine has not stopped it yet

    @property
    def has_begun(self) -> bool:
        """Whether it has left a replica that gave it tokens."""
        return self.given > 0

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


@dataclass(slots=True)
class Released(Message):
    """An engine has stopped a stream that left it."""

    trip: SimTrip
    moves: int  # when it left


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
        self.replicas: dict[str, SimReplica] = {}
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
        return sum(replica.over_limit for replica in self.replicas.values())

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
        if isinstance(replica, Released):
            return self._released(replica)
        if isinstance(replica, Message):
            return self._delivered(replica)
        if version != replica.version:
            return []
        call_id = replica.due(self.now)
        self._expect(replica)
        if call_id is None or self.trips[call_id].is_leaving:
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
                self._board(trip, name, tier, floor_tps)
            case Hold(for_s=for_s):
                heappush(self._heap, (self.now + for_s, next(self._order), None, 0))
            case Downgrade():
                trip.tier, trip.downgraded_at = "standard", self.now
            case Refuse():
                trip.how = "cut" if trip.has_begun else "refused"
                trip.ended_at = self.now
                ended.append(self.trips.pop(action.call_id))
            case Preempt():
                self._preempt(trip)
            case Cut():
                ended += self._lose(trip)

    def _board(self, trip: SimTrip, name: str, tier: Tier, floor_tps: float) -> None:
        """The replica reads the prompt with what was given before, and gives the rest."""
        replica = self._aboard[trip.job.call.id] = self.replicas[name]
        trip.tier, call = tier, trip.job.call
        prompt_tokens, tokens = call.prompt_tokens + trip.given, trip.job.tokens - trip.given
        blocks = trip.job.blocks
        trip.resumed_at = replica.board(call.id, prompt_tokens, tokens, self.now, call.choices, floor_tps, blocks)
        if trip.has_begun:
            trip.paused_s += trip.resumed_at - trip.given_at
        else:
            trip.boarded_at, trip.first_at = self.now, trip.resumed_at
        self._expect(replica)
        if floor_tps and self._is_watched:
            self._progress[call.id] = StreamProgress(floor_tps)
        if tier == "flex" and not call.is_continuable:  # preemptible until its first token
            heappush(self._heap, (trip.first_at, next(self._order), call.id, 0))

    def _preempt(self, trip: SimTrip) -> None:
        """Stop reading the stream. Its engine notices later; what it gives meanwhile is lost."""
        self._count_given(trip)
        trip.is_leaving = True
        trip.moves += 1
        heappush(self._heap, (self.now + SEAT_RELEASE_S, next(self._order), Released(trip, trip.moves), 0))

    def _released(self, released: Released) -> list[SimTrip]:
        trip = released.trip
        if not trip.is_leaving or trip.moves != released.moves:
            return []  # its replica died meanwhile
        self._leave(trip)
        return self._goes_on(trip, "preempted")

    def _lose(self, trip: SimTrip) -> list[SimTrip]:
        """The call's replica has died. It may board another if it has no token yet, or if it can go on."""
        is_counted, may_go_on = trip.is_leaving, self._may_go_on(trip)
        if not is_counted:
            self._count_given(trip)
        self._leave(trip)
        if may_go_on:
            trip.moves += trip.has_begun and not is_counted
            return self._goes_on(trip, "streaming" if trip.has_begun else "waiting")
        trip.how, trip.ended_at = "cut", self.now
        del self.trips[trip.job.call.id]
        return [trip, *self._step(trip.relay, Left(trip.job.call.id))]

    def _goes_on(self, trip: SimTrip, stage: Stage) -> list[SimTrip]:
        trip.boarded_at = trip.boarded_at if trip.has_begun else None
        return self._step(trip.relay, Failed(trip.job.call.id, stage, trip.given * trip.job.call.choices))

    def _may_go_on(self, trip: SimTrip) -> bool:
        return trip.job.call.is_continuable or self.now < trip.resumed_at

    def _leave(self, trip: SimTrip) -> None:
        call_id = trip.job.call.id
        replica = self._aboard.pop(call_id)
        self._progress.pop(call_id, None)
        if call_id in replica.streams:  # else it came to its end there while it was leaving
            replica.leave(call_id, self.now)
            self._expect(replica)
        trip.is_leaving = False

    def _count_given(self, trip: SimTrip) -> None:
        """What the client has now, if the replica has given the stream anything."""
        call_id = trip.job.call.id
        if (left := self._aboard[call_id].tokens_left(call_id, self.now)) is not None and self.now >= trip.resumed_at:
            trip.given = min(trip.job.tokens - 1, int(trip.job.tokens - left))
            trip.given_at = self.now

    # --- floors of running streams ---

    def _look(self) -> list[SimTrip]:
        """Look at the streams with a floor, as gateway/floors.py does, and let the replicas' noise change."""
        if self._noise is not None:
            for name, replica in self.replicas.items():
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
        if left is None or self.now <= trip.resumed_at:
            return False
        return progress.falls_behind(trip.job.tokens - trip.given - left, trip.resumed_at, self.now, self.now)

    # --- replicas ---

    def _start(self, name: str) -> list[SimTrip]:
        known = self._known[name]
        assert known.curve is not None
        self.replicas[name] = SimReplica(name, known.curve, known.prompt_tps, self._first_token_s, known.kv_tokens)
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
        replica = self.replicas[fault.replica]
        replica.slow_down(1.0 if is_over else fault.slowness, self.now)
        self._expect(replica)
        return []

    def _expect(self, replica: SimReplica) -> None:
        if (at := replica.next_event()) is not None:
            heappush(self._heap, (at, next(self._order), replica, replica.version))
