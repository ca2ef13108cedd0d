"""Stops the ledger's database again and again under load. See runs/ledger-outages.sh."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from headway.errors import ConnectionFailed
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.verify import verify
from headway.local.engine_process import free_port
from runs.ledger.own_postgres import OwnPostgres
from runs.measure.streams import call, chat_request, gateway, resident_kib, scripted
from runs.measure.verdict import Verdict, at_most, finish, none_of

console = Console(width=120)
MODEL, SECRET = "m", "hw-outages"
CALLS_PER_S, TOKENS = 25.0, 20
WARM_UP_CALLS, BETWEEN_CALLS = 750, 200  # at 25 a second: half a minute, and 8 s
GIVE_UP_S = 120.0  # time limit for shipping all entries
MOST_GROWTH = 0.05
PRICE = "[models.price]\ninput = 1.0\noutput = 10.0\n"


@dataclass(frozen=True)
class Outage:
    spooled_kb: float  # at its end
    caught_up_s: float  # after the database was back
    memory_mb: float  # of the gateway, when it had caught up


@dataclass(frozen=True)
class Figures:
    away_s: float
    before_mb: float
    outages: tuple[Outage, ...]
    complete: int  # calls
    not_served: int
    in_ledger: int  # calls
    problems: tuple[str, ...]  # of `headway ledger verify`


def growth(figures: Figures) -> float:
    return max(one.memory_mb for one in figures.outages) / figures.before_mb - 1


def verdict(figures: Figures) -> Verdict:
    missing = max(0, figures.complete - figures.in_ledger)
    bars = (
        none_of("calls not served", figures.not_served),
        none_of("calls missing in the ledger", missing),
        none_of("problems in the ledger", len(figures.problems)),
        at_most("memory after an outage, beside the start", growth(figures), MOST_GROWTH, "+.1%"),
    )
    figure = (
        f"{len(figures.outages)} outages of {figures.away_s:g} s, {figures.complete:,} calls: {figures.not_served} not "
        f"served (bar 0), memory at most {growth(figures):+.1%} after one (bar {MOST_GROWTH:.0%}), {missing} calls "
        "missing (bar 0)"
    )
    return Verdict(figure, bars)


async def load(url: str, answers: Counter[str], stop: asyncio.Event) -> None:
    """Make calls with Poisson arrivals until `stop` is set. Returns when the last one has ended."""
    chance, request = random.Random(1), chat_request(MODEL, TOKENS, key=SECRET)
    calls = set[asyncio.Task[None]]()

    async def one() -> None:
        try:
            stream = await call(url, request)
            answers["complete" if stream.complete else str(stream.status or "no answer")] += 1
        except (ConnectionFailed, TimeoutError):
            answers["no answer"] += 1

    while not stop.is_set():
        task = asyncio.create_task(one())
        calls.add(task)
        task.add_done_callback(calls.discard)
        await asyncio.sleep(chance.expovariate(CALLS_PER_S))
    await asyncio.gather(*calls)


async def until_served(answers: Counter[str], more: int) -> None:
    """Wait until `more` further calls have ended."""
    wanted = answers.total() + more
    while answers.total() < wanted:
        await asyncio.sleep(0.1)


async def until_shipped(url: str, answers: Counter[str], behind: float) -> float:
    """Wait until the ledger is at most `behind` calls behind. Returns the seconds it took."""
    since = time.monotonic()
    while entries_behind(url, answers) > behind and time.monotonic() < since + GIVE_UP_S:
        await asyncio.sleep(0.2)
    return time.monotonic() - since


def entries_behind(url: str, answers: Counter[str]) -> float:
    store = open_store(url)
    try:
        with store.transaction() as cursor:
            cursor.execute("SELECT COUNT(*) FROM entries WHERE kind = 'served'")
            return answers["complete"] - int(cursor.fetchone()[0])
    finally:
        store.close()


async def one_outage(database: OwnPostgres, spool: Path, pid: int, away_s: float, answers: Counter[str]) -> Outage:
    await asyncio.to_thread(database.kill)
    await asyncio.sleep(away_s)
    spooled_kb = sum(path.stat().st_size for path in spool.glob("*.jsonl")) / 1024
    await asyncio.to_thread(database.start)
    caught_up_s = await until_shipped(database.url, answers, 3 * CALLS_PER_S)
    await until_served(answers, BETWEEN_CALLS)
    return Outage(spooled_kb, caught_up_s, resident_kib(pid) / 1024)


async def measure(outages: int, away_s: float, database: OwnPostgres, folder: Path) -> Figures:
    port, engine_port, spool = free_port(), free_port(), folder / "spool"
    answers: Counter[str] = Counter()
    stop, found = asyncio.Event(), list[Outage]()
    with ExitStack() as stack:
        stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=10, step_ms="1:10", seats=256))
        pid = stack.enter_context(
            gateway(
                port,
                folder,
                model=MODEL,
                engine_urls=[f"http://127.0.0.1:{engine_port}"],
                seats=256,
                tiers=PRICE,
                ledger=f'store = "{database.url}"\nspool = "{spool}"\n',
            )
        )
        loading = asyncio.create_task(load(f"http://127.0.0.1:{port}", answers, stop))
        await until_served(answers, WARM_UP_CALLS)
        before_mb = resident_kib(pid) / 1024
        for number in range(outages):
            found.append(await one_outage(database, spool, pid, away_s, answers))
            grown = found[-1].memory_mb / before_mb - 1
            console.print(f"outage {number + 1} of {outages}: {dict(answers)}, memory {grown:+.1%}")
        stop.set()
        await loading
        await until_shipped(database.url, answers, 0)
    store = open_store(database.url)
    checked = verify(store.entries())
    store.close()
    not_served = answers.total() - answers["complete"]
    return Figures(
        away_s, before_mb, tuple(found), answers["complete"], not_served, checked.calls, tuple(checked.problems)
    )


def show(figures: Figures) -> None:
    table = Table("outage", "spool at its end, kB", "caught up after, s", "memory, MB", "beside the start")
    for number, one in enumerate(figures.outages):
        grown = one.memory_mb / figures.before_mb - 1
        row = [f"{one.spooled_kb:,.0f}", f"{one.caught_up_s:.1f}", f"{one.memory_mb:.1f}", f"{grown:+.1%}"]
        table.add_row(str(number + 1), *row)
    console.print(table)
    for problem in figures.problems[:10]:
        console.print(problem, style="red", markup=False)


async def main() -> int:
    outages = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    away_s = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-outages-")))
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        store.put_key(Key(id="key-outages", hash=key_hash(SECRET.encode())))
        store.close()
        figures = await measure(outages, away_s, database, folder)
    show(figures)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
