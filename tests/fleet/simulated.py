"""A cluster and a gateway without processes, for tests of who is started, drained and stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from headway.core.demand import PoolDemand
from headway.errors import SetupError
from headway.fleet.decisions import GatewayReplica
from headway.fleet.held import Phase, Report, name_of
from headway.fleet.keeper import AskedGateway, ClusterAway
from headway.fleet.tables import FleetGatewayTable, FleetTable, ProcessTable, Times

GATEWAY = FleetGatewayTable(url="http://gateway", admin_key_file="key")
BROKEN, HUGE = "broken", "huge"  # commands: one never gets ready, for the other no node has room


def engines(name: str = "engine", port: int = 9000, **more: object) -> ProcessTable:
    table: dict[str, object] = {"name": name, "command": ["a"], "model": "m", "count": 2, "port": port}
    return ProcessTable.model_validate(table | more)


def relays(**more: object) -> ProcessTable:
    return engines("relay", 7000, **({"model": None} | more))


def fleet_of(*tables: ProcessTable) -> FleetTable:
    return FleetTable(gateway=GATEWAY, processes=list(tables))


@dataclass
class FakeHolder:
    table: ProcessTable
    index: int
    node: int
    phase: Phase = "starting"
    is_leaving: bool = False
    is_mute: bool = False
    times: Times | None = None

    @property
    def url(self) -> str:
        return f"http://node{self.node}:{self.table.port + self.index}"

    @property
    def is_answering(self) -> bool:
        return not self.is_mute and self.table.command[0] != HUGE

    def report(self) -> Report:
        known = self.table.name, self.index, self.table.version, self.table.model, self.table.port + self.index
        if not self.is_answering:
            return Report(*known, "away")
        return Report(*known, self.phase, self.url, self.is_leaving, grace_s=self.table.grace_s)


@dataclass
class FakeGateway(AskedGateway):
    """One replica for each URL; it opens when its engine is ready, and goes when it drains and has no streams."""

    models: dict[str, str] = field(default_factory=dict)  # by URL
    aboard: dict[str, int] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    registered: dict[str, set[str]] = field(default_factory=dict)
    demands: dict[str, PoolDemand] = field(default_factory=dict)
    is_away: bool = False
    unknown_models: set[str] = field(default_factory=set)

    def replicas(self) -> dict[str, GatewayReplica]:
        self._check()
        return {
            url: GatewayReplica(url, model, url in self.opened, self.aboard.get(url, 0))
            for url, model in self.models.items()
        }

    def demand(self) -> dict[str, PoolDemand]:
        self._check()
        return self.demands

    def register(self, model: str, urls: list[str]) -> None:
        self._check()
        if model in self.unknown_models:
            raise SetupError(f"Engines of {model!r} are not registered")
        self.registered[model] = set(urls)
        for url in urls:
            self.models.setdefault(url, model)
        for url in [url for url, its in self.models.items() if its == model and url not in urls]:
            self.opened.discard(url)

    def look(self, ready: set[str]) -> None:
        """Probe all engines, and drop those that have drained."""
        for url, model in list(self.models.items()):
            if url in self.registered.get(model, ()):
                (self.opened.add if url in ready else self.opened.discard)(url)
            elif not self.aboard.get(url):
                del self.models[url]

    def restart(self) -> None:
        self.models.clear()
        self.aboard.clear()
        self.opened.clear()
        self.registered.clear()

    def _check(self) -> None:
        if self.is_away:
            raise SetupError("The gateway does not answer")


class FakeCluster:
    def __init__(self, gateway: FakeGateway) -> None:
        self.holders: dict[str, FakeHolder] = {}
        self.is_away = False
        self.log: list[str] = []  # what was ordered
        self._gateway = gateway
        self._nodes = count()

    # --- what the keeper sees ---

    def reports(self, times: Mapping[str, Times]) -> dict[str, Report]:
        self._check()
        for holder in self.holders.values():
            if holder.is_answering:
                holder.times = times.get(holder.table.name, holder.times)
        return {name: holder.report() for name, holder in self.holders.items()}

    def start(self, table: ProcessTable, index: int) -> None:
        self._check()
        name = name_of(table.name, index)
        assert name not in self.holders, "two holders share a number"
        assert index < table.most + (table.model is not None), "a port outside of the table's"
        self.holders[name] = FakeHolder(table, index, next(self._nodes))
        self.log.append(f"start {name}")

    def leave(self, name: str, *, is_leaving: bool) -> None:
        self._check()
        self.log.append(f"{'leave' if is_leaving else 'stay'} {name}")
        if self.holders[name].is_answering:  # otherwise the message is lost
            self.holders[name].is_leaving = is_leaving

    def stop(self, name: str, grace_s: float) -> None:
        self._check()
        holder = self.holders[name]
        holder.phase = "stopped"  # and it is gone when time goes on
        if holder.table.model is not None:
            assert not self._gateway.is_away, "nobody can know whether streams are aboard"
            assert not self._gateway.aboard.get(holder.url), "an engine is stopped with streams aboard"
        self.log.append(f"stop {name} {grace_s:g}")

    def _check(self) -> None:
        if self.is_away:
            raise ClusterAway("no head")

    # --- what happens ---

    def pass_time(self) -> None:
        for name, holder in list(self.holders.items()):
            if holder.phase == "stopped":
                del self.holders[name]
            elif holder.table.command[0] not in (BROKEN, HUGE):
                holder.phase = "ready"
        self._gateway.look({holder.url for holder in self.holders.values() if holder.phase == "ready"})

    def die(self, name: str) -> None:
        """The node of a holder dies, and Ray starts it on another one."""
        holder = self.holders[name]
        self._gateway.aboard.pop(holder.url, None)
        self.holders[name] = FakeHolder(holder.table, holder.index, next(self._nodes))

    def serves(self, holder: FakeHolder) -> bool:
        is_open = holder.table.model is None or holder.url in self._gateway.opened
        return holder.is_answering and holder.phase == "ready" and is_open
