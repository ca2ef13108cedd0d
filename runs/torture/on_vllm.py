"""The torture on two real vLLM engines, which are killed and stopped under load. See runs/torture-vllm.sh.

In parts that each have a seed, as run.py, whose ledger of parts has the same form. Witnesses are a recorder in front of
each engine (recorder.py), the clients, and PostgreSQL's rows.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from runs.continuation.service import without_autogroups
from runs.measure.fetch import fetch
from runs.measure.verdict import Verdict, at_least, finish, none_of
from runs.torture.callers import Callers
from runs.torture.judge import UNREADY, Done, Evidence, Judgement
from runs.torture.part import Outcome, judge_all, outcome_of
from runs.torture.run import (
    SHOWN,
    Figures,
    conclude,
    explained_crowds,
    figures_of,
    found_words,
    keep,
    next_seeds,
    read_ledger,
    show,
    sums_of,
)
from runs.torture.vllm_cell import MIX, RULES, Engines, RecordedCell, two_engines
from runs.torture.witness import read_journals, read_rows

console = Console(width=120)
LEDGER = Path(__file__).parent / "parts_on_vllm.jsonl"
STREAMS, FAULTS = 500, 26  # of one part
WANTED_STREAMS, WANTED_FAULTS, WANTED_KILLS = 2_000, 100, 15
KILLED, STOPPED = "engine killed", "engine stopped"
KILLED_SHARE = 0.16
STOPS_S = (0.5, 8.0)  # a stream goes on elsewhere after stall_s
PAUSES_S = (2.0, 9.0)  # from the beginning of a fault to that of the next
CALLERS, GIVE_UP_S = 48, 150.0
WARM_UP_STREAMS = 10
IDLE_S = 60.0
RUNNING = (b"vllm:num_requests_running{", b"vllm:num_requests_waiting{")


class Fault(msgspec.Struct, frozen=True):
    kind: str
    engine: int
    lasts_s: float
    then_s: float


def plan(seed: int, faults: int) -> list[Fault]:
    """As many kills in each part, because they are few."""
    chance = random.Random(f"faults on vLLM {seed}")
    kills = round(KILLED_SHARE * faults)
    kinds = [KILLED] * kills + [STOPPED] * (faults - kills)
    chance.shuffle(kinds)
    return [Fault(kind, chance.randrange(2), chance.uniform(*STOPS_S), chance.uniform(*PAUSES_S)) for kind in kinds]


class Faults:
    """One engine is killed at a time. The other one is stopped while it starts again, as any that runs."""

    def __init__(self, engines: Engines, urls: Sequence[str]) -> None:
        self.done: list[Done] = []
        self._engines = engines
        self._urls = urls
        self._busy = [asyncio.Lock() for _ in urls]
        self._killing = asyncio.Lock()

    async def run(self, plan: Sequence[Fault]) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                if fault.kind == KILLED:
                    await self._killing.acquire()
                    group.create_task(self._kill(fault))
                else:
                    is_busy = self._busy[fault.engine].locked()  # it starts again, or is stopped
                    group.create_task(self._stop(fault, 1 - fault.engine if is_busy else fault.engine))
                await asyncio.sleep(fault.then_s)

    async def _kill(self, fault: Fault) -> None:
        try:
            async with self._busy[fault.engine]:
                from_s = time.monotonic()
                await asyncio.to_thread(self._engines.kill, fault.engine)
                await asyncio.to_thread(self._engines.start_again, fault.engine)
                self._note(fault.kind, fault.engine, "dies", from_s)
        finally:
            self._killing.release()

    async def _stop(self, fault: Fault, number: int) -> None:
        async with self._busy[number]:
            from_s = time.monotonic()
            self._engines.signal(number, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                self._engines.signal(number, signal.SIGCONT)
            self._note(fault.kind, number, "stands", from_s)

    def _note(self, kind: str, number: int, effect: str, from_s: float) -> None:
        self.done.append(Done(kind, [self._urls[number]], [effect], from_s, time.monotonic()))


async def play(
    engines: Engines, seed: int, streams: int, faults: Sequence[Fault], folder: Path, tell: Callable[[str], None]
) -> Outcome:
    cell = RecordedCell(folder, [process.engine.port for process in engines.processes])
    try:
        await cell.start()
        callers = Callers(cell.port, seed, CALLERS, sys.maxsize, mix=MIX, give_up_s=GIVE_UP_S)
        doing = Faults(engines, cell.replica_urls)
        began_s = time.monotonic()
        telling = asyncio.create_task(_tell(callers, doing, tell))
        async with asyncio.TaskGroup() as group:
            group.create_task(callers.run())
            await _until(callers, WARM_UP_STREAMS)
            await doing.run(faults)
            await _until(callers, streams)
            callers.streams = 0  # no call begins any more
        telling.cancel()
        left = await _left_over(engines)
        exits = [member.name for member in cell.members if member.ended_by_itself()]
        codes = await cell.stop()
        exits += [f"{name}: exit code {code}" for name, code in codes.items() if code]
        judged = await asyncio.to_thread(_judge, cell, callers, doing)
        judged.findings["ended by itself, or badly"] += exits
        judged.findings["left over"] += left
        return outcome_of(seed, time.monotonic() - began_s, callers, doing.done, judged)
    finally:
        cell.remove()


async def _until(callers: Callers, streams: int) -> None:
    while callers.started < streams:
        await asyncio.sleep(0.1)


async def _tell(callers: Callers, doing: Faults, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(30)
        tell(f"{callers.started:,} streams, {len(doing.done):,} faults")


async def _left_over(engines: Engines) -> list[str]:
    deadline = time.monotonic() + IDLE_S
    while True:
        counts = [await asyncio.to_thread(_running, process.url) for process in engines.processes]
        if not any(counts) or time.monotonic() > deadline:
            return [f"{count:g} requests on engine {number}" for number, count in enumerate(counts) if count]
        await asyncio.sleep(0.5)


def _running(url: str) -> float:
    """As vLLM's own metrics say."""
    return sum(
        float(line.rpartition(b" ")[2]) for line in fetch(url + "/metrics").splitlines() if line.startswith(RUNNING)
    )


