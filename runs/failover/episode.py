"""One episode of runs/failover.sh: a cell, its load, the faults of one seed, and what the records say afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from headway.dispatch.record import replay
from headway.errors import SetupError
from headway.ledger.entries import Entry
from headway.ledger.opening import open_store
from runs.failover.callers import Callers, Ended
from runs.failover.cell import LIMITS, LOAD, Cell
from runs.failover.faults import Faults
from runs.failover.judge import (
    Aboard,
    Crowd,
    Done,
    around,
    crowds,
    cut_without_reason,
    filled,
    hanging,
    resumed_s,
    served_twice,
    waits_of,
    waits_within,
)
from runs.failover.plan import AWAY, plan
from runs.ledger.torture_judge import Seen, Witness, judge

WARM_UP_S = 4.0
DIED = "leader killed"
# Each is followed by the time until boarding resumes. With a relay that a successor does not hear, it waits for it.
TIMED = (
    DIED,
    "leader stopped",
    "leader and relay killed",
    "leader killed, relay stopped",
    "leader killed, relay cut off",
)


class Outcome(msgspec.Struct):
    """What one episode showed. Kept as JSON."""

    seed: int
    lease: str
    sent: int
    ends: dict[str, int]
    refusals: dict[str, int]
    faults: list[Done]
    stuck: list[str]
    crowds: list[Crowd]
    filled: int  # boardings that took the last seat of a replica
    cut: list[Ended]
    hanging: list[Ended]
    resumed: list[tuple[str, float]]  # (kind of fault, seconds)
    away: list[tuple[list[float], list[float]]]  # waits for a seat before the database was away, and while it was
    streams: int  # on the replicas' records
    in_ledger: int
    lost: list[str]
    over_billed: list[str]
    not_exact: list[str]
    problems: list[str]
    served_twice: list[str]
    spooled: int  # entries that never left a spool
    unbilled: int  # the most tokens of a killed stream
    exits: list[str]  # processes that ended by themselves, or not well
    records: int
    events: int
    differences: list[str]
    around: list[tuple[float, float]]  # (seconds after a leader's death, wait)


async def episode(
    seed: int, faults: int, folder: Path, *, with_etcd: bool, with_outage: bool, tell: Callable[[str], None]
) -> Outcome:
    cell = Cell(folder, with_etcd=with_etcd)
    try:
        tell("starting the cell")
        await cell.start()
        callers = Callers(cell.port, LOAD, seed)
        calling = asyncio.create_task(callers.run())
        await asyncio.sleep(WARM_UP_S)
        doing = Faults(cell, callers)
        exits: list[str] = []
        for fault in plan(seed, faults, with_etcd=with_etcd, with_outage=with_outage):
            tell(f"{len(doing.done)} faults, {len(callers.ended):,} calls, now {fault.kind}")
            await doing.cause(fault)
            exits += [member.name for member in cell.members if member.ended_by_itself()]
            if exits:
                break
        callers.stop()
        tell("waiting for the last calls")
        await calling
        witnesses = [Witness(url) for url in cell.replica_urls]
        if not exits:
            codes = await cell.stop()
            exits += [f"{name} exit code {code}" for name, code in codes.items() if code]
        for witness in witnesses:
            await asyncio.to_thread(witness.read)
        tell("judging")
        return await asyncio.to_thread(_judge, seed, cell, callers, doing, witnesses, exits)
    finally:
        cell.remove()


def _judge(
    seed: int, cell: Cell, callers: Callers, doing: Faults, witnesses: list[Witness], exits: list[str]
) -> Outcome:
    calls, faults = callers.ended, doing.done
    store = open_store(cell.database.url)
    books = judge(
        store, witnesses, [Seen(call.call_id, call.how == "complete") for call in calls if is_at_engine(call)]
    )
    entries = {entry.call_id: entry for entry in store.entries()}
    unshipped = cell.spooled() - {entry.id for entry in store.entries()}
    store.close()
    streams = aboard_of(witnesses, calls, entries)
    boarded: dict[str, float] = {}
    for stream in streams:
        boarded[stream.call_id] = min(stream.from_s, boarded.get(stream.call_id, stream.from_s))
    waits = waits_of(calls, boarded)
    starts = [stream.from_s for stream in streams]
    away = [fault for fault in faults if fault.kind == AWAY]
    events, differences = replay_all(cell.records())
    ended = sum(call.how != "hangs" for call in calls)
    return Outcome(
        seed=seed,
        lease="PostgreSQL" if cell.etcd is None else "etcd",
        sent=callers.sent,
        ends={**Counter(call.how for call in calls), "all": ended},
        refusals=dict(Counter(call.words for call in calls if call.how == "refused")),
        faults=faults,
        stuck=doing.stuck,
        crowds=crowds(streams, LIMITS, faults),
        filled=filled(streams, LIMITS),
        cut=cut_without_reason(calls, faults),
        hanging=hanging(calls, LIMITS, faults),
        resumed=[(fault.kind, resumed_s(fault.from_s, starts)) for fault in faults if fault.kind in TIMED],
        away=[
            (waits_within(waits, *calm), waits_within(waits, fault.from_s, fault.until_s))
            for calm, fault in zip(doing.calm, away, strict=True)
        ],
        streams=len(streams),
        in_ledger=books.calls,
        lost=books.lost,
        over_billed=books.over_billed,
        not_exact=books.wrong_when_complete,
        problems=books.problems,
        served_twice=served_twice((name, sent.state) for one in witnesses for name, sent in one.requests.items()),
        spooled=len(unshipped),
        unbilled=max(books.killed_low, default=0),
        exits=exits,
        records=len(cell.records()),
        events=events,
        differences=differences,
        around=list(around([fault.from_s for fault in faults if fault.kind == DIED], waits)),
    )


def replay_all(records: Iterable[Path]) -> tuple[int, list[str]]:
    """The number of events, and what differs from what was recorded."""
    events, differences = 0, []
    for path in records:
        try:
            replayed = replay(path)
        except SetupError as error:
            differences.append(f"{path.name}: {error.message}")
            continue
        events += replayed.events
        if replayed.first_difference:
            differences.append(f"{path.name}: {replayed.first_difference}")
    return events, differences


def is_at_engine(call: Ended) -> bool:
    """Whether the books must know the call: its answer began."""
    return bool(call.call_id) and call.how in ("complete", "cut")


def aboard_of(witnesses: list[Witness], calls: list[Ended], entries: dict[str, Entry]) -> list[Aboard]:
    """All streams of all replicas, with what callers and books know of them. A client that lost its relay before the
    answer began does not know its call's id; the books do."""
    by_id = {call.call_id: call for call in calls if call.call_id}
    relay_of = {entries[name].gateway.partition("/")[0]: call.relay for name, call in by_id.items() if name in entries}
    now = time.monotonic()
    streams = []
    for witness in witnesses:
        for name, sent in witness.requests.items():
            if sent.received_s is None:
                continue
            entry, call = entries.get(name), by_id.get(name)
            tier = call.tier if call is not None else entry.tier if entry is not None else "unknown"
            relay = relay_of.get(entry.gateway.partition("/")[0], "") if entry is not None else ""
            relay = call.relay if call is not None else relay
            until_s = now if sent.ended_s is None else sent.ended_s
            streams.append(Aboard(name, witness.url, tier, relay, sent.received_s, until_s))
    return streams
