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
    Refuse,
    Replica,
    ReplicaBehind,
    ReplicaChanged,
    ReplicaDown,
    ReplicaKnown,
    ReplicaRecovered,
    ReplicaStrangers,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
)
from headway.dispatch.cell_gates import CellGates
from headway.dispatch.dealing import Dealing
from headway.dispatch.frames import Count, Counted, Events, FromRelay, Hello, Kept, Probe, ProbeNow, Reported, Status
from headway.dispatch.handover import KEEPERS, Handover
from headway.dispatch.link import Link
from headway.dispatch.policy_metrics import policy_metrics
from headway.dispatch.record import EventLog
from headway.dispatch.sessions import LEASE_S, RelaySession
from headway.dispatch.status import TickLag, leader_status, relays_status
from headway.dispatch.stream_count import SilentEngines, StreamCount

log = logging.getLogger("headway.dispatch")

REPORT_S = 1.0  # after which a listed relay that was not heard is taken for dead
SILENT_S = 1.0  # after which a relay that sends no beats is taken for lost
MARGIN_S = 0.25  # clocks do not run at exactly the same rate, and an engine needs a moment to notice
SENT_S = 1.0  # after which a call that boarded has reached its engine
COUNT_S = 0.5  # between two questions to an engine that runs strangers
# Kinds of events and actions. Tuples: `isinstance` with A | B makes a new union each time, and this is for every event.
UNDER_WAY = (Delivering, Finished, Failed, Left)  # most events; core alone decides what follows
ARRIVALS = (Arrived, Adopted)
PROBED = (ReplicaUp, ReplicaChanged, ReplicaDown)
ENDS = (Refuse, Settled)


