"""One episode of runs/fleet.sh: a cluster, a cell, their load, the faults of one seed, and what the records say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from headway.ledger.opening import open_store
from runs.failover.callers import Callers, Ended
from runs.failover.cell import LIMITS, LOAD, REPLICAS
from runs.failover.episode import aboard_of, is_at_engine, replay_all
from runs.failover.judge import Crowd, Done, crowds, filled, hanging
from runs.fleet.faults import RELAYS, FleetFaults, plan
from runs.fleet.held_cell import HeldCell
from runs.fleet.journal_engine import read_journals
from runs.fleet.judge import back_s, boarded_again_s, cut_without_reason, read_record, rerouted_s
from runs.ledger.torture_judge import Seen, Witness, judge


class FleetOutcome(msgspec.Struct):
    """What one episode showed. Kept as JSON."""

    seed: int
    sent: int
    ends: dict[str, int]
    refusals: dict[str, int]
    faults: list[Done]
    stuck: list[str]
    crowds: list[Crowd]
    filled: int
    streams: int
    cut: list[Ended]
    hanging: list[Ended]
    rerouted: list[float]
    boarded_again: list[float]
    back: list[tuple[str, float]]
    whole: bool  # all engines are open at the end
    wrong: list[str]  # in the books
    unbilled: int
    spooled: int
    fast: int  # fast calls that were served
    refunded: int  # those whose floor was missed
    exits: list[str]
    events: int
    differences: list[str]


async def episode(seed: int, faults: int, folder: Path, tell: Callable[[str], None]) -> FleetOutcome:
    cell = HeldCell(folder, RELAYS)
    try:
        tell("starting the cluster and the cell")
        await cell.start()
        callers = Callers(cell.port, LOAD, seed)
        calling = asyncio.create_task(callers.run())
        await asyncio.sleep(4.0)
        doing = FleetFaults(cell, callers, seed)
        exits: list[str] = []
        for fault in plan(seed, faults):
            tell(f"{len(doing.done)} faults, {len(callers.ended):,} calls, now {fault.kind}")
            await doing.cause(fault)
            exits += [member.name for member in cell.members if member.ended_by_itself()]
            if exits:
                break
        tell("waiting until all engines are back")
        whole = await cell.until_open(REPLICAS)
        callers.stop()
        await calling
        if not exits:
            codes = await cell.stop()
            exits += [f"{name} exit code {code}" for name, code in codes.items() if code]
        tell("judging")
        return await asyncio.to_thread(_judge, seed, cell, callers, doing, exits, whole)
    finally:
        cell.remove()


def _judge(
    seed: int, cell: HeldCell, callers: Callers, doing: FleetFaults, exits: list[str], whole: bool
) -> FleetOutcome:
    calls, faults = callers.ended, doing.done
    processes = read_journals(cell.journals, lambda _url, last_s: last_s)
    by_url: dict[str, Witness] = {}
    for _, process in processes:
        by_url.setdefault(process.url, Witness(process.url)).requests |= process.requests
    engine_of = {name: url for url, witness in by_url.items() for name in witness.requests}
    store = open_store(cell.database.url)
    seen = [Seen(call.call_id, call.how == "complete") for call in calls if is_at_engine(call)]
    received = {call.call_id: call.received for call in calls}
    books = judge(store, list(by_url.values()), seen, received)
    entries = {entry.call_id: entry for entry in store.entries()}
    fast = sum(entry.kind == "served" and entry.tier == "fast" for entry in store.entries())
    refunded = sum(entry.kind == "refunded" for entry in store.entries())
    unshipped = cell.spooled() - {entry.id for entry in store.entries()}
    store.close()
    # Each process by itself: one that was started again at the same address has none of the streams before.
    alone = [Witness(name) for name, _ in processes]
    for one, (_, process) in zip(alone, processes, strict=True):
        one.requests = process.requests
    streams = aboard_of(alone, calls, entries)
    history = [one for path in cell.records() for one in read_record(path)]
    events, differences = replay_all(cell.records())
    return FleetOutcome(
        seed=seed,
        sent=callers.sent,
        ends=dict(Counter(call.how for call in calls)),
        refusals=dict(Counter(call.words for call in calls if call.how == "refused")),
        faults=faults,
        stuck=doing.stuck,
        crowds=crowds(streams, LIMITS, faults),
        filled=filled(streams, LIMITS),
        streams=len(streams),
        cut=cut_without_reason(calls, engine_of, faults),
        hanging=hanging(calls, LIMITS, faults),
        rerouted=rerouted_s(faults, history),
        boarded_again=boarded_again_s(history),
        back=back_s(faults, history),
        whole=whole,
        wrong=[*books.lost, *books.over_billed, *books.wrong_when_complete, *books.problems],
        unbilled=max(books.killed_low, default=0),
        spooled=len(unshipped),
        fast=fast,
        refunded=refunded,
        exits=exits,
        events=events,
        differences=differences,
    )
