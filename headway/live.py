"""The configuration that a gateway serves, which changes while it runs; and what admins may do.

Core gets the new policy, the fleet goes to the replicas that are wanted, and calls that are not read yet find the new
models, aliases, tiers and prices. Calls that are here are served to their end. For a relay, the first two are the
dispatcher's matter.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import asdict

from headway.api.admin import PoolReading, ReplicaLife
from headway.api.app import App
from headway.config import Config, from_text, parse
from headway.config.differences import Difference, differences
from headway.config.to_core import hosted_prices_in, prices_in
from headway.config_file import ConfigFile
from headway.console.snapshot import PolicyReading, cell_of, state_of
from headway.deciding import members_of, policies_of
from headway.discovery import Discovery
from headway.dispatch.base import ServedConfig
from headway.dispatch.fleet import Member
from headway.dispatch.frames import AdminAnswer, AdminOrder, DemandStatus, RegisterOrder, ReplicaStatus
from headway.dispatch.local import LocalDispatch
from headway.dispatch.relay_fleet import OrderOf
from headway.dispatch.remote import RemoteDispatch
from headway.dispatch.status import replicas_status
from headway.engine_making import EngineMaker, check_engines
from headway.errors import Refused
from headway.gateway.serve import Gateway

log = logging.getLogger("headway.config")


class LiveConfig:
    """Of a gateway that decides for itself. Its configuration is from the file `source`, which is watched if it is
    given."""

    def __init__(self, config: Config, dispatch: LocalDispatch, source: Path | None = None) -> None:
        self.config = config
        self._dispatch = dispatch
        self._discovery = Discovery(config, dispatch.fleet.is_open, lambda: dispatch.fleet.want(self._members()))
        self._source = source
        self._watching: asyncio.Task[None] | None = None
        self._gateway: Gateway  # all from `start` on
        self._app: App
        self._engines: EngineMaker

    def start(self, gateway: Gateway, app: App, engines: EngineMaker) -> None:
        self._gateway, self._app, self._engines = gateway, app, engines
        self._discovery.start()
        if self._source is not None:
            file = ConfigFile(self._source, self, lambda result: gateway.metrics.config_reads.labels(result).inc())
            self._watching = gateway.supervisor.start("configuration", file.run)

    def stop(self) -> None:
        self._discovery.stop()
        if self._watching is not None:
            self._watching.cancel()

    def check(self, wanted: Config) -> None:
        check_engines(wanted)

    def apply(self, served: Config) -> None:
        self.config = served
        self._engines.configure(served)
        self._discovery.configure(served)
        self._dispatch.reconfigure(*policies_of(served), self._members())
        _serve(served, self._gateway, self._app)

    def _members(self) -> list[Member]:
        return [*self._discovery.members(), *members_of(self.config)]  # of two with one URL the listed one counts

    # --- console/pages.py ---

    async def policy(self) -> PolicyReading:
        return PolicyReading(replicas_status(self._dispatch.machine, self._dispatch.fleet), self._dispatch.demand())

    # --- api/admin.py ---

    async def replicas(self) -> list[ReplicaLife]:
        return [_life(one) for one in replicas_status(self._dispatch.machine, self._dispatch.fleet)]

    async def demand(self) -> list[PoolReading]:
        return [_reading(one) for one in self._dispatch.demand()]

    async def drain(self, url: str, *, is_undone: bool) -> bool:
        fleet = self._dispatch.fleet
        return fleet.open_again(url) if is_undone else fleet.drain(url)

    async def register(self, model: str, urls: list[str]) -> bool:
        return self._discovery.register(model, urls)

    def differences(self, text: str) -> list[Difference]:
        return differences(self.config, parse(text, "the configuration"))


class RelayConfig:
    """Of a relay: the dispatcher has it, and changes it."""

    def __init__(self, config: Config, own: Callable[[Config], Config]) -> None:
        """`own` makes of the configuration of all relays that of this one."""
        self.config = config
        self.needs_restart = False
        self.dispatch: RemoteDispatch  # set when it is made
        self._own = own
        self._gateway: Gateway  # all from `start` on
        self._app: App
        self._engines: EngineMaker

    def start(self, gateway: Gateway, app: App, engines: EngineMaker) -> None:
        self._gateway, self._app, self._engines = gateway, app, engines

    def stop(self) -> None: ...

    def take(self, text: str) -> ServedConfig | None:
        """The dispatcher has another configuration. None: this relay ends, and must be started again with it."""
        wanted = from_text(text)
        if any(one.needs_restart for one in differences(self.config, wanted)):
            log.warning("the dispatcher's configuration is another one: this relay ends its streams and starts again")
            self.needs_restart = True
            signal.raise_signal(signal.SIGTERM)
            return None
        for one in differences(self.config, wanted):
            log.info("%s", one)
        self._engines.configure(wanted)
        _serve(self._own(wanted), self._gateway, self._app)
        self.config = wanted
        return ServedConfig(text, policies_of(wanted)[1])

    # --- console/pages.py ---

    async def policy(self) -> PolicyReading:
        answer = await self._order(lambda number: AdminOrder(number, "", is_undone=False))
        return PolicyReading(answer.replicas, answer.demand, cell_of(self.dispatch.epoch, answer.relays, answer.lag_s))

    # --- api/admin.py ---

    async def replicas(self) -> list[ReplicaLife]:
        answer = await self._order(lambda number: AdminOrder(number, "", is_undone=False))
        return [_life(one) for one in answer.replicas]

    async def demand(self) -> list[PoolReading]:
        answer = await self._order(lambda number: AdminOrder(number, "", is_undone=False))
        return [_reading(one) for one in answer.demand]

    async def drain(self, url: str, *, is_undone: bool) -> bool:
        return (await self._order(lambda number: AdminOrder(number, url, is_undone))).is_known

    async def register(self, model: str, urls: list[str]) -> bool:
        return (await self._order(lambda number: RegisterOrder(number, model, urls))).is_known

    def differences(self, text: str) -> list[Difference]:
        return differences(self.config, parse(text, "the configuration"))

    async def _order(self, order: OrderOf) -> AdminAnswer:
        if (answer := await self.dispatch.order(order)) is None:
            raise Refused("no_dispatcher", 1)
        return answer


def _serve(config: Config, gateway: Gateway, app: App) -> None:
    gateway.change_prices(prices_in(config), hosted_prices_in(config))
    app.configure(config)


def _life(status: ReplicaStatus) -> ReplicaLife:
    return ReplicaLife(status.name, status.pool, state_of(status), status.aboard, status.seats, status.is_light)


def _reading(status: DemandStatus) -> PoolReading:
    demand = asdict(status)
    return PoolReading(demand.pop("pool"), [asdict(one) for one in demand.pop("tiers")], demand)
