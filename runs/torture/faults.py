"""Causes the faults of a plan and ends them. Several run at once, but only as many as the cell can survive: one relay,
one dispatcher and one database fault at a time, and each engine has one."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg

from headway.ledger.store import StoreUnavailable
from runs.failover.cell import Member, until_listening, until_ready
from runs.ledger.torture import cut_connections
from runs.measure.witness import set_faults
from runs.torture.callers import Callers
from runs.torture.cell import TortureCell
from runs.torture.judge import Done
from runs.torture.plan import Fault
from runs.torture.workload import KEYS

READY_S = 60.0
AT_ONCE = 3  # engines


@dataclass
class Faults:
    cell: TortureCell
    callers: Callers
    done: list[Done] = field(default_factory=list)
    died_s: dict[str, list[float]] = field(default_factory=dict)  # engines
    _relays: asyncio.Lock = field(default_factory=asyncio.Lock)
    _dispatchers: asyncio.Lock = field(default_factory=asyncio.Lock)
    _database: asyncio.Lock = field(default_factory=asyncio.Lock)
    _configuration: asyncio.Lock = field(default_factory=asyncio.Lock)
    _keys: asyncio.Lock = field(default_factory=asyncio.Lock)
    _engines: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _busy: set[str] = field(default_factory=set)  # engines

    async def run(self, plan: list[Fault]) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                while self.callers.started < fault.at and not self.callers.is_over:
                    await asyncio.sleep(0.01)
                if self.callers.is_over:
                    return
                group.create_task(self.cause(fault))

    async def cause(self, fault: Fault) -> None:
        family, _, what = fault.kind.partition(" ")
        chance = random.Random(fault.dice)
        causes: dict[str, Callable[[str, Fault, random.Random], Awaitable[None]]] = {
            "engine": self._at_engine,
            "relay": self._at_relay,
            "link": self._at_link,
            "leader": self._at_dispatcher,
            "standby": self._at_dispatcher,
            "database": self._at_database,
            "balancer": self._at_balancer,
            "configuration": self._at_configuration,
            "key": self._at_key,
        }
        await causes[family](what, fault, chance)

    def _note(self, fault: Fault, who: list[str], effects: list[str], from_s: float) -> None:
        self.done.append(Done(fault.kind, who, effects, from_s, time.monotonic()))

    # --- engines -----------------------------------------------------------------------------------------------------

    async def _at_engine(self, what: str, fault: Fault, chance: random.Random) -> None:
        async with self._engines:
            idle = [url for url in self.cell.engines if url not in self._busy]
            url = chance.choice(idle)
            self._busy.add(url)
            from_s = time.monotonic()
            effects = ["dies"]
            if what.startswith("link"):
                effects = ["stands"]  # what is under way there arrives late
                await self._at_engine_link(url, what, fault, chance)
            elif what == "killed":
                await self._kill_engine(url)
            elif what == "stopped":
                effects = ["stands"]
                await _stand(self.cell.engines[url], fault.lasts_s)
            else:
                effects = ["fails"]
                await self._set_engine(url, what, fault, chance)
            self._note(fault, [url], effects, from_s)
            self._busy.discard(url)

    async def _at_engine_link(self, url: str, what: str, fault: Fault, chance: random.Random) -> None:
        link = self.cell.engine_links[url]
        if what == "link closed":
            link.close()
        elif what == "link frozen":
            link.freeze()
        elif what == "link slow":
            link.slow(chance.uniform(0.0, 0.05), chance.uniform(5_000, 100_000), chance.randint(1, 50))
        elif what == "link truncated":
            link.truncate(chance.randint(0, 4_000))
        else:
            link.corrupt(chance, 1 / chance.randint(500, 5_000))
        await asyncio.sleep(fault.lasts_s)
        link.mend()

    async def _kill_engine(self, url: str) -> None:
        engine = self.cell.engines[url]
        await engine.kill()
        self.died_s.setdefault(url, []).append(time.monotonic())
        engine.start()
        await until_listening(engine)

    async def _set_engine(self, url: str, what: str, fault: Fault, chance: random.Random) -> None:
        settings: dict[str, dict[str, object]] = {
            "slow": {"slow_factor": chance.uniform(1.3, 3.0)},
            "drops streams": {"die_after_tokens": chance.randint(1, 20), "times": chance.randint(1, 6)},
            "dies before answers": {"die_after_tokens": 0, "times": chance.randint(1, 4)},
            "hangs": {"hang_after_tokens": chance.randint(0, 10)},
            "refuses": {"refuse": True},
        }
        await set_faults(url, **settings[what])
        await asyncio.sleep(fault.lasts_s)
        await set_faults(url)

    # --- relays, dispatchers and the links between them --------------------------------------------------------------

    async def _at_relay(self, what: str, fault: Fault, chance: random.Random) -> None:
        async with self._relays:
            name = chance.choice([*self.cell.relays])
            relay, from_s = self.cell.relays[name], time.monotonic()
            effects = ["dies"]
            if what == "killed":
                await relay.kill()
                relay.start()
                await self._until_ready(relay)
            elif what == "ended":
                effects = []  # its streams end first
                await relay.end()
                relay.start()
                await self._until_ready(relay)
            elif what == "stopped":
                effects = ["stands"]
                await _stand(relay, fault.lasts_s)
            else:
                effects = []
                links = self.cell.links_of(name)
                for link in links:
                    link.freeze()
                await asyncio.sleep(fault.lasts_s)
                for link in links:
                    link.mend()
            self._note(fault, [name], effects, from_s)

    async def _at_link(self, what: str, fault: Fault, chance: random.Random) -> None:
        name = chance.choice([*self.cell.relays])
        from_s = time.monotonic()
        for link in (links := self.cell.links_of(name, self.cell.leader() or "dispatcher-1")):
            if what == "closed":
                link.close()
            else:
                link.freeze()
        await asyncio.sleep(fault.lasts_s)
        for link in links:
            link.mend()
        self._note(fault, [name], [], from_s)

    async def _at_dispatcher(self, what: str, fault: Fault, _chance: random.Random) -> None:
        async with self._dispatchers:
            leader = await self._find_leader()
            standby = next(name for name in self.cell.dispatchers if name != leader)
            name = leader if fault.kind.startswith("leader") else standby
            dispatcher, from_s = self.cell.dispatchers[name], time.monotonic()
            if what == "stopped":
                await _stand(dispatcher, fault.lasts_s)
            else:
                if what == "killed":
                    await dispatcher.kill()
                else:
                    await dispatcher.end()
                dispatcher.start()
                await until_listening(dispatcher)
            self._note(fault, [name], [], from_s)

    async def _find_leader(self) -> str:
        deadline = time.monotonic() + READY_S
        while (leader := self.cell.leader()) is None:
            if time.monotonic() > deadline:
                raise SystemExit("no dispatcher leads")
            await asyncio.sleep(0.05)
        return leader

    async def _until_ready(self, relay: Member) -> None:
        """A relay is ready only while a dispatcher leads, which other faults may delay."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await until_ready(relay)

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def _at_database(self, what: str, fault: Fault, chance: random.Random) -> None:
        async with self._database:
            database, from_s = self.cell.database, time.monotonic()
            if what == "killed":
                await asyncio.to_thread(database.kill, chance.choice([signal.SIGQUIT, signal.SIGKILL]))
                await asyncio.sleep(fault.lasts_s)
                await asyncio.to_thread(database.start)
            elif what == "cut":
                await asyncio.to_thread(cut_connections, database.url)
            elif what.startswith("link"):
                await self._at_database_link(what, fault, chance)
            elif what == "stopped":
                paused = database.pause()
                try:
                    await asyncio.sleep(fault.lasts_s)
                finally:
                    database.resume(paused)
            else:
                await asyncio.to_thread(_set_read_only, database.url, "on")
                await asyncio.sleep(fault.lasts_s)
                await asyncio.to_thread(_set_read_only, database.url, "off")
            self._note(fault, ["database"], [], from_s)

    async def _at_database_link(self, what: str, fault: Fault, chance: random.Random) -> None:
        link = self.cell.database_link
        if what == "link closed":
            link.close()
        elif what == "link frozen":
            link.freeze()
        else:
            link.slow(chance.uniform(0.01, 0.2))
        await asyncio.sleep(fault.lasts_s)
        link.mend()

    async def _at_balancer(self, _what: str, fault: Fault, _chance: random.Random) -> None:
        async with self._relays:
            from_s = time.monotonic()
            await self.cell.balancer.kill()
            killed_s = time.monotonic()
            self.cell.balancer.start()
            await until_listening(self.cell.balancer)
            self.done.append(Done(fault.kind, ["balancer", "", *self.cell.relays], ["dies"], from_s, killed_s))

    async def _at_configuration(self, what: str, fault: Fault, chance: random.Random) -> None:
        async with self._configuration:
            from_s = time.monotonic()
            if what == "broken":
                lines = chance.choice(("[[models]\n", "[gateway]\nport = 1\n", '[[models]]\nname = "other"\n'))
            else:
                lines = f'[[models]]\nname = "other-{fault.dice}"\n[[models.replicas]]\nurl = "http://127.0.0.1:9"\n'
            self.cell.more_lines = lines
            self.cell.write_config()
            await asyncio.sleep(max(1.2, fault.lasts_s))  # it is read within a second
            self.cell.more_lines = ""
            self.cell.write_config()
            await asyncio.sleep(1.2)
            self._note(fault, ["configuration"], [], from_s)

    async def _at_key(self, _what: str, fault: Fault, _chance: random.Random) -> None:
        async with self._keys:
            from_s = time.monotonic()
            names = [key.id for key in KEYS if key.may_be_revoked]
            for is_revoked in (True, False):
                while not await asyncio.to_thread(self._try_revoke, names, is_revoked=is_revoked):
                    await asyncio.sleep(0.1)
                await asyncio.sleep(fault.lasts_s)
            self.done.append(Done(fault.kind, names, ["revoked"], from_s, time.monotonic() + 60.0))

    def _try_revoke(self, names: list[str], *, is_revoked: bool) -> bool:
        """The database may be away."""
        try:
            self.cell.set_revoked(names, is_revoked=is_revoked)
        except StoreUnavailable:
            return False
        return True


async def _stand(member: Member, for_s: float) -> None:
    member.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        member.signal(signal.SIGCONT)


def _set_read_only(url: str, value: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        connection.execute(b"SELECT pg_reload_conf()")
