"""Causes one fault in the cell, and ends it. Each function returns when the cell is whole again and boards calls."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field

import psycopg

from runs.failover.callers import Callers
from runs.failover.cell import Cell, until_listening, until_ready
from runs.failover.judge import Done
from runs.failover.plan import AWAY, Fault

RESUME_S = 30.0  # after which boarding is taken to have stopped for good
SETTLED_S = 0.3  # a call that boarded before a fault has its first token by then
AFTERMATH_S = 5.0  # until no call waits any more because of the fault before
CALM_S = 30.0  # before the database goes away, to compare with


@dataclass
class Faults:
    cell: Cell
    callers: Callers
    done: list[Done] = field(default_factory=list)
    calm: list[tuple[float, float]] = field(default_factory=list)  # before each time that the database is away
    stuck: list[str] = field(default_factory=list)  # faults after which boarding did not resume in time

    async def cause(self, fault: Fault) -> None:
        leader = await self._find_leader()
        standby = next(name for name in self.cell.dispatchers if name != leader)
        from_s = time.monotonic()
        kind, who = fault.kind, leader
        if kind == "leader killed":
            await self._kill_dispatcher(leader)
        elif kind == "leader and relay killed":
            who = f"{leader} {fault.relay}"
            await asyncio.gather(self._kill_dispatcher(leader), self._kill_relay(fault.relay))
        elif kind == "leader killed, relay stopped":
            who = f"{leader} {fault.relay}"
            relay = self.cell.relays[fault.relay]
            relay.signal(signal.SIGSTOP)
            try:
                await self._kill_dispatcher(leader)
            finally:
                relay.signal(signal.SIGCONT)
        elif kind == "leader killed, relay cut off":
            who = f"{leader} {fault.relay}"
            links = self.cell.links_of(fault.relay)
            for link in links:
                link.freeze()
            await self._kill_dispatcher(leader)
            for link in links:
                link.mend()
        elif kind == "standby killed":
            who = standby
            await self._kill_dispatcher(standby)
        elif kind == "leader stopped":
            await self._stop_leader(leader)
        elif kind == "leader stopped for a moment":
            await self._stop(leader, fault.lasts_s)
        elif kind == "standby stopped":
            who = standby
            await self._stop(standby, fault.lasts_s)
        elif kind == "relay killed":
            who = fault.relay
            await self._kill_relay(fault.relay)
        elif kind == "relay stopped":
            who = fault.relay
            await self._stop(fault.relay, fault.lasts_s)
        elif kind in ("link closed", "link frozen", "relay cut off", "leader cut off"):
            who = leader if kind == "leader cut off" else fault.relay
            await self._cut(kind, leader, fault)
        elif kind == "etcd leader killed":
            who = await self._kill_etcd_leader()
        else:
            who = "database"
            if kind == AWAY:
                await asyncio.sleep(AFTERMATH_S)
                calm_from_s = time.monotonic()
                await asyncio.sleep(CALM_S)
                from_s = time.monotonic()
                self.calm.append((calm_from_s, from_s))
            await self._at_database(kind, fault.lasts_s)
        self.done.append(Done(kind, who, from_s, time.monotonic()))
        await self._until_boarding(kind, time.monotonic())
        await asyncio.sleep(fault.then_s)

    async def _find_leader(self) -> str:
        deadline = time.monotonic() + RESUME_S
        while (leader := self.cell.leader()) is None:
            if time.monotonic() > deadline:
                raise SystemExit("no dispatcher leads")
            await asyncio.sleep(0.05)
        return leader

    async def _until_boarding(self, kind: str, since_s: float) -> None:
        """Wait until a call boards that did not have its seat at `since_s`."""
        while self.callers.last_first_s < since_s + SETTLED_S:
            if time.monotonic() > since_s + RESUME_S:
                self.stuck.append(kind)
                return
            await asyncio.sleep(0.02)

    async def _kill_dispatcher(self, name: str) -> None:
        since_s = time.monotonic()
        dispatcher = self.cell.dispatchers[name]
        await dispatcher.kill()
        dispatcher.start()
        await until_listening(dispatcher)
        await self._until_boarding(f"{name} killed", since_s)

    async def _kill_relay(self, name: str) -> None:
        relay = self.cell.relays[name]
        await relay.kill()
        relay.start()
        await until_ready(relay)

    async def _stop_leader(self, name: str) -> None:
        """It wakes when another one leads."""
        self.cell.dispatchers[name].signal(signal.SIGSTOP)
        try:
            await self._until_boarding(f"{name} stopped", time.monotonic())
        finally:
            self.cell.dispatchers[name].signal(signal.SIGCONT)

    async def _stop(self, name: str, for_s: float) -> None:
        member = (self.cell.dispatchers | self.cell.relays)[name]
        member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            member.signal(signal.SIGCONT)

    async def _cut(self, kind: str, leader: str, fault: Fault) -> None:
        links = self.cell.links_of(fault.relay, leader)
        if kind == "relay cut off":
            links = self.cell.links_of(fault.relay)
        elif kind == "leader cut off":
            links = self.cell.links_of(leader)
        for link in links:
            if kind == "link closed":
                link.close()
            else:
                link.freeze()
        await asyncio.sleep(fault.lasts_s)
        for link in links:
            link.mend()

    async def _kill_etcd_leader(self) -> str:
        assert self.cell.etcd is not None
        name = await asyncio.to_thread(self.cell.etcd.kill_leader)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(self.cell.etcd.start)
        return name

    async def _at_database(self, kind: str, for_s: float) -> None:
        database = self.cell.database
        if kind == "database read-only":
            await asyncio.to_thread(_set_read_only, database.url, "on")
            await asyncio.sleep(for_s)
            await asyncio.to_thread(_set_read_only, database.url, "off")
            return
        await asyncio.to_thread(database.kill)
        if kind == AWAY:
            await asyncio.sleep(for_s)
        await asyncio.to_thread(database.start)


def _set_read_only(url: str, value: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        connection.execute(b"SELECT pg_reload_conf()")
