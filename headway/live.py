"""A gateway whose configuration and replicas change while it runs.

headway.toml is read again when it has changed and on SIGHUP. It is checked first; if anything is wrong, nothing
changes. Otherwise its differences are applied: core gets the new policy, the fleet goes to the replicas that are
wanted, and calls that are not read yet find the new models, aliases, tiers and prices. Calls that are here are served
to their end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path

from prometheus_client import Counter

from headway.api.admin import ReplicaLife
from headway.api.app import App
from headway.config import Config, load, parse
from headway.config.differences import Difference, differences, without_restart
from headway.config.to_core import prices_of
from headway.deciding import members_of, policies_of
from headway.dispatch.local import LocalDispatch
from headway.engines.kinds import check_kind
from headway.errors import SetupError
from headway.gateway.serve import Gateway

log = logging.getLogger("headway.config")

LOOK_S = 1.0  # between two looks at the file


class LiveConfig:
    """The configuration that is served."""

    def __init__(self, config: Config, gateway: Gateway, dispatch: LocalDispatch) -> None:
        self.config = config
        self.app: App  # set when it is made
        self._gateway = gateway
        self._dispatch = dispatch
        self._watching: asyncio.Task[None] | None = None

    def watch(self, source: Path) -> None:
        """Take over what changes in the file that the configuration is from."""
        file = ConfigFile(source, self, self._gateway.metrics.config_reads)
        self._watching = self._gateway.supervisor.start("configuration", file.run)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def apply(self, served: Config) -> None:
        """`served` differs from the configuration before only in what needs no restart."""
        self._dispatch.reconfigure(*policies_of(served), members_of(served))
        self._gateway.change_prices({model.name: prices_of(model) for model in served.models})
        self.app.configure(served)
        self.config = served

    # --- api/admin.py ---

    def replicas(self) -> list[ReplicaLife]:
        fleet, machine = self._dispatch.fleet, self._dispatch.machine
        rows = []
        for name, member in fleet.members.items():
            pool = machine.pools.get(member.replica.pool)
            is_open = pool is not None and pool.is_open(name)
            state = "draining" if fleet.is_draining(name) else "open" if is_open else "closed"
            rows.append(ReplicaLife(name, member.replica.pool, state, fleet.aboard(name), member.replica.seats))
        return rows

    def drain(self, url: str, *, is_undone: bool) -> bool:
        fleet = self._dispatch.fleet
        return fleet.open_again(url) if is_undone else fleet.drain(url)

    def differences(self, text: str) -> list[Difference]:
        return differences(self.config, parse(text, "the configuration"))


class ConfigFile:
    """headway.toml, which is looked at while the gateway runs."""

    def __init__(self, path: Path, live: LiveConfig, reads: Counter) -> None:
        self._path = path
        self._live = live
        self._reads = reads
        self._is_asked = asyncio.Event()
        self._seen = self._stamp()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._is_asked.set)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_asked.wait()
            stamp = self._stamp()
            if self._is_asked.is_set() or stamp != self._seen:
                self._is_asked.clear()
                self._seen = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            wanted = await asyncio.to_thread(load, self._path)  # with thousands of replicas it lasts for a while
            for member in members_of(wanted):
                check_kind(member.name, member.kind)
            before = self._live.config
            served = await asyncio.to_thread(without_restart, before, wanted)
        except SetupError as error:
            log.error("%s was read again and is refused, so nothing has changed:\n%s", self._path, error.message)
            self._reads.labels("refused").inc()
            return
        self._live.apply(served)
        found = differences(before, wanted)
        log.info("%s was read again: %s", self._path, f"{len(found)} differences" if found else "nothing has changed")
        for one in found:
            log.info("%s", one)
        self._reads.labels("applied").inc()

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes with the file, also if another one is put in its place."""
        try:
            found = self._path.stat()
        except OSError:  # it is being replaced, or gone: then what is served stays
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