def _judge(cell: RecordedCell, callers: Callers, doing: Faults) -> Judgement:
    streams = read_journals(cell.journals, {})
    rows, slices = read_rows(cell.database.url)
    evidence = Evidence(callers.ended, streams, rows, slices, doing.done, RULES, {}, engines=cell.replica_urls)
    return judge_all(evidence, cell, callers)


def verdict(figures: Figures) -> Verdict:
    faults, sums = sum(figures.faults.values()), sums_of(figures.findings)
    bars = (
        at_least("streams", figures.streams, WANTED_STREAMS, ",.0f"),
        at_least("faults", faults, WANTED_FAULTS, ",.0f"),
        at_least("of these, engines killed", figures.faults[KILLED], WANTED_KILLS, ".0f"),
        at_least("calls in the books", figures.in_books, figures.streams, ",.0f"),
        at_least("missed floors refunded", figures.refunded, 1, ",.0f"),
        *(none_of(what, count) for what, count in sums.items()),
        explained_crowds(figures, figures.faults[STOPPED]),
    )
    figure = (
        f"{figures.streams:,} streams on two vLLM engines, {figures.faults[KILLED]} times killed and "
        f"{figures.faults[STOPPED]} times stopped, in {figures.parts} parts: {found_words(sums)}; "
        f"{figures.with_floor:,} with a floor, {figures.refunded} refunded; "
        f"{figures.explained[UNREADY]:,} calls {UNREADY}"
    )
    return Verdict(figure, bars)


def play_part(engines: Engines, seed: int, streams: int, faults: int) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"headway-torture-vllm-{seed}-"))

    def tell(words: str) -> None:
        console.print(f"seed {seed}: {words}", highlight=False)

    outcome = uvloop.run(play(engines, seed, streams, plan(seed, faults), folder, tell))
    for what, cases in outcome.explained.items():
        for case in cases[:SHOWN]:
            console.print(f"{what}: {case}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    conclude(outcome, folder)
    return outcome


def play_parts(seeds: Sequence[int], streams: int, faults: int, minutes: float, ledger: Path) -> None:
    began_s = time.monotonic()
    with without_autogroups(), two_engines(console) as engines:
        for seed in seeds:
            if time.monotonic() - began_s > 60 * minutes:
                break
            outcome = play_part(engines, seed, streams, faults)
            keep(outcome, ledger)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays parts of the torture on vLLM, and adds up their ledger.")
    parser.add_argument("--minutes", type=float, default=30.0, help="no part begins after so many")
    parser.add_argument("--seed", type=int, default=None, help="play only this one; the next ones if not set")
    parser.add_argument("--sum", action="store_true", help="play nothing")
    parser.add_argument("--streams", type=int, default=STREAMS, help="of one part, at least")
    parser.add_argument("--faults", type=int, default=FAULTS, help="of one part")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    asked = parser.parse_args()
    if not asked.sum:
        play_parts(next_seeds(asked.seed, asked.ledger), asked.streams, asked.faults, asked.minutes, asked.ledger)
    parts = read_ledger(asked.ledger)
    show(parts)
    return finish(console, verdict(figures_of(parts)))


if __name__ == "__main__":
    sys.exit(main())
