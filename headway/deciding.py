"""Builds whoever decides from a configuration: core for one gateway, or a dispatcher for many relays.

Apart from run.py, so that a dispatcher that has died is started again without what only gateways import.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric

from headway.config import CellTable, Config, LedgerTable, as_text, from_text, load
from headway.config.to_core import overflow_of, policy_of, replica_of
from headway.config_file import ConfigFile
from headway.core.machine import Machine
from headway.core.types import Offer, PoolPolicy, Replica, own_pools
from headway.discovery import Discovery
from headway.dispatch.address import Address, TcpAddress, UnixAddress
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.endpoints import listen
from headway.dispatch.fleet import Member
from headway.dispatch.leading import LeaseCandidate
from headway.dispatch.lease import LeaderLease
from headway.dispatch.lease_etcd import EtcdLease
from headway.dispatch.lease_file import FileLease
from headway.dispatch.lease_postgres import PostgresLease
from headway.dispatch.link import Link
from headway.dispatch.local import LocalDispatch
from headway.dispatch.metrics_server import MetricsServer
from headway.dispatch.pages import MetricPages
from headway.dispatch.record import EventLog, record_of
from headway.dispatch.security import Security
from headway.dispatch.sessions import RelaySession
from headway.engines.kinds import HOSTED
from headway.errors import SetupError
from headway.gateway.metrics import Metrics
from headway.supervise import Supervisor, measure_lag

DISPATCHER = "dispatcher"

# The objects of an ended call refer to each other, so only a full garbage collection frees them. Python makes one after
# about 77,000 new objects; until then they are memory that grows with every new maximum. Once the objects of the start
# are frozen, a full collection is short, so one is made after about 8,000.
GC_THRESHOLDS = (700, 5, 1)
# Core makes no such objects, and with 20,000 calls under way a full collection lasts 30 ms, while nobody gets a seat.
# So a dispatcher makes one after some million new objects. Small ones are made seldom too: what comes and goes with the
# load is freed without them, and they would look at every call that is under way.
DISPATCHER_GC_THRESHOLDS = (10_000, 10, 100)


def policies_of(config: Config) -> tuple[dict[str, PoolPolicy], dict[str, Offer]]:
    """The arguments of core's Machine."""
    pools, offers = own_pools({model.name: policy_of(model) for model in config.models if model.replicas_of is None})
    for model in config.models:
        if model.replicas_of is not None or model.hosted is not None:
            offers[model.name] = Offer(model.replicas_of or model.name, policy_of(model).tiers, overflow_of(model))
        if model.hosted is not None:
            pools[overflow_of(model)] = PoolPolicy()
    return pools, offers


def check_can_be_shared(config: Config) -> None:
    """Raises SetupError for what works in one process only."""
    for model in config.models:
        if model.auto is not None and config.ledger is None:
            raise SetupError(
                f"Model {model.name!r} has [models.auto]: relays share its audits in the store of a [ledger]. Add one, "
                "or serve it in one process."
            )


def members_of(config: Config) -> list[Member]:
    listed = [
        Member(
            replica_of(model, replica, name=replica.url),
            replica.kind,
            kv_events=replica.kv_events or "",
            kv_replay=replica.kv_replay or "",
        )
        for model in config.models
        for replica in model.replicas
    ]
    hosted = [(model, model.hosted) for model in config.models if model.hosted is not None]
    return listed + [Member(Replica(one.url, overflow_of(model), one.seats), HOSTED) for model, one in hosted]


def decide_here(config: Config, record_to: Path | None = None) -> LocalDispatch:
    pools, offers = policies_of(config)
    record = EventLog(record_to, pools, offers) if record_to else None
    return LocalDispatch(Machine(pools, offers), members_of(config), record)


def make_dispatcher(
    config: Config,
    epoch: int,
    listed: Iterable[str],
    record_to: Path | None = None,
    members: Iterable[Member] | None = None,
) -> Dispatcher:
    """`listed` are the names of the relays that there are. `members` are its replicas, if not those of `config`."""
    pools, offers = policies_of(config)
    record = EventLog(record_to, pools, offers) if record_to else None
    wanted = members_of(config) if members is None else members
    return Dispatcher(Machine(pools, offers), wanted, epoch, as_text(config), listed, record)