class Dispatcher:
    def __init__(
        self,
        machine: Machine,
        fleet: Iterable[Replica],
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
        self._fleet = {replica.name: replica for replica in fleet}
        self.gates = CellGates(record, LEASE_S + MARGIN_S, clock)
        self._record = record
        self._clock = clock
        self._dealing = Dealing(self._fleet)
        self._owner: dict[str, RelaySession] = {}  # by call
        self._listed = frozenset(listed)
        self._unheard = set(self._listed)
        self._began_at = clock()
        self._is_settled = False
        self._uncounted = set(self._fleet)  # replicas whose engines were not asked yet
        self._ready: dict[str, ReplicaUp] = {}  # replicas that are up and may not be opened yet
        self._behind: dict[str, set[str]] = {}  # by replica: runs of relays that have a stream behind its floor there
        self._strangers: dict[str, int] = {}  # by replica; no zeros
        self._counts: dict[str, StreamCount] = {}  # the last one of each replica that is watched
        self._silent = SilentEngines()
        self._asked_at = 0.0
        self._handover = Handover(machine, epoch, clock)
        self._lag = TickLag()
        for replica in self._fleet.values():
            self._step(ReplicaKnown(replica))

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
        self._deal()

    def on_message(self, session: RelaySession, message: FromRelay) -> None:
        if isinstance(message, Events):
            for event in message.events:
                self._tell(session, event)
        elif isinstance(message, Counted):
            self._counted(message.replica, message.streams)
        elif isinstance(message, Reported):
            self._reported(session)
        elif isinstance(message, Kept):
            self._handover.offered(message)
        else:
            self.gates.on_message(session, message)

    def on_lost(self, session: RelaySession) -> None:
        """Its streams go on: their seats are kept until it is back, or gone for good. Held calls are not boarded
        meanwhile: they come back with the relay."""
        self.gates.on_lost(session)
        if self.sessions.get(session.run) is not session:
            return
        session.lost_at = self._clock()
        for call_id in list(session.calls):
            if self.machine.replica_of(call_id) is None:
                self._step(Left(call_id))
        for name in list(self._behind):
            self._recovered(name, session.run)
        self._probe(self._dealing.leave(session.run))

    def _reported(self, session: RelaySession) -> None:
        for call_id in session.calls - session.named:
            self._step(Left(call_id))
        session.has_reported = True
        self._unheard.discard(session.relay)
        self._settle()
        if session.run in self._dealing.hands:
            self._probe([session.run])  # what it told of replicas may have been lost while it was cut off

    def _settle(self) -> None:
        """Open replicas once it is known what is aboard."""
        if not self._is_settled and self._is_everybody_here():
            self._is_settled = bool(self.sessions) and all(one.has_reported for one in self.sessions.values())
            if self._is_settled and self._unheard:
                log.warning("relays that were not heard: %s", ", ".join(sorted(self._unheard)))
            if self._is_settled and (remembered := self._handover.take()) is not None:
                self._step(remembered)
            self._deal()
        if self._is_settled:
            for name in [name for name in self._ready if name not in self._uncounted]:
                self._step(self._ready.pop(name))

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
        elif isinstance(event, PROBED):
            if not self._is_from_prober(session, event):
                return
            if isinstance(event, ReplicaUp) and not self._may_open(event.replica.name):
                self._ready[event.replica.name] = event
                return
            if isinstance(event, ReplicaDown):
                self._ready.pop(event.name, None)
                self._strangers.pop(event.name, None)
                self._counts.pop(event.name, None)
                self._uncounted.add(event.name)
                self._step(event)
                self._step(ReplicaKnown(self._fleet[event.name]))
                return
        elif isinstance(event, ReplicaSuspect):
            if (prober := self._prober_of(event.name)) is not None:
                prober.link.send(ProbeNow(event.name))
        elif isinstance(event, ReplicaBehind):
            self._behind.setdefault(event.name, set()).add(session.run)
        elif isinstance(event, ReplicaRecovered):
            self._recovered(event.name, session.run)
            return
        self._step(event)

    def _recovered(self, name: str, run: str) -> None:
        runs = self._behind.get(name, set())
        runs.discard(run)
        if not runs and self._behind.pop(name, None) is not None:
            self._step(ReplicaRecovered(name))

    def _step(self, event: Event) -> None:
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

    def _may_open(self, name: str) -> bool:
        if name in self._uncounted and (prober := self._prober_of(name)) is not None:
            prober.link.send(Count(name))
        return self._is_settled and name not in self._uncounted

    def _is_from_prober(self, session: RelaySession, event: ReplicaUp | ReplicaChanged | ReplicaDown) -> bool:
        name = event.name if isinstance(event, ReplicaDown) else event.replica.name
        return self._dealing.holder(name) == session.run

    def _prober_of(self, name: str) -> RelaySession | None:
        run = self._dealing.holder(name)
        return self.sessions[run] if run is not None else None

    def _deal(self) -> None:
        """Each replica is probed by one relay. They are dealt once it is known which relays there are."""
        if self._is_everybody_here():
            present = sorted((one for one in self.sessions.values() if one.lost_at is None), key=lambda one: one.relay)
            self._probe({run for one in present for run in self._dealing.join(one.run)})

    def _probe(self, runs: Iterable[str]) -> None:
        """Tell these relays which replicas they probe from now on."""
        for run in runs:
            replicas = [(name, self._is_open(name)) for name in self._dealing.hands[run]]
            self.sessions[run].link.send(Probe(replicas))

    def _is_open(self, name: str) -> bool:
        return self.machine.pools[self._fleet[name].pool].is_open(name)

    def _counted(self, name: str, streams: int) -> None:
        """The engine runs so many streams. Those that cannot be known ones are strangers, or calls of relays that are
        gone: at most so many of these still run. What the first count says holds until the second; after that, each
        count is judged when the next one is there (stream_count.py)."""
        if name not in self._fleet:
            return
        lost = self._lost_calls().get(name, [])
        known = self._surely_running(name, lost)
        is_first, before = name in self._uncounted, self._counts.pop(name, None)
        if is_first:
            self._set_strangers(name, max(0, streams - sum(known.values()) - len(lost)))
        elif before is not None:
            others = before.others(known)
            for call_id in [one for one in lost if one in before.lost][others:]:
                self._step(Left(call_id))
            strangers = max(0, others - len(before.lost))
            if before.is_first or strangers < self._strangers.get(name, 0):
                self._set_strangers(name, strangers)
        if lost or self._strangers.get(name) or (is_first and known):
            self._counts[name] = StreamCount(streams, known, lost, is_first)
        self._uncounted.discard(name)
        if self._is_settled and name in self._ready:
            self._step(self._ready.pop(name))

    def _set_strangers(self, name: str, strangers: int) -> None:
        self._step(ReplicaStrangers(name, strangers))
        self._strangers[name] = strangers
        if not strangers:
            del self._strangers[name]

    def _surely_running(self, name: str, lost: list[str]) -> dict[str, int]:
        """The streams that the engine runs for each call that is known and not lost, at least. One that has just
        boarded may not have reached it yet; one that its relay has reported is there."""
        state = self.machine.pools[self._fleet[name].pool].replica_state(name)
        since = self._clock() - SENT_S
        return {
            call_id: stream.call.choices
            for call_id, stream in (state.aboard.items() if state is not None else ())
            if call_id not in lost
            and (stream.boarded_at <= since or ((owner := self._owner.get(call_id)) and call_id in owner.named))
        }

    def _gone(self) -> list[RelaySession]:
        """Relays that have been lost for longer than they may write to engines."""
        now = self._clock()
        return [one for one in self.sessions.values() if one.is_gone(now, LEASE_S + MARGIN_S)]

    def _lost_calls(self) -> dict[str, list[str]]:
        """The calls of relays that are gone, by replica."""
        lost: dict[str, list[str]] = {}
        for session in self._gone():
            for call_id in session.calls:
                if (name := self.machine.replica_of(call_id)) is not None:
                    lost.setdefault(name, []).append(call_id)
        return lost

    def _ask_again(self) -> None:
        """Ask engines that run strangers, or calls of relays that are gone, whether they still do."""
        now = self._clock()
        if now - self._asked_at < COUNT_S:
            return
        self._asked_at = now
        silent = {name for name in self._ready.keys() & self._uncounted if self._dealing.holder(name) is not None}
        self._silent.look(silent, now)
        for name in self._counts.keys() | self._lost_calls().keys() | silent:
            if (prober := self._prober_of(name)) is not None:
                prober.link.send(Count(name))
        for session in self._gone():
            if not session.calls:
                del self.sessions[session.run]

    # --- time, and the end ---

    def close(self) -> None:
        for session in self.sessions.values():
            session.link.close("the dispatcher ends")
        if self._record is not None:
            self._record.close()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        self._lag.tick(self._clock())
        self._step(Ticked())
        self._settle()
        self._drop_silent()
        self._ask_again()
        self._hand_over()
        # By then, no relay that was not heard delivers what an earlier dispatcher decided.
        is_over = self._clock() - self._began_at >= LEASE_S + MARGIN_S
        self.gates.tick(may_begin=self._is_settled and is_over)

    def _hand_over(self) -> None:
        """Let relays keep what was learnt. Before this dispatcher is settled, they have what it has not got yet."""
        if self._is_settled and (keep := self._handover.keep()) is not None:
            for session in islice((one for one in self.sessions.values() if one.lost_at is None), KEEPERS):
                session.link.send(keep)

    def _drop_silent(self) -> None:
        """A relay that is stopped, or whose machine is gone, does not close its connection."""
        now = self._clock()
        for session in list(self.sessions.values()):
            if session.lost_at is None and now - session.heard_at > SILENT_S:
                session.link.abort("it is silent")

    def metrics(self) -> Iterable[Metric]:
        of_machine = policy_metrics(self.machine, {name: replica.pool for name, replica in self._fleet.items()})
        return (*of_machine, *self.gates.metrics())

    def status(self) -> Status:
        relays = relays_status(self._listed, self.sessions.values(), self._clock())
        return leader_status(self.epoch, relays, self.machine, self._fleet, self._silent.told, self._lag.worst_s)
