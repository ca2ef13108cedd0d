"""The dispatcher: core for all relays of a cell, and nothing else.

It holds nothing that its relays cannot tell it. Calls live in relays; seats and waiting rooms are derived. A dispatcher
that starts, after another one or for the first time, lets relays say what they have aboard and what they hold
(sessions.py). It opens a replica once every relay that is listed has reported or stayed silent for REPORT_S, and the
replica's engine has said how many streams it runs. What it runs beyond what is known are strangers: they take seats
until it has stopped them. What the dispatcher before it had learnt comes from relays too (handover.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice

from prometheus_client.core import Metric

from headway.core.machine import Machine
from headway.core.types import (
    TICK_S,
    Action,
    Adopted,
    Arrived,
    Delivering,
    Event,
    Failed,
    Finished,
    Left,
    Offer,
    PolicyChanged,
    PoolPolicy,
    Refuse,
    ReplicaBehind,
    ReplicaCacheLost,
    ReplicaDown,
    ReplicaRecovered,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
)
from headway.dispatch.cell_fleet import CellFleet
from headway.dispatch.cell_gates import CellGates
from headway.dispatch.engine_counts import MARGIN_S
from headway.dispatch.fleet import Member
from headway.dispatch.frames import (
    AdminOrder,
    Counted,
    Events,
    FromRelay,
    HadMembers,
    Hello,
    Kept,
    KeptOrders,
    Reconfigured,
    RegisterOrder,
    Reported,
    Status,
)
from headway.dispatch.handover import KEEPERS, Handover
from headway.dispatch.link import Link
from headway.dispatch.policy_metrics import policy_metrics
from headway.dispatch.record import EventLog
from headway.dispatch.sessions import LEASE_S, RelaySession
from headway.dispatch.status import TickLag, leader_status, relays_status

log = logging.getLogger("headway.dispatch")

REPORT_S = 1.0  # after which a listed relay that was not heard is taken for dead
MAX_EARLY = 1000  # orders of operators
MIN_SLEEP_S = 0.005  # however many calls' deadlines pass
SILENT_TICKS = 10  # after which a relay that sends no beats is taken for lost
# Kinds of events and actions. Tuples: `isinstance` with A | B makes a new union each time, and this is for every event.
UNDER_WAY = (Delivering, Finished, Failed, Left, ReplicaCacheLost)  # most events; core alone decides what follows
ARRIVALS = (Arrived, Adopted)
FINDINGS = (ReplicaUp, ReplicaDown, ReplicaSuspect)
ENDS = (Refuse, Settled)


class Dispatcher:
    def __init__(
        self,
        machine: Machine,
        members: Iterable[Member],
        epoch: int,
        config: str,
        listed: Iterable[str] = (),
        record: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config` is the text of the configuration that relays take; `listed` are the names of those that exist."""
        self.machine = machine
        self.epoch = epoch
        self.config = config
        self.leader = ""  # there is no other
        self.sessions: dict[str, RelaySession] = {}  # by run; those that are lost stay until they are gone for good
        self.gates = CellGates(record, LEASE_S + MARGIN_S, clock)
        self._record = record
        self._clock = clock
        self._owner: dict[str, RelaySession] = {}  # by call
        self.cell = CellFleet(machine, self.sessions, self._owner, self.step, clock)
        self._listed = frozenset(listed)
        self._unheard = set(self._listed)
        self._began_at = clock()
        self._behind: dict[str, set[str]] = {}  # by replica: runs of relays that have a stream behind its floor there
        self._handover = Handover(machine, epoch, clock)
        # Orders that came before it was known which replicas have streams: an answer would leave some of them out.
        self._early: list[tuple[RelaySession, AdminOrder | RegisterOrder]] = []
        self._lag = TickLag()
        self._tick_due_at = self._began_at + TICK_S
        self.cell.fleet.want(members)

    # --- relays ---

    def make_session(self, link: Link) -> RelaySession:
        return RelaySession(self, link, self._clock)

    def begin(self) -> None:
        """Give relays their time to report from now on."""
        self._began_at = self._clock()

    def refusal(self, hello: Hello) -> str:  # noqa: ARG002 (the parent has started all relays of this box)
        return ""

    def on_beat(self, session: RelaySession) -> bool:  # noqa: ARG002
        return True

    def welcome(self, session: RelaySession) -> None:
        """A relay has said hello. If it is the same run as before, it was cut off for a while."""
        earlier = self.sessions.get(session.run)
        self.sessions[session.run] = session
        if earlier is not None:
            session.calls = earlier.calls
            for call_id in session.calls:
                self._owner[call_id] = session
            earlier.link.close("the relay has connected again")
        self.cell.welcome(session)
        self._deal()

    def on_message(self, session: RelaySession, message: FromRelay) -> None:
        if isinstance(message, Events):
            for event in message.events:
                self._tell(session, event)
        elif isinstance(message, Counted):
            self.cell.counted(message)
        elif isinstance(message, Reported):
            self._reported(session)
        elif isinstance(message, Kept):
            self._handover.offered(message)
        elif isinstance(message, AdminOrder | RegisterOrder):
            if self.cell.is_settled:
                self._obey(session, message)
            elif len(self._early) < MAX_EARLY:
                self._early.append((session, message))
        elif isinstance(message, HadMembers):
            self.cell.had(message.members)
        elif isinstance(message, KeptOrders):
            self.cell.kept_orders(message)
        else:
            self.gates.on_message(session, message)

    def _obey(self, session: RelaySession, order: AdminOrder | RegisterOrder) -> None:
        if isinstance(order, RegisterOrder):
            session.link.send(self.cell.register(order))
        else:
            session.link.send(self.cell.obey(order, self.status))

    def on_lost(self, session: RelaySession) -> None:
        """Its streams go on: their seats are kept until it is back, or gone for good. Held calls are not boarded
        meanwhile: they come back with the relay."""
        self.gates.on_lost(session)
        if self.sessions.get(session.run) is not session:
            return
        session.lost_at = self._clock()
        for call_id in list(session.calls):
            if self.machine.replica_of(call_id) is None:
                self.step(Left(call_id))
        for name in list(self._behind):
            self._recovered(name, session.run)
        self.cell.leave(session)

    def _reported(self, session: RelaySession) -> None:
        for call_id in session.calls - session.named:
            self.step(Left(call_id))
        session.has_reported = True
        self._unheard.discard(session.relay)
        self._settle()
        self.cell.reported(session)

    def _settle(self) -> None:
        """Open replicas once it is known what is aboard."""
        if not self.cell.is_settled and self._is_everybody_here():
            if self.sessions and all(one.has_reported for one in self.sessions.values()):
                if self._unheard:
                    log.warning("relays that were not heard: %s", ", ".join(sorted(self._unheard)))
                if (remembered := self._handover.take()) is not None:
                    self.step(remembered)
                self.cell.settle()
                early, self._early = self._early, []
                for session, order in early:
                    self._obey(session, order)
            self._deal()
        if self.cell.is_settled:
            self.cell.open_ready()

    def _deal(self) -> None:
        if self._is_everybody_here():
            self.cell.deal()

    def _is_everybody_here(self) -> bool:
        """Whether each relay that is listed has reported, or stayed silent for long enough."""
        return not self._unheard or self._clock() - self._began_at >= REPORT_S

    # --- events ---

    def _tell(self, session: RelaySession, event: Event) -> None:
        """Events about replicas are those of several relays; core is told what follows from all of them."""
        if isinstance(event, UNDER_WAY):
            pass
        elif isinstance(event, ARRIVALS):
            if isinstance(event, Adopted) and not self.machine.offers(event.call):
                log.warning("relay %s has a call to %r, which is not configured", session.relay, event.call.model)
                return
            self._owner[event.call.id] = session
            session.calls.add(event.call.id)
            if isinstance(event, Adopted):
                session.named.add(event.call.id)
        elif isinstance(event, FINDINGS):
            self.cell.found(session, event)
            return
        elif isinstance(event, ReplicaBehind):
            self._behind.setdefault(event.name, set()).add(session.run)
        elif isinstance(event, ReplicaRecovered):
            self._recovered(event.name, session.run)
            return
        else:
            log.warning("relay %s says %s, which is not for a relay to say", session.relay, type(event).__name__)
            return
        self.step(event)

    def _recovered(self, name: str, run: str) -> None:
        runs = self._behind.get(name, set())
        runs.discard(run)
        if not runs and self._behind.pop(name, None) is not None:
            self.step(ReplicaRecovered(name))

    def step(self, event: Event) -> None:
        now = self._clock()
        actions = self.machine.step(event, now)
        if self._record is not None:
            self._record.append(now, event, actions)
        for action in actions:
            self._send(action)

    def _send(self, action: Action) -> None:
        owner = self._owner.get(action.call_id)
        if owner is None:
            return
        if isinstance(action, ENDS):
            del self._owner[action.call_id]
            owner.calls.discard(action.call_id)
        owner.link.act(action)

    # --- replicas ---

    @property
    def is_ready(self) -> bool:
        return any(pool.open_replicas for pool in self.machine.pools.values())

    # --- what the owner and operators change ---

    def reconfigure(
        self, config: str, pools: dict[str, PoolPolicy], offers: dict[str, Offer], members: Iterable[Member]
    ) -> None:
        """Another configuration from now on: its text, and what follows from it."""
        self.config = config
        for session in self.sessions.values():
            if session.lost_at is None:
                session.link.send(Reconfigured(config))
        self.step(PolicyChanged(pools, offers))
        self.cell.fleet.want(members)

    # --- time, and the end ---

    def close(self) -> None:
        for session in self.sessions.values():
            session.link.close("the dispatcher ends")
        if self._record is not None:
            self._record.close()

    async def run(self) -> None:
        while True:
            sleep_s = self.wake()
            await asyncio.sleep(sleep_s)

    def wake(self) -> float:
        """Do what is due by now. Returns the seconds to sleep: to the next tick, or to the deadline of a held call."""
        now = self._clock()
        if now >= self._tick_due_at:
            self._tick_due_at = now + TICK_S
            self.tick()
        elif now >= self.machine.next_deadline():
            self.step(Ticked())
        due_at = min(self._tick_due_at, self.machine.next_deadline())
        return max(MIN_SLEEP_S, due_at - self._clock())

    def tick(self) -> None:
        self._lag.tick(self._clock())
        self.step(Ticked())
        self._settle()
        self._drop_silent()
        self.cell.tick()
        for session in self.cell.counts.gone():
            if not session.calls:
                del self.sessions[session.run]
        self._hand_over()
        # By then, no relay that was not heard delivers what an earlier dispatcher decided.
        is_over = self._clock() - self._began_at >= LEASE_S + MARGIN_S
        self.gates.tick(may_begin=self.cell.is_settled and is_over)

    def _hand_over(self) -> None:
        """Let relays keep what was learnt. Before this dispatcher is settled, they have what it has not got yet."""
        if self.cell.is_settled and (keep := self._handover.keep()) is not None:
            for session in islice((one for one in self.sessions.values() if one.lost_at is None), KEEPERS):
                session.link.send(keep)

    def _drop_silent(self) -> None:
        """A relay that is stopped, or whose machine is gone, does not close its connection.

        Ticks are counted and not seconds: after a pause of this process, beats wait that it has not read yet."""
        for session in list(self.sessions.values()):
            session.unheard_ticks += 1
            if session.lost_at is None and session.unheard_ticks > SILENT_TICKS:
                session.link.abort("it is silent")

    def metrics(self) -> Iterable[Metric]:
        pools = {name: member.replica.pool for name, member in self.cell.fleet.members.items()}
        of_machine = policy_metrics(self.machine, pools)
        return (*of_machine, *self.gates.metrics())

    def status(self) -> Status:
        relays = relays_status(self._listed, self.sessions.values(), self._clock())
        silent = self.cell.counts.silent.told
        return leader_status(self.epoch, relays, self.cell.fleet, self.machine, silent, self._lag.worst_s)
