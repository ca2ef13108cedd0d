"""Faults of what stands around the gateways: database, load balancer, DNS, certificates, configuration and keys."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from functools import partial

import psycopg

from headway.ledger.store import StoreUnavailable
from runs.ledger.torture import cut_connections
from runs.torture.cell import STRANGER, TortureCell
from runs.torture.judge import Done
from runs.torture.links import FaultyLink, break_for_a_while
from runs.torture.plan import Fault
from runs.torture.processes import start_until_listening
from runs.torture.workload import KEYS

READ_AGAIN_S = 1.2  # a changed configuration is read within a second
CACHED_S = 60.0  # after which a relay surely knows that a key is valid again, though the database was away


class AtStores:
    def __init__(self, cell: TortureCell, relays: asyncio.Lock) -> None:
        """`relays`: held while no relay may be broken."""
        self._cell = cell
        self._relays = relays
        self._database, self._configuration, self._keys = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._names, self._certificate = asyncio.Lock(), asyncio.Lock()

    async def at_database(self, what: str, fault: Fault, chance: random.Random) -> Done:
        async with self._database:
            database, from_s = self._cell.database, time.monotonic()
            if what == "killed":
                await asyncio.to_thread(database.kill, chance.choice([signal.SIGQUIT, signal.SIGKILL]))
                await asyncio.sleep(fault.lasts_s)
                await asyncio.to_thread(database.start)
            elif what == "cut":
                await asyncio.to_thread(cut_connections, database.url)
            elif what == "stopped":
                paused = database.pause()
                try:
                    await asyncio.sleep(fault.lasts_s)
                finally:
                    database.resume(paused)
            elif what == "read-only":
                await asyncio.to_thread(_set_read_only, database.url, "on")
                await asyncio.sleep(fault.lasts_s)
                await asyncio.to_thread(_set_read_only, database.url, "off")
            else:
                causes = {"link closed": FaultyLink.close, "link frozen": FaultyLink.freeze}
                slow = partial(FaultyLink.slow, delay_s=chance.uniform(0.01, 0.2))
                await break_for_a_while([self._cell.database_link], causes.get(what, slow), fault.lasts_s)
            return Done(fault.kind, ["database"], [], from_s, time.monotonic())

    async def at_balancer(self, _what: str, fault: Fault, _chance: random.Random) -> Done:
        async with self._relays:
            from_s, balancer = time.monotonic(), self._cell.balancer
            await balancer.kill()
            killed_s = time.monotonic()
            await start_until_listening(balancer)
            return Done(fault.kind, ["balancer"], ["dies"], from_s, killed_s)

    async def at_names(self, what: str, fault: Fault, _chance: random.Random) -> Done:
        async with self._names:
            from_s, names = time.monotonic(), self._cell.names
            if what == "empty":
                names.name_nobody()
            elif what == "dead":
                names.name_the_dead()
            elif what == "strangers":
                names.name_only([STRANGER])
            else:
                names.be_silent()
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(names.mend)
            return Done(fault.kind, ["names"], [], from_s, time.monotonic())

    async def at_certificate(self, _what: str, fault: Fault, _chance: random.Random) -> Done:
        async with self._certificate:
            from_s, front = time.monotonic(), self._cell.front
            await asyncio.to_thread(front.expire)
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(front.mend)
            return Done(fault.kind, ["front"], ["expired"], from_s, time.monotonic())

    async def at_configuration(self, what: str, fault: Fault, chance: random.Random) -> Done:
        async with self._configuration:
            from_s = time.monotonic()
            lines = f'[[models]]\nname = "other-{fault.dice}"\n[[models.replicas]]\nurl = "http://127.0.0.1:9"\n'
            if what == "broken":
                lines = chance.choice(("[[models]\n", "[gateway]\nport = 1\n", '[[models]]\nname = "other"\n'))
            for more_lines in (lines, ""):
                self._cell.more_lines = more_lines
                self._cell.write_config()
                await asyncio.sleep(max(READ_AGAIN_S, fault.lasts_s))
            return Done(fault.kind, ["configuration"], [], from_s, time.monotonic())

    async def at_key(self, _what: str, fault: Fault, _chance: random.Random) -> Done:
        async with self._keys:
            from_s = time.monotonic()
            names = [key.id for key in KEYS if key.may_be_revoked]
            for is_revoked in (True, False):
                while not await asyncio.to_thread(self._try_revoke, names, is_revoked=is_revoked):
                    await asyncio.sleep(0.1)
                await asyncio.sleep(fault.lasts_s)
            return Done(fault.kind, names, ["revoked"], from_s, time.monotonic() + CACHED_S)

    def _try_revoke(self, names: list[str], *, is_revoked: bool) -> bool:
        """The database may be away."""
        try:
            self._cell.set_revoked(names, is_revoked=is_revoked)
        except StoreUnavailable:
            return False
        return True


def _set_read_only(url: str, value: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        connection.execute(b"SELECT pg_reload_conf()")
