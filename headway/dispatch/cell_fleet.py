"""The replicas of a cell, for its dispatcher: what relays know of them, which relay probes each, and whether it may be
opened.

A replica is opened once it is known what is aboard the cell, and its engine has said how many streams it runs
(engine_counts.py). What operators have ordered is kept by all relays, for the dispatcher that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headway.core.machine import Machine
from headway.core.types import Event, ReplicaDown, ReplicaDraining, ReplicaKnown, ReplicaSuspect, ReplicaUp
from headway.dispatch.dealing import Dealing
from headway.dispatch.engine_counts import EngineCounts
from headway.dispatch.fleet import Member, RunningFleet
from headway.dispatch.frames import (
    MAX_BATCH,
    AdminAnswer,
    AdminOrder,
    Count,
    Counted,
    KeepOrders,
    KeptOrders,
    MemberGone,
    MemberNames,
    Members,
    Probe,
    ProbeNow,
    RegisterOrder,
    Status,
)
from headway.dispatch.sessions import RelaySession
from headway.dispatch.status import demand_status

COUNT_S = 0.5  # between two questions to an engine that runs strangers


class CellFleet:
    def __init__(
        self,
        machine: Machine,
        sessions: dict[str, RelaySession],
        owner: dict[str, RelaySession],
        step: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """`sessions` are the relays, by run; `owner` has the relay of each call."""
        self.fleet = RunningFleet(machine, self)
        self.counts = EngineCounts(machine, self.fleet, sessions, owner, step, clock)
        self.step = step
        self.is_settled = False  # whether it is known what is aboard
        self._machine = machine
        self._sessions = sessions
        self._clock = clock
        self._dealing = Dealing()
        self._ready: dict[str, ReplicaUp] = {}  # replicas that are up and may not be opened yet
        self._asked_at = 0.0
        # Sets the engines of a model. Returns whether they are registered (discovery.py).
        self.set_registered: Callable[[str, list[str]], bool] = lambda _model, _urls: False
        self._registered: dict[str, list[str]] = {}
        self._orders_number = 0
        self._kept: KeptOrders | None = None  # the newest that relays have kept

    # --- relays ---

    def welcome(self, session: RelaySession) -> None:
        session.link.send(MemberNames(list(self.fleet.members)))
        members = list(self.fleet.members.values())
        for first in range(0, len(members), MAX_BATCH):
            session.link.send(Members(members[first : first + MAX_BATCH]))
        if self._orders_number:
            session.link.send(self._orders())

    def deal(self) -> None:
        """Each replica is probed by one relay. Called once it is known which relays there are."""
        present = sorted((one for one in self._sessions.values() if one.lost_at is None), key=lambda one: one.relay)
        self._probe({run for one in present for run in self._dealing.join(one.run)})

    def reported(self, session: RelaySession) -> None:
        if session.run in self._dealing.hands:
            self._probe([session.run])  # what it told of replicas may have been lost while it was cut off

    def leave(self, session: RelaySession) -> None:
        self._probe(self._dealing.leave(session.run))

    def had(self, members: Iterable[Member]) -> None:
        """A relay has calls aboard these. Those that are not known were replicas for the dispatcher before: they drain,
        unless they are wanted."""
        for member in members:
            if member.replica.pool in self._machine.pools:
                self.fleet.keep_until_empty(member)

    def settle(self) -> None:
        """It is known what is aboard."""
        self.is_settled = True
        if self._kept is not None:
            self._registered = dict(self._kept.registered) | self._registered
            for name in self._kept.drained:
                self.fleet.drain(name)
        self._keep_orders()

    def open_ready(self) -> None:
        for name in [name for name in self._ready if name not in self.counts.uncounted]:
            self.step(self._ready.pop(name))

    def kept_orders(self, kept: KeptOrders) -> None:
        """A relay has kept this of an earlier dispatcher. The newest counts. Engines that were registered are known
        from now on: a call that arrives waits for them."""
        if self._kept is None or (kept.epoch, kept.number) > (self._kept.epoch, self._kept.number):
            self._kept = kept
            for model, urls in kept.registered:
                if model not in self._registered:
                    self.set_registered(model, urls)

    # --- what probers find ---

    def found(self, session: RelaySession, event: ReplicaUp | ReplicaDown | ReplicaSuspect) -> None:
        if isinstance(event, ReplicaSuspect):
            self.probe_now(event.name)
            self.step(event)
            return
        name = event.name if isinstance(event, ReplicaDown) else event.replica.name
        if self._dealing.holder(name) != session.run:
            return
        if isinstance(event, ReplicaUp):
            self._came_up(event)
            return
        self._ready.pop(name, None)
        self.counts.begin(name)
        self.step(event)
        self._make_known(self.fleet.members[name])

    def _came_up(self, event: ReplicaUp) -> None:
        """The relay may have other settings of it than the owner has now; it knows only the engine's memory."""
        name = event.replica.name
        if self.fleet.is_draining(name):
            return
        event = ReplicaUp(replace(self.fleet.members[name].replica, kv_tokens=event.replica.kv_tokens))
        if name in self.counts.uncounted:
            self._count(name)
        if self.is_settled and name not in self.counts.uncounted:
            self.step(event)
        else:
            self._ready[name] = event

    def counted(self, message: Counted) -> None:
        name = message.replica
        if name in self.fleet.members:
            self.counts.counted(name, message.streams)
            if self.is_settled and name in self._ready:
                self.step(self._ready.pop(name))

    def tick(self) -> None:
        if self.is_settled:  # before that, a replica may have streams that nobody has reported yet
            self.fleet.tick()
        now = self._clock()
        if now - self._asked_at < COUNT_S:
            return
        self._asked_at = now
        uncounted = self._ready.keys() & self.counts.uncounted
        silent = {name for name in uncounted if self._dealing.holder(name) is not None}
        self.counts.silent.look(silent, now)
        for name in self.counts.to_ask() | silent:
            self._count(name)

    # --- the fleet's host ---

    def add_member(self, member: Member) -> None:
        self.counts.begin(member.name)
        self._make_known(member)
        self._broadcast(Members([member]))
        self._probe(self._dealing.add(member.name))

    def change_member(self, member: Member) -> None:
        self._broadcast(Members([member]))

    def remove_member(self, name: str) -> None:
        self._dealing.remove(name)
        self.counts.forget(name)
        self._ready.pop(name, None)
        self._broadcast(MemberGone(name))

    def probe_now(self, name: str) -> None:
        if (prober := self._prober_of(name)) is not None:
            prober.link.send(ProbeNow(name))

    def _make_known(self, member: Member) -> None:
        self.step(ReplicaKnown(member.replica))
        if self.fleet.is_draining(member.name):
            self.step(ReplicaDraining(member.name))

    # --- operators ---

    def obey(self, order: AdminOrder, status: Callable[[], Status]) -> AdminAnswer:
        is_known = True
        if order.url:
            is_known = self.fleet.open_again(order.url) if order.is_undone else self.fleet.drain(order.url)
            self._keep_orders()
        now = status()
        demand = demand_status(self._machine, self._clock())
        return AdminAnswer(order.number, is_known, now.replicas, demand, now.relays, now.lag_s)

    def register(self, order: RegisterOrder) -> AdminAnswer:
        is_known = self.set_registered(order.model, order.urls)
        if is_known and self._registered.get(order.model) != order.urls:
            self._registered[order.model] = order.urls
            self._keep_orders()
        return AdminAnswer(order.number, is_known, [])

    def _keep_orders(self) -> None:
        """Before this dispatcher is settled, relays have what it has not got yet."""
        if self.is_settled:
            self._orders_number += 1
            self._broadcast(self._orders())

    def _orders(self) -> KeepOrders:
        return KeepOrders(self._orders_number, sorted(self.fleet.drained), list(self._registered.items()))

    # --- what these share ---

    def _probe(self, runs: Iterable[str]) -> None:
        """Tell these relays which replicas they probe from now on."""
        for run in runs:
            replicas = [(name, self.fleet.is_open(name)) for name in self._dealing.hands[run]]
            self._sessions[run].link.send(Probe(replicas))

    def _prober_of(self, name: str) -> RelaySession | None:
        run = self._dealing.holder(name)
        return self._sessions[run] if run is not None else None

    def _count(self, name: str) -> None:
        """Ask the replica's engine how many streams it runs."""
        if (prober := self._prober_of(name)) is not None:
            prober.link.send(Count(name))

    def _broadcast(self, message: Members | MemberGone | KeepOrders) -> None:
        for session in self._sessions.values():
            if session.lost_at is None:
                session.link.send(message)
