"""The simulator with dispatchers: relays tell their events over a link, and one core in each cell decides.

Events and actions take their time on the link, in order for each relay, and wait in the queue of the dispatcher's core.
A dispatcher can die. Streams run on, calls wait until their own deadlines, and its standby learns from the relays what
is aboard and held, with the events that the live one uses (dispatch/dispatcher.py, dispatch/remote.py): ReplicaKnown,
Adopted, ReplicaStrangers, ReplicaUp. A replica is open once all relays have reported and its engine was counted.

A call that finds no room in its cell, because core holds or refuses it, is handed to another cell once, if that said
that it has room.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush
from math import log

from headway.core.machine import Machine
from headway.core.types import (
    MAX_PAUSE_S,
    Action,
    Adopted,
    Arrived,
    Board,
    Call,
    Cut,
    Downgrade,
    Event,
    Failed,
    Hold,
    Left,
    ModelPolicy,
    Preempt,
    Refuse,
    Replica,
    ReplicaBehind,
    ReplicaDown,
    ReplicaKnown,
    ReplicaStrangers,
    ReplicaUp,
    Settled,
    Ticked,
    own_pools,
)
from headway.sim.cells import Cells
from headway.sim.dispatcher import DispatcherFault, DispatcherTimes, SimDispatcher, Takeover
from headway.sim.loop import Fault, Job, Message, SimTrip, Simulation
from headway.sim.messages import (
    Deadline,
    EngineCounted,
    HandedOn,
    QueueItem,
    RelayReported,
    Timer,
    ToDispatcher,
    ToRelay,
)
from headway.sim.noise import Noise

RELAYS = 64  # of each cell
ANSWER_S = 1.0  # for which a call waits for the dispatcher's word after its deadline
COUNT_S = 0.5  # between two questions to an engine that runs strangers


class DispatchedSimulation(Simulation):
    def __init__(
        self,
        policies: dict[str, ModelPolicy],
        replicas: list[Replica],
        times: DispatcherTimes,
        shares: Sequence[float] = (1.0,),
        seed: int = 0,
        first_token_s: float = 0.0,
        faults: tuple[Fault, ...] = (),
        dispatcher_faults: tuple[DispatcherFault, ...] = (),
        noise: Noise | None = None,
        summary_s: float = 0.5,
    ) -> None:
        """`shares` are the shares of the demand that come to each cell. All cells have as many replicas."""
        self.handed_on = 0
        self.unled = 0  # calls that relays refused because no dispatcher had answered
        self.takeovers: list[Takeover] = []
        count = len(shares)
        self._times = times
        self._cells = Cells(shares, seed)
        self._summary_s = summary_s
        self._dispatchers = [SimDispatcher() for _ in shares]
        self._decided = [Timer("decided", cell, 0) for cell in range(count)]
        self._chance = random.Random(f"{seed} link")
        # Every relay has one link: what is told or done later arrives later.
        self._told_at = [0.0] * (RELAYS * count)
        self._done_at = [0.0] * (RELAYS * count)
        self._is_linked = [True] * (RELAYS * count)
        self._next_relay = 0
        self._probers = {
            one.name: n % count * RELAYS + n // count % RELAYS  # of each cell's relays in turn
            for n, one in enumerate(replicas)
        }
        self._deadlines: dict[str, float] = {}  # of the calls that are held
        self._was_handed_on: set[str] = set()
        self._between_cells: set[str] = set()
        super().__init__(policies, replicas, first_token_s, faults, noise, count)
        for cell in range(count):
            self._know_replicas(cell)
        for fault in dispatcher_faults:
            self._push(fault.at, Timer("dies", fault.cell, 0, fault.takeover_s))
        if count > 1:
            self._push(0.0, Timer("summary", 0, 0))

    def _push(self, at: float, message: Message) -> None:
        heappush(self._heap, (at, next(self._order), message, 0))

    def _delivered(self, message: Message) -> list[SimTrip]:
        if isinstance(message, ToDispatcher):
            if message.epoch == self._dispatchers[message.cell].epoch:
                self._dispatchers[message.cell].queue.extend(message.items)
                self._go_on(message.cell)
            return []
        if isinstance(message, ToRelay):
            return self._obey(message.cell, message.action)
        if isinstance(message, Deadline):
            return self._deadline(message)
        if isinstance(message, HandedOn):
            self._between_cells.discard(message.trip.job.call.id)
            return self._step(message.trip.relay, Arrived(_as_served(message.trip)))
        assert isinstance(message, Timer)
        return self._due_now(message)

    def _due_now(self, timer: Timer) -> list[SimTrip]:
        what, number = timer.what, timer.number
        if what == "dies":
            self._die(number, timer.takeover_s)
        elif what == "summary":
            for cell, dispatcher in enumerate(self._dispatchers):
                self._cells.tell(cell, self.machines[cell] if dispatcher.is_alive else None, self.now)
            self._push(self.now + self._summary_s, timer)
        elif what in ("connects", "counts"):
            if timer.epoch == self._dispatchers[number // RELAYS].epoch:
                self._report(number) if what == "connects" else self._count(number)
        elif timer.epoch == self._dispatchers[number].epoch:
            self._decide(number) if what == "decided" else self._take_over(number)
        return []

    # --- a relay ---

    def arrive(self, job: Job) -> list[SimTrip]:
        self._next_relay = (self._next_relay + 1) % RELAYS
        trip = SimTrip(job, job.call.tier, self._cells.home() * RELAYS + self._next_relay)
        self.trips[job.call.id] = trip
        return self._step(trip.relay, Arrived(job.call))

    def _step(self, relay: int, event: Event) -> list[SimTrip]:
        if self._is_linked[relay]:
            self._send(relay, [event])
        elif isinstance(event, Arrived):
            self._hold(event.call.id, self._max_hold_s(self.trips[event.call.id]))
        elif isinstance(event, Failed):
            paused = self.trips[event.call_id]
            self._hold(event.call_id, MAX_PAUSE_S if paused.has_begun else self._max_hold_s(paused))
        return []  # what else happens without a dispatcher is told by the report to the next one, or is over

    def _send(self, relay: int, items: list[QueueItem]) -> None:
        at = self._told_at[relay] = max(self._told_at[relay], self.now + self._delay_s())
        cell = relay // RELAYS
        self._push(at, ToDispatcher(cell, self._dispatchers[cell].epoch, items))

    def _delay_s(self) -> float:
        return self._times.delay_s - self._times.spread_s * log(1.0 - self._chance.random())

    def _max_hold_s(self, trip: SimTrip) -> float:
        return self._policies[trip.job.call.model].tiers[trip.tier].max_hold_s

    def _hold(self, call_id: str, for_s: float) -> None:
        at = self._deadlines[call_id] = self.now + for_s
        self._push(at, Deadline(call_id, at))

    def _obey(self, cell: int, action: Action) -> list[SimTrip]:
        call_id = action.call_id
        trip = self.trips.get(call_id)
        if trip is None or trip.relay // RELAYS != cell:
            return []  # it has ended or was handed on, which its dispatcher has been told
        ended: list[SimTrip] = []
        if isinstance(action, Board):
            self._deadlines.pop(call_id, None)
            if action.replica in self._down:
                return self._goes_on(trip, "connect")
            self._dispatchers[cell].has_boarded(self.now)
            self._do(action, trip, ended)
        elif isinstance(action, Hold) and not self._hand_on(trip, is_held=True):
            self._hold(call_id, action.for_s)
        elif isinstance(action, Refuse) and not self._hand_on(trip, is_held=False):
            self._forget(call_id)
            self._do(action, trip, ended)
        elif isinstance(action, Downgrade):
            self._do(action, trip, ended)
        elif isinstance(action, Preempt) and call_id in self._aboard and self._may_go_on(trip):
            self._preempt(trip)
        return ended  # the relay has seen itself that an engine died, before any Cut

    def _forget(self, call_id: str) -> None:
        self._deadlines.pop(call_id, None)
        self._was_handed_on.discard(call_id)

    def _hand_on(self, trip: SimTrip, *, is_held: bool) -> bool:
        """Hand the call to another cell, if there is one that has room and it was not handed on before."""
        call = trip.job.call
        if call.id in self._was_handed_on:
            return False
        cell = self._cells.roomier(trip.relay // RELAYS, call.model, trip.tier)
        if cell is None:
            return False
        if is_held:
            self._step(trip.relay, Left(call.id))
        self._was_handed_on.add(call.id)
        self.handed_on += 1
        trip.relay = cell * RELAYS + trip.relay % RELAYS
        self._deadlines.pop(call.id, None)
        self._between_cells.add(call.id)
        self._push(self.now + self._times.between_cells_s, HandedOn(trip))
        return True

    def _deadline(self, deadline: Deadline) -> list[SimTrip]:
        """The dispatcher knows the deadline too, and answers now. If it does not, the relay decides."""
        call_id = deadline.call_id
        if self._deadlines.get(call_id) != deadline.at:
            return []
        trip = self.trips[call_id]
        if self._is_linked[trip.relay] and not deadline.is_overdue:
            self._push(self.now + ANSWER_S, Deadline(call_id, deadline.at, is_overdue=True))
            self._tick_in(trip.relay // RELAYS)
            return []
        if self._hand_on(trip, is_held=True):
            return []
        if _as_served(trip).may_fall_back:
            self._do(Downgrade(call_id, "no_dispatcher"), trip, [])
            self._hold(call_id, self._max_hold_s(trip))
            return []
        self.unled += 1
        self._forget(call_id)
        trip.how, trip.ended_at = "refused", self.now
        del self.trips[call_id]
        return [trip, *self._step(trip.relay, Left(call_id))]

    # --- replicas ---

    def _prober(self, name: str) -> int:
        return self._probers[name]

    def _replica_dies(self, name: str) -> list[SimTrip]:
        ended = [trip for call_id in list(self.replicas[name].streams) for trip in self._lose(self.trips[call_id])]
        return ended + self._step(self._prober(name), ReplicaDown(name))

    # --- a dispatcher ---

    def _tick(self) -> list[SimTrip]:
        for cell in range(len(self._dispatchers)):
            self._tick_in(cell)
        return []

    def _tick_in(self, cell: int) -> None:
        if self._dispatchers[cell].is_alive:
            self._dispatchers[cell].queue.append(Ticked())
            self._go_on(cell)

    def _go_on(self, cell: int) -> None:
        """Decide the next item of the queue, unless another one is being decided."""
        dispatcher = self._dispatchers[cell]
        if dispatcher.queue and not dispatcher.is_busy:
            dispatcher.is_busy = True
            self._push(self.now + self._times.of(dispatcher.queue[0]), self._decided[cell])

    def _decide(self, cell: int) -> None:
        dispatcher = self._dispatchers[cell]
        item = dispatcher.queue.popleft()
        if isinstance(item, RelayReported):
            self._reported(cell, item)
        elif isinstance(item, EngineCounted):
            self._counted(cell, item)
        else:
            self._tell_core(cell, item)
            if isinstance(item, ReplicaDown):
                dispatcher.unopened.discard(item.name)
                self._tell_core(cell, ReplicaKnown(self._known[item.name]))
        dispatcher.is_busy = False
        self._go_on(cell)

    def _tell_core(self, cell: int, event: Event) -> None:
        for action in self.machines[cell].step(event, self.now):
            trip = self.trips.get(action.call_id)
            if trip is None or trip.relay // RELAYS != cell or isinstance(action, (Settled, Cut)):
                continue
            at = self._done_at[trip.relay] = max(self._done_at[trip.relay], self.now + self._delay_s())
            self._push(at, ToRelay(cell, action))

    # --- its death, and its standby ---

    def _die(self, cell: int, takeover_s: float) -> None:
        """What it has sent arrives. Its relays notice at once that it is gone."""
        dispatcher = self._dispatchers[cell]
        dispatcher.end()
        self.machines[cell] = Machine(*own_pools(self._policies))
        self._decided[cell] = Timer("decided", cell, dispatcher.epoch)
        dispatcher.takeover = Takeover(cell, self.now)
        self.takeovers.append(dispatcher.takeover)
        for relay in range(cell * RELAYS, (cell + 1) * RELAYS):
            self._is_linked[relay] = False
        answered = self._aboard.keys() | self._deadlines.keys() | self._between_cells
        for call_id, trip in self.trips.items():
            if trip.relay // RELAYS == cell and call_id not in answered:
                self._hold(call_id, self._max_hold_s(trip))
        self._push(self.now + takeover_s, Timer("takes over", cell, dispatcher.epoch))

    def _take_over(self, cell: int) -> None:
        dispatcher = self._dispatchers[cell]
        dispatcher.is_alive = True
        self._know_replicas(cell)
        dispatcher.unopened.update(name for name in self._names(cell) if name not in self._down)
        for relay in range(cell * RELAYS, (cell + 1) * RELAYS):
            dispatcher.unreported.add(relay)
            wait_s = self._chance.random() * self._times.retry_s + 2 * self._delay_s()
            self._push(self.now + wait_s, Timer("connects", relay, dispatcher.epoch))

    def _names(self, cell: int) -> list[str]:
        return [name for name in self._known if self._probers[name] // RELAYS == cell]

    def _know_replicas(self, cell: int) -> None:
        for name in self._names(cell):
            self.machines[cell].step(ReplicaKnown(self._known[name]), self.now)

    def _report(self, relay: int) -> None:
        self._is_linked[relay] = True
        items: list[QueueItem] = [
            self._adopted(trip)
            for call_id, trip in self.trips.items()
            if trip.relay == relay and call_id not in self._between_cells
        ]
        takeover = self._dispatchers[relay // RELAYS].takeover
        if takeover is not None:
            takeover.adopted += len(items)
        items += [ReplicaBehind(name) for name in sorted(self._behind) if self._probers[name] == relay]
        self._send(relay, [*items, RelayReported(relay)])

    def _adopted(self, trip: SimTrip) -> Adopted:
        call, aboard = _as_served(trip), self._aboard.get(trip.job.call.id)
        waited_s = self.now - (trip.job.at if trip.downgraded_at is None else trip.downgraded_at)
        if aboard is None and trip.has_begun:
            return Adopted(call, None, self.now - trip.given_at, is_delivering=True)
        if aboard is None:
            return Adopted(call, None, waited_s)
        return Adopted(call, aboard.name, waited_s, is_delivering=self.now >= trip.first_at)

    def _reported(self, cell: int, reported: RelayReported) -> None:
        """When all relays have reported, each probes its part of the replicas."""
        dispatcher = self._dispatchers[cell]
        dispatcher.unreported.discard(reported.relay)
        if dispatcher.unreported:
            return
        if dispatcher.takeover is not None:
            dispatcher.takeover.settled_at = self.now
        for relay in range(cell * RELAYS, (cell + 1) * RELAYS):
            wait_s = self._times.probe_s + 3 * self._delay_s()  # asked to probe; up; asked to count
            self._push(self.now + wait_s, Timer("counts", relay, dispatcher.epoch))

    def _count(self, relay: int) -> None:
        """The relay says how many streams its engines run: those that are not open yet, or that run strangers."""
        dispatcher = self._dispatchers[relay // RELAYS]
        asked = sorted(dispatcher.unopened | dispatcher.strangers.keys())
        items: list[QueueItem] = [
            EngineCounted(name, self.replicas[name].load) for name in asked if self._probers[name] == relay
        ]
        if items:
            self._send(relay, items)

    def _counted(self, cell: int, counted: EngineCounted) -> None:
        dispatcher, name = self._dispatchers[cell], counted.replica
        state = self.machines[cell].pools[self._known[name].pool].replica_state(name)
        known = state.load - state.strangers if state is not None else 0
        strangers = max(0, counted.streams - known)
        if name in dispatcher.unopened or strangers < dispatcher.strangers.get(name, 0):
            self._tell_core(cell, ReplicaStrangers(name, strangers))
            dispatcher.strangers[name] = strangers
        if not dispatcher.strangers.get(name):
            dispatcher.strangers.pop(name, None)
        else:
            self._push(self.now + COUNT_S, Timer("counts", self._probers[name], dispatcher.epoch))
        if name in dispatcher.unopened:
            self._tell_core(cell, ReplicaUp(self._known[name]))
            dispatcher.unopened.discard(name)
        takeover = dispatcher.takeover
        if takeover is not None and not dispatcher.unopened and takeover.opened_at is None:
            takeover.opened_at = self.now


def _as_served(trip: SimTrip) -> Call:
    call = trip.job.call
    if trip.tier == call.tier and not trip.moves:
        return call
    return replace(call, tier=trip.tier, falls_back=call.falls_back and trip.tier == call.tier, moves=trip.moves)
