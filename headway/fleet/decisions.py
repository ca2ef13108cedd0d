"""What a fleet does next: pure functions of what there should be, what holders report, and what the gateway says.

An engine that is to go is first no longer registered: the gateway drains it, and drops it once it has no streams. Only
then is it stopped. Processes that must be replaced are so one at a time, and only while all others of their name are
ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.fleet.held import Report
from headway.fleet.tables import ProcessTable


@dataclass(frozen=True)
class GatewayReplica:
    """A replica, as the gateway's `/admin/replicas` says."""

    url: str
    model: str
    is_open: bool
    aboard: int


@dataclass(frozen=True)
class Start:
    group: str
    index: int


@dataclass(frozen=True)
class Leave:
    """Let it take no more calls; or let it stay after all."""

    name: str
    is_undone: bool = False


@dataclass(frozen=True)
class Stop:
    name: str


Order = Start | Leave | Stop


def orders(
    table: ProcessTable,
    wanted: int,
    present: Mapping[str, Report],
    replicas: Mapping[str, GatewayReplica] | None,
) -> list[Order]:
    """For the processes of one table. `present` has those that exist, whether they are ready or not. `replicas` are the
    gateway's, by URL; None if it does not answer, and then no engine leaves or stops."""
    mine = [one for one in present.values() if one.group == table.name]
    staying = [one for one in mine if not one.is_leaving]
    leaving = [one for one in mine if one.is_leaving]
    is_engine = table.model is not None
    if is_engine and replicas is None:
        return _starts(table, wanted - len(staying), mine)
    found: list[Order] = [Stop(one.name) for one in leaving if not is_engine or one.url not in (replicas or {})]
    if len(staying) < wanted:
        back = [one for one in leaving if not _is_outdated(one, table) and Stop(one.name) not in found]
        found += [Leave(one.name, is_undone=True) for one in back[: wanted - len(staying)]]
        return found + _starts(table, wanted - len(staying) - len(back), mine)

    def by_loss(one: Report) -> tuple[bool, bool, int, int]:
        """What is lost least if it leaves comes first."""
        replica = (replicas or {}).get(one.url)
        aboard = replica.aboard if replica is not None else 0
        return not _is_outdated(one, table), one.phase == "ready", aboard, -one.index

    staying.sort(key=by_loss)
    extra = len(staying) - wanted
    if extra > 0:
        return found + [Leave(one.name) for one in staying[:extra]]
    outdated = [one for one in staying if _is_outdated(one, table)]
    if outdated and not leaving and all(_serves(one, table, replicas) for one in staying if one is not outdated[0]):
        found.append(Leave(outdated[0].name))
    return found


def _is_outdated(report: Report, table: ProcessTable) -> bool:
    return report.version not in ("", table.version)  # of one that has said nothing, it is not known


def _serves(report: Report, table: ProcessTable, replicas: Mapping[str, GatewayReplica] | None) -> bool:
    if report.phase != "ready":
        return False
    if table.model is None:
        return True
    replica = (replicas or {}).get(report.url)
    return replica is not None and replica.is_open


def _starts(table: ProcessTable, count: int, mine: Sequence[Report]) -> list[Order]:
    """Start so many, with the lowest numbers that are free."""
    taken = {one.index for one in mine}
    free = (index for index in range(count + len(taken)) if index not in taken)
    return [Start(table.name, index) for index, _ in zip(free, range(count), strict=False)]


def registered(
    tables: Sequence[ProcessTable], present: Mapping[str, Report], replicas: Mapping[str, GatewayReplica]
) -> dict[str, list[str]]:
    """The URLs to register, by model. The process of a holder that cannot be asked stays registered as it was: its
    engine may serve well."""
    urls: dict[str, list[str]] = {table.model: [] for table in tables if table.model is not None}
    for table in tables:
        if table.model is None:
            continue
        for report in present.values():
            if report.group != table.name or report.is_leaving:
                continue
            if report.url:
                urls[table.model].append(report.url)
            else:
                ending = f":{table.port + report.index}"
                same = (one.url for one in replicas.values() if one.model == table.model and one.url.endswith(ending))
                urls[table.model].extend(same)
    return {model: sorted(set(found)) for model, found in urls.items()}


def unknown(group: str, index: int) -> Report:
    """Of a holder that has not said anything yet."""
    return Report(group, index, version="", phase="starting")
