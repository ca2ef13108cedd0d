"""One part of the torture: a cell, its load, the faults of one seed, and what the records say afterwards."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from runs.failover.cell import Cell
from runs.measure.kept import commit
from runs.torture.callers import Callers
from runs.torture.cell import RULES, TortureCell
from runs.torture.faults import Faults
from runs.torture.judge import Done, Evidence, Judgement, judge
from runs.torture.left_over import idle_relays, left_over
from runs.torture.plan import Fault
from runs.torture.witness import read_journals, read_lies, read_rows

CALLERS = 112


class Outcome(msgspec.Struct):
    """What one part showed. Kept as JSON."""

    seed: int
    commit: str
    seconds: float
    sent: int
    streams: int  # whose answer began
    ends: dict[str, int]
    kinds: dict[str, int]  # of calls
    refusals: dict[str, int]
    faults: dict[str, int]
    in_books: int
    with_floor: int
    missed: int
    refunded: int
    filled: int
    findings: dict[str, list[str]]
    explained: dict[str, list[str]]


async def play(seed: int, streams: int, plan: list[Fault], folder: Path, tell: Callable[[str], None]) -> Outcome:
    cell = TortureCell(folder)
    try:
        tell("starting the cell")
        await cell.start()
        before = await idle_relays(cell)
        trusted = ssl.create_default_context(cafile=str(cell.front.authority.ca))
        callers = Callers(cell.port, seed, CALLERS, streams, (cell.front_port, trusted))
        doing = Faults(cell, callers)
        began_s = time.monotonic()
        telling = asyncio.create_task(_tell(callers, doing, tell))
        async with asyncio.TaskGroup() as group:
            group.create_task(callers.run())
            group.create_task(doing.run(plan))
        telling.cancel()
        tell("waiting until all is idle")
        left = await left_over(cell, before)
        exits = [member.name for member in cell.members if member.ended_by_itself()]
        codes = await cell.stop()
        exits += [f"{name}: exit code {code}" for name, code in codes.items() if code]
        tell("judging")
        judged = await asyncio.to_thread(judge_part, cell, callers, doing)
        judged.findings["ended by itself, or badly"] += exits
        judged.findings["left over"] += left
        judged.findings["a copied spool was taken"] += doing.relays.wrong
        return outcome_of(seed, time.monotonic() - began_s, callers, doing.done, judged)
    finally:
        cell.remove()


async def _tell(callers: Callers, doing: Faults, tell: Callable[[str], None]) -> None:
    while True:
        tell(f"{callers.started:,} streams, {len(doing.done):,} faults")
        await asyncio.sleep(0.5)


def judge_part(cell: TortureCell, callers: Callers, doing: Faults) -> Judgement:
    streams = read_journals(cell.journals, doing.engines.died_s)
    rows, slices = read_rows(cell.database.url)
    lies = read_lies(cell.journals)
    evidence = Evidence(callers.ended, streams, rows, slices, doing.done, RULES, cell.engine_of, lies)
    return judge_all(evidence, cell, callers)


def judge_all(evidence: Evidence, cell: Cell, callers: Callers) -> Judgement:
    """With what the evidence does not show: entries left in spools, calls that did not end."""
    judged = judge(evidence)
    judged.findings["left in a spool"] += sorted(cell.spooled() - {row.id for row in evidence.rows})
    if callers.sent != len(callers.ended):
        judged.findings["did not end once"].append(f"{callers.sent} sent, {len(callers.ended)} ended")
    return judged


def outcome_of(seed: int, seconds: float, callers: Callers, faults: Sequence[Done], judged: Judgement) -> Outcome:
    calls = callers.ended
    return Outcome(
        seed=seed,
        commit=commit(),
        seconds=seconds,
        sent=callers.sent,
        streams=callers.started,
        ends=dict(Counter(call.how for call in calls)),
        kinds=dict(Counter(call.kind for call in calls)),
        refusals=dict(Counter(call.words for call in calls if call.how == "refused")),
        faults=dict(Counter(fault.kind for fault in faults)),
        in_books=judged.in_books,
        with_floor=judged.with_floor,
        missed=judged.missed,
        refunded=judged.refunded,
        filled=judged.filled,
        findings={what: cases for what, cases in judged.findings.items() if cases},
        explained={what: cases for what, cases in judged.explained.items() if cases},
    )
