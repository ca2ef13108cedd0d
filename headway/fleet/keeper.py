"""Keeps a fleet as its tables say: asks the holders, asks the gateway, and does what decisions.py orders.

Remembers nothing that it cannot ask for again, so that it can be killed and started elsewhere at any time. A cluster or
a gateway that does not answer changes nothing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headway.admin_client import ask_admin
from headway.errors import SetupError
from headway.fleet.decisions import GatewayReplica, Leave, Start, Stop, orders, registered
from headway.fleet.held import Report
from headway.fleet.tables import FleetGatewayTable, FleetTable, ProcessTable

log = logging.getLogger("headway.fleet")

STEP_S = 1.0


class Cluster(Protocol):
    """The nodes, and the holders on them. Any method may raise ClusterAway."""

    def reports(self) -> dict[str, Report]:
        """Of all holders of this fleet, by name; `unknown` of those that do not answer."""

    def start(self, table: ProcessTable, index: int) -> None:
        """Place a holder for this process. Returns before it runs."""

    def leave(self, name: str, *, is_leaving: bool) -> None: ...

    def stop(self, name: str, grace_s: float) -> None:
        """End the process, then its holder. Returns before that."""


class ClusterAway(Exception):
    """The cluster cannot be asked at the moment."""


class AskedGateway:
    """The gateway's `/admin`. Each method raises SetupError if it cannot be asked."""

    def __init__(self, table: FleetGatewayTable) -> None:
        self._table = table

    def replicas(self) -> dict[str, GatewayReplica]:
        answer = ask_admin(self._table.url, self._key(), "/admin/replicas")
        rows = [
            GatewayReplica(row["url"], row["model"], row["state"] == "open", row["aboard"])
            for row in answer["replicas"]
        ]
        return {row.url: row for row in rows}

    def register(self, model: str, urls: list[str]) -> None:
        order = json.dumps({"model": model, "urls": urls}).encode()
        ask_admin(self._table.url, self._key(), "/admin/registered", order)

    def _key(self) -> str:
        try:
            return Path(self._table.admin_key_file).read_text().strip()
        except OSError as error:
            raise SetupError(f"The admin key cannot be read on this node: {error}.") from error


class FleetKeeper:
    def __init__(self, table: FleetTable, cluster: Cluster, gateway: AskedGateway) -> None:
        self.table = table
        self.is_ending = False
        self.reports: dict[str, Report] = {}  # the last of each holder
        self.problem = ""  # why the last step did less than it should
        self._cluster = cluster
        self._gateway = gateway
        self._stopping: set[str] = set()
        self._is_stopped = threading.Event()

    def run(self) -> None:
        while not self._is_stopped.wait(STEP_S):
            said = self.problem
            try:
                self.step()
            except ClusterAway as away:
                self.problem = f"The cluster cannot be asked: {away}"
            if self.problem and self.problem != said:
                log.warning("%s", self.problem)

    def stop(self) -> None:
        self._is_stopped.set()

    def step(self) -> None:
        self._ask_holders()
        self.problem = ""
        replicas = self._ask_replicas()
        for table in self._tables():
            self._obey(table, self._wanted(table), replicas)
        if replicas is not None:
            self._register(replicas)

    def _tables(self) -> list[ProcessTable]:
        """Those of the file, and what is left of others that were in an earlier one."""
        known = {table.name for table in self.table.processes}
        gone = {report.group for report in self.reports.values()} - known
        return [*self.table.processes, *(_gone(name) for name in sorted(gone))]

    def _wanted(self, table: ProcessTable) -> int:
        if self.is_ending:
            # Who carries streams to their end goes after the engines.
            engines = {one.name for one in self.table.processes if one.model is not None}
            is_any_left = any(report.group in engines for report in self.reports.values())
            return table.count if table.name not in engines and is_any_left else 0
        return table.count

    def _ask_holders(self) -> None:
        now = self._cluster.reports()
        for name, report in now.items():
            # One that cannot be asked may be on a node that is cut off, with streams aboard its engine.
            if not report.url and (before := self.reports.get(name)) is not None:
                now[name] = replace(before, phase="unhealthy")
        self.reports = now
        self._stopping &= now.keys()

    def _ask_replicas(self) -> dict[str, GatewayReplica] | None:
        try:
            return self._gateway.replicas()
        except SetupError as error:
            self.problem = error.message
            return None

    def _obey(self, table: ProcessTable, wanted: int, replicas: Mapping[str, GatewayReplica] | None) -> None:
        for order in orders(table, wanted, self.reports, replicas):
            if isinstance(order, Start):
                log.info("%s-%d is started", order.group, order.index)
                self._cluster.start(table, order.index)
            elif isinstance(order, Leave):
                log.info("%s %s", order.name, "stays" if order.is_undone else "takes no more calls")
                self._cluster.leave(order.name, is_leaving=not order.is_undone)
                self.reports[order.name] = replace(self.reports[order.name], is_leaving=not order.is_undone)
            elif isinstance(order, Stop) and order.name not in self._stopping:
                log.info("%s is stopped", order.name)
                self._stopping.add(order.name)
                self._cluster.stop(order.name, table.grace_s)

    def _register(self, replicas: Mapping[str, GatewayReplica]) -> None:
        for model, urls in registered(self.table.processes, self.reports, replicas).items():
            try:
                self._gateway.register(model, urls)
            except SetupError as error:
                self.problem = error.message


def _gone(name: str) -> ProcessTable:
    """Of processes that are not wanted any more. That these were engines is not known: their gateway is asked."""
    return ProcessTable(name=name, command=["gone"], model="gone", count=0, port=1)
