"""How many processes there should be where a table follows demand: core's policy (core/scaling.py), with what the
gateway reads and the holders report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.core.demand import PoolDemand
from headway.core.scaling import ScalingPolicy, ScalingRules
from headway.fleet.held import Report
from headway.fleet.tables import ProcessTable

RUNNING = ("starting", "ready")


class ScaledTables:
    def __init__(self, tables: Iterable[ProcessTable]) -> None:
        self._policies = {
            table.name: ScalingPolicy(
                ScalingRules(table.scaling.min_count, table.scaling.max_count, table.scaling.opens_after_s)
            )
            for table in tables
            if table.scaling is not None
        }

    def __bool__(self) -> bool:
        return bool(self._policies)

    def wanted(
        self, table: ProcessTable, reports: Mapping[str, Report], demands: Mapping[str, PoolDemand], now: float
    ) -> int:
        """A keeper that is new goes on from what runs; a fleet that is new, from the table's count. Without a reading
        nothing changes."""
        if (policy := self._policies.get(table.name)) is None:
            return table.count
        mine = [one for one in reports.values() if one.group == table.name]
        running = sum(one.phase in RUNNING and not one.is_leaving for one in mine) if mine else table.count
        return policy.wanted(demands.get(table.model or ""), running, now)