class DispatchedConfig:
    """The configuration that a dispatcher serves, or will serve once it leads."""

    def __init__(self, config: Config, leading: Callable[[], Dispatcher | None]) -> None:
        self.config = config
        self.discovery = Discovery(config, self._is_open, self._found)
        self._leading = leading

    def members(self) -> list[Member]:
        return [*self.discovery.members(), *members_of(self.config)]  # of two with one URL the listed one counts

    def lead(self, dispatcher: Dispatcher) -> Dispatcher:
        """This dispatcher decides from now on, or tries to."""
        dispatcher.cell.set_registered = self.discovery.register
        return dispatcher

    def check(self, wanted: Config) -> None:
        check_can_be_shared(wanted)

    def apply(self, served: Config) -> None:
        self.config = served
        self.discovery.configure(served)
        if (dispatcher := self._leading()) is not None:
            dispatcher.reconfigure(as_text(served), *policies_of(served), self.members())

    def _found(self) -> None:
        if (dispatcher := self._leading()) is not None:
            dispatcher.cell.fleet.want(self.members())

    def _is_open(self, url: str) -> bool:
        dispatcher = self._leading()
        return dispatcher is not None and dispatcher.cell.fleet.is_open(url)


async def run_dispatcher(
    source: Path,
    address: Address,
    epoch: int,
    listed: Iterable[str],
    record_to: Path | None,
    on_listening: Callable[[], None],
) -> None:
    """Decide for the relays of one box until SIGTERM. `source` has the configuration as the parent writes it, which
    tells by SIGHUP that it has changed; `listed` are the names of the relays that there are."""

    def read() -> Config:
        return from_text(source.read_text())

    dispatcher = make_dispatcher(read(), epoch, listed, record_to)
    served = DispatchedConfig(read(), lambda: dispatcher)
    served.lead(dispatcher)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: served.apply(read()))
    serving = _Deciding(dispatcher.run, dispatcher.make_session, dispatcher.metrics, served)
    await serving.until_told(address, None, on_listening)
    dispatcher.close()


async def run_candidate(
    source: Path,
    address: Address,
    security: Security,
    record_to: Path | None,
    metrics_at: TcpAddress | None,
    on_listening: Callable[[], None],
) -> None:
    """Lead a cell, or stand by for whoever leads it, until SIGTERM. `source` is the file of the configuration."""
    config = load(source)
    if (cell := config.cell) is None:
        raise SetupError("`headway dispatch` needs the table [cell] in the configuration: add it with your `relays`.")
    check_can_be_shared(config)
    terms = itertools.count(1)

    def make(epoch: int) -> Dispatcher:
        record = record_of(record_to, next(terms)) if record_to is not None else None
        return served.lead(make_dispatcher(served.config, epoch, cell.relays, record, served.members()))

    lease = lease_of(cell, config.ledger)
    candidate = LeaseCandidate(lease, cell.relays, make)
    served = DispatchedConfig(config, lambda: candidate.term.dispatcher if candidate.term is not None else None)
    serving = _Deciding(candidate.run, candidate.make_session, candidate.metrics, served, source)
    try:
        await serving.until_told(address, security, on_listening, metrics_at)
    finally:
        await lease.close()


def lease_of(cell: CellTable, ledger: LedgerTable | None) -> LeaderLease:
    if cell.lease == "etcd":
        return EtcdLease(cell.etcd, cell.name)
    if cell.lease.startswith("file:"):
        return FileLease(Path(cell.lease.removeprefix("file:")))
    assert ledger is not None
    return PostgresLease(ledger.store, cell.name)


@dataclass(frozen=True)
class _Deciding:
    """A process that decides, as its loop, its relays and its metrics."""

    run: Callable[[], Awaitable[None]]
    make_session: Callable[[Link], RelaySession]
    policy_metrics: Callable[[], Iterable[Metric]]
    served: DispatchedConfig
    source: Path | None = None  # of `served`, if it is read again when it has changed

    async def until_told(
        self,
        address: Address,
        security: Security,
        on_listening: Callable[[], None],
        metrics_at: TcpAddress | None = None,
    ) -> None:
        """Until SIGTERM or SIGINT."""
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        supervisor = Supervisor()
        metrics = Metrics(self.policy_metrics, supervisor)
        listener = await listen(address, self.make_session, security)
        pages: list[MetricPages | MetricsServer] = []
        if isinstance(address, UnixAddress):
            pages.append(MetricPages(address.path.parent, DISPATCHER, metrics.page))
        if metrics_at is not None:
            pages.append(MetricsServer(metrics_at, metrics.page))
        for one in pages:
            await one.start()
        tasks = [
            supervisor.start("dispatcher", self.run, matters=True),
            supervisor.start("loop lag", lambda: measure_lag(metrics.loop_lag.observe)),
        ]
        self.served.discovery.start()
        if self.source is not None:
            file = ConfigFile(self.source, self.served, lambda result: metrics.config_reads.labels(result).inc())
            tasks.append(supervisor.start("configuration", file.run))
        gc.freeze()
        gc.set_threshold(*DISPATCHER_GC_THRESHOLDS)
        on_listening()
        await told.wait()
        self.served.discovery.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.close()
        for one in pages:
            await one.stop()
