"""Which replicas there are, and the life of each: starting, open, draining, gone.

Whoever decides has one RunningFleet. The configuration says which replicas are wanted, and an operator which of them
take no calls (`headway drain`). A replica that is new is probed and opens once it has produced a token. One that is not
wanted any more, or wanted for another model or as another kind of engine, drains: it takes nobody, keeps its streams,
and is gone once it has none. Only then does one with the same URL that is wanted in its place begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from headway.core.machine import Machine
from headway.core.types import Event, Replica, ReplicaChanged, ReplicaDraining, ReplicaRemoved


@dataclass(slots=True)
class Member:
    """A replica of the fleet. Its name is the URL of its engine."""

    replica: Replica
    kind: str  # of engine (engines/kinds.py)
    min_context: int = 0  # tokens; an engine that says it has less takes no calls
    # Addresses of its KV events; empty if it has none. The second one is to ask for those that were missed.
    kv_events: str = ""
    kv_replay: str = ""

    @property
    def name(self) -> str:
        return self.replica.name

    def is_same_engine(self, other: Member) -> bool:
        return replace(self, replica=other.replica) == other and self.replica.pool == other.replica.pool


class FleetHost(Protocol):
    """Whoever decides, as its fleet sees it."""

    def step(self, event: Event) -> None:
        """Tell core."""

    def add_member(self, member: Member) -> None:
        """Probe it, and tell core once it is up."""

    def change_member(self, member: Member) -> None:
        """It has other seats, another curve or another `prompt_tps`; core is told."""

    def remove_member(self, name: str) -> None:
        """It is gone; core knows that."""

    def probe_now(self, name: str) -> None:
        """Ask it for a token, and tell core that it is up if it produces one."""


class RunningFleet:
    def __init__(self, machine: Machine, host: FleetHost) -> None:
        self.members: dict[str, Member] = {}
        self.drained: set[str] = set()  # by an operator
        self._machine = machine
        self._host = host
        self._wanted: dict[str, Member] = {}
        self._leaving: dict[str, None] = {}  # not wanted, or not as they are

    def want(self, members: Iterable[Member]) -> None:
        """These are the replicas from now on."""
        self._wanted = {member.name: member for member in members}
        self.drained &= self._wanted.keys()
        self._go_on()

    def keep_until_empty(self, member: Member) -> None:
        """Streams are aboard a replica that may not be one of these: it drains."""
        if member.name not in self.members:
            self.members[member.name] = member
            self._leaving[member.name] = None
            self._host.add_member(member)

    def drain(self, name: str) -> bool:
        """Let it take no calls. Returns whether there is such a replica."""
        if name not in self._wanted:
            return False
        self.drained.add(name)
        self._host.step(ReplicaDraining(name))
        return True

    def open_again(self, name: str) -> bool:
        """Undo `drain`. Returns whether there is such a replica."""
        if name not in self._wanted:
            return False
        self.drained.discard(name)
        self._probe(name)
        return True

    def is_draining(self, name: str) -> bool:
        return name in self.drained or name in self._leaving

    def is_open(self, name: str) -> bool:
        member = self.members.get(name)
        pool = self._machine.pools.get(member.replica.pool) if member is not None else None
        return pool is not None and pool.is_open(name)

    def aboard(self, name: str) -> int:
        """The streams aboard."""
        pool = self._machine.pools.get(self.members[name].replica.pool)
        return pool.aboard(name) if pool is not None else 0

    def tick(self) -> None:
        """Remove those that drain and have no streams."""
        gone = [name for name in self._leaving if not self.aboard(name)]
        for name in gone:
            del self._leaving[name], self.members[name]
            self._host.step(ReplicaRemoved(name))
            self._host.remove_member(name)
        if gone:
            self._go_on()

    def _go_on(self) -> None:
        """From what there is to what is wanted, as far as possible now."""
        for name, member in list(self.members.items()):
            wanted = self._wanted.get(name)
            if wanted is None or not wanted.is_same_engine(member):
                if name not in self._leaving:
                    self._leaving[name] = None
                    self._host.step(ReplicaDraining(name))
                continue
            if wanted != member:
                self.members[name] = wanted
                self._host.change_member(wanted)
                self._host.step(ReplicaChanged(self._with_memory(wanted.replica)))
            if name in self._leaving:
                del self._leaving[name]
                self._probe(name)
        for name, wanted in self._wanted.items():
            if name not in self.members:
                self.members[name] = wanted
                self._host.add_member(wanted)

    def _with_memory(self, replica: Replica) -> Replica:
        """The replica with the memory that its engine has said."""
        pool = self._machine.pools.get(replica.pool)
        state = pool.replica_state(replica.name) if pool is not None else None
        return replace(replica, kv_tokens=state.replica.kv_tokens) if state is not None else replica

    def _probe(self, name: str) -> None:
        if not self.is_draining(name):
            self._host.probe_now(name)
