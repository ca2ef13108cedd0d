"""What a fleet does next: pure functions of what there should be, what holders report, and what the gateway says.

An engine that is to go is first no longer registered: the gateway drains it, and drops it once it has no streams. Only
then is it stopped. Processes that must be replaced are so one at a time. One that serves goes only while all others of
its table serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.fleet.held import Report
from headway.fleet.tables import ProcessTable


@dataclass(frozen=True)
class GatewayReplica:
    """A replica, as the gateway's `/admin/replicas` says."""

    url: str
    model: str
    is_open: bool
    aboard: int
    is_light: bool = False


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
Replicas = Mapping[str, GatewayReplica]  # by URL


def orders(
    table: ProcessTable,
    wanted: int,
    present: Mapping[str, Report],
    replicas: Replicas | None,
    *,
    can_replace: bool = True,
) -> list[Order]:
    """For the processes of one table. `present` has those that exist, whether they are ready or not. `replicas` are the
    gateway's; None if it does not answer, and then no engine leaves or stops. What serves is replaced only if
    `can_replace`."""
    mine = [one for one in present.values() if one.group == table.name]
    staying = [one for one in mine if not one.is_leaving]
    leaving = [one for one in mine if one.is_leaving]
    if replicas is None:
        if table.model is not None or any(one.model is not None for one in mine):
            return _starts(table, wanted - len(staying), mine)
        replicas = {}
    found: list[Order] = [Stop(one.name) for one in leaving if one.url not in replicas]
    if len(staying) < wanted:
        back = [one for one in leaving if not _is_outdated(one, table) and one.url in replicas]
        found += [Leave(one.name, is_undone=True) for one in back[: wanted - len(staying)]]
        return found + _starts(table, wanted - len(staying) - len(back), mine)

    def by_loss(one: Report) -> tuple[bool, bool, bool, int, int]:
        """What is lost least if it leaves comes first. In the place of a light replica another would have to empty."""
        replica = replicas.get(one.url)
        is_light, aboard = (replica.is_light, replica.aboard) if replica is not None else (False, 0)
        return not _is_outdated(one, table), one.phase == "ready", is_light, aboard, -one.index

    staying.sort(key=by_loss)
    if extra := len(staying) - wanted:
        return found + [Leave(one.name) for one in staying[:extra]]
    replaced = _replaced(table, staying, replicas, can_serving_go=can_replace and not leaving)
    return found + [Leave(one.name) for one in replaced]


def has_turn(table: ProcessTable, tables: Sequence[ProcessTable], present: Mapping[str, Report]) -> bool:
    """Whether processes of this table may be replaced: one table after the other, and while nothing else comes or
    goes. A dispatcher that is new needs most of the relays, for example."""
    by_name = {one.name: one for one in tables}
    outdated = {one.group for one in present.values() if one.group in by_name and _is_outdated(one, by_name[one.group])}
    first = next((one.name for one in tables if one.name in outdated), table.name)
    is_quiet = not any(
        one.group != table.name and (one.is_leaving or one.phase == "starting") for one in present.values()
    )
    return table.name == first and is_quiet


def _replaced(
    table: ProcessTable, staying: Sequence[Report], replicas: Replicas, *, can_serving_go: bool
) -> list[Report]:
    """Those that leave because their table has changed. `staying` begins with what is lost least."""
    outdated = [one for one in staying if _is_outdated(one, table)]
    idle = [one for one in outdated if one.phase == "starting"]  # nobody waits for them, however many they are
    if idle or not outdated or not can_serving_go:
        return idle
    first, others = outdated[0], [one for one in staying if one is not outdated[0]]
    if first.phase != "ready":
        # It may serve well, if only its holder does not answer. So one after the other; but what is outdated and does
        # not serve either is no reason to wait.
        others = [one for one in others if not _is_outdated(one, table)]
    return [first] if all(_serves(one, replicas) for one in others) else []


def _is_outdated(report: Report, table: ProcessTable) -> bool:
    return report.version != table.version


def _serves(report: Report, replicas: Replicas) -> bool:
    if report.phase != "ready":
        return False
    if report.model is None:
        return True
    replica = replicas.get(report.url)
    return replica is not None and replica.is_open


def _starts(table: ProcessTable, count: int, mine: Sequence[Report]) -> list[Order]:
    """Start so many, with the lowest numbers that are free. Engines have one number more than there are processes, so
    that one that is replaced need not wait until the old one has gone. A relay must wait: its number is its name and
    its spool."""
    taken = {one.index for one in mine}
    numbers = table.most + (table.model is not None)
    free = (index for index in range(numbers) if index not in taken)
    return [Start(table.name, index) for index, _ in zip(free, range(count), strict=False)]


def located(present: Mapping[str, Report], replicas: Replicas) -> dict[str, Report]:
    """With the URLs of holders that have not said where they are. The gateway knows an engine by its port, which is
    that of no other process of its model; and it may have streams there."""
    found = dict(present)
    for name, report in present.items():
        if not report.url and report.model is not None:
            same = [
                one for one in replicas.values() if one.model == report.model and one.url.endswith(f":{report.port}")
            ]
            if same:
                found[name] = replace(report, url=max(same, key=lambda one: (one.is_open, one.aboard)).url)
    return found


def registered(tables: Sequence[ProcessTable], present: Mapping[str, Report]) -> dict[str, list[str]]:
    """The URLs to register, by model; also of models that are only left in processes that leave. The process of a
    holder that cannot be asked stays registered: its engine may serve well."""
    models = [*(table.model for table in tables), *(report.model for report in present.values())]
    urls: dict[str, list[str]] = {model: [] for model in models if model is not None}
    for report in present.values():
        if report.model is not None and report.url and not report.is_leaving:
            urls[report.model].append(report.url)
    return {model: sorted(set(found)) for model, found in urls.items()}
