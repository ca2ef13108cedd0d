"""Keeps a fleet as its tables say: asks the holders, asks the gateway, and does what decisions.py orders.

Remembers nothing that it cannot ask for again, so that it can be killed and started elsewhere at any time. A cluster or
a gateway that does not answer changes nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headway.admin_client import ask_admin
from headway.core.demand import PoolDemand
from headway.errors import SetupError
from headway.fleet.decisions import GatewayReplica, Leave, Replicas, Start, has_turn, located, orders, registered
from headway.fleet.held import Report
from headway.fleet.scaled import ScaledTables
from headway.fleet.tables import FleetGatewayTable, FleetTable, ProcessTable, Times

log = logging.getLogger("headway.fleet")

STEP_S = 1.0


class Cluster(Protocol):
    """The nodes, and the holders on them. Any method may raise ClusterAway."""

    def reports(self, times: Mapping[str, Times]) -> dict[str, Report]:
        """Of all holders, by name; `away` and without a URL if one does not answer. They are told the times of their
        table, by its name."""

    def start(self, table: ProcessTable, index: int) -> None:
        """Place a holder for this process. Returns before it runs."""

    def leave(self, name: str, *, is_leaving: bool) -> None: ...

    def stop(self, name: str, grace_s: float) -> None:
        """End the process, then its holder. Returns before that, and may be called again meanwhile."""


class ClusterAway(Exception):
    """The cluster cannot be asked at the moment."""


class AskedGateway:
    """The gateway's `/admin`. Each method raises SetupError if it cannot be asked."""

    def __init__(self, table: FleetGatewayTable) -> None:
        self._table = table

    def replicas(self) -> dict[str, GatewayReplica]:
        answer = ask_admin(self._table.url, self._key(), "/admin/replicas")
        rows = [
            # A gateway of an earlier release does not say `is_light`.
            GatewayReplica(row["url"], row["model"], row["state"] == "open", row["aboard"], row.get("is_light", False))
            for row in answer["replicas"]
        ]
        return {row.url: row for row in rows}

    def demand(self) -> dict[str, PoolDemand]:
        """By model."""
        answer = ask_admin(self._table.url, self._key(), "/admin/demand")
        return {row["pool"]: PoolDemand(**row["demand"]) for row in answer["pools"]}

    def register(self, model: str, urls: list[str]) -> None:
        order = json.dumps({"model": model, "urls": urls}).encode()
        ask_admin(self._table.url, self._key(), "/admin/registered", order)

    def _key(self) -> str:
        try:
            return Path(self._table.admin_key_file).read_text().strip()
        except OSError as error:
            raise SetupError(f"The admin key cannot be read on this node: {error}.") from error


class FleetKeeper:
    def __init__(
        self,
        table: FleetTable,
        cluster: Cluster,
        gateway: AskedGateway,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_ending: bool = False,
    ) -> None:
        """With `is_ending`, it drains and stops everything."""
        self.table = table
        self.reports: dict[str, Report] = {}  # the last of each holder
        self.problem = "The fleet's processes have not been asked yet."  # why the last step did less than it should
        self._is_ending = is_ending
        self._cluster = cluster
        self._gateway = gateway
        self._clock = clock
        self._scaled = ScaledTables(table.processes)
        self._is_stopped = threading.Event()

    def run(self) -> None:
        while not self._is_stopped.wait(STEP_S):
            said = self.problem
            try:
                self.problem = self.step()
            except ClusterAway as away:
                self.problem = f"The cluster cannot be asked: {away}"
            if self.problem and self.problem != said:
                log.warning("%s", self.problem)

    def stop(self) -> None:
        self._is_stopped.set()

    def step(self) -> str:
        """Returns why it did less than it should, if it did."""
        reports = self._ask_holders()
        if self._is_ending and not reports:
            self.reports = reports
            return ""  # its relays may have been the gateway
        problem = ""
        replicas: Replicas | None = None
        demands: dict[str, PoolDemand] = {}
        try:
            replicas = self._gateway.replicas()
            reports = located(reports, replicas)
            if self._scaled:
                demands = self._gateway.demand()
        except SetupError as error:
            problem = error.message
        self.reports = reports
        for table in self._tables():
            self._obey(table, self._wanted(table, demands), replicas)
        if replicas is not None:
            problem = self._register()
        return problem

    def _tables(self) -> list[ProcessTable]:
        """Those of the file, and what is left of others that were in an earlier one."""
        known = {table.name for table in self.table.processes}
        gone = {report.group for report in self.reports.values()} - known
        return [*self.table.processes, *(_gone(name) for name in sorted(gone))]

    def _wanted(self, table: ProcessTable, demands: Mapping[str, PoolDemand]) -> int:
        if self._is_ending:
            # Who carries streams to their end goes after the engines.
            is_any_left = any(report.model is not None for report in self.reports.values())
            return table.count if table.model is None and is_any_left else 0
        return self._scaled.wanted(table, self.reports, demands, self._clock())

    def _ask_holders(self) -> dict[str, Report]:
        now = self._cluster.reports({table.name: table.times for table in self.table.processes})
        for name, report in now.items():
            # One that cannot be asked may be on a node that is cut off, with streams aboard its engine.
            if report.phase == "away" and (before := self.reports.get(name)) is not None:
                now[name] = replace(before, phase="away")
        return now

    def _obey(self, table: ProcessTable, wanted: int, replicas: Replicas | None) -> None:
        can_replace = has_turn(table, self.table.processes, self.reports)
        for order in orders(table, wanted, self.reports, replicas, can_replace=can_replace):
            if isinstance(order, Start):
                log.info("%s-%d is started", order.group, order.index)
                self._cluster.start(table, order.index)
            elif isinstance(order, Leave):
                log.info("%s %s", order.name, "stays" if order.is_undone else "takes no more calls")
                self._cluster.leave(order.name, is_leaving=not order.is_undone)
                self.reports[order.name] = replace(self.reports[order.name], is_leaving=not order.is_undone)
            else:
                self._cluster.stop(order.name, self.reports[order.name].grace_s)

    def _register(self) -> str:
        """Returns why it could not."""
        problem = ""
        for model, urls in registered(self.table.processes, self.reports).items():
            try:
                self._gateway.register(model, urls)
            except SetupError as error:
                problem = error.message
        return problem


def _gone(name: str) -> ProcessTable:
    """Of processes that are not wanted any more."""
    return ProcessTable(name=name, command=["gone"], count=0, port=1)
