"""The database goes away again and again under load. See runs/ledger-outages.sh."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.verify import verify
from headway.local.engine_process import free_port
from runs.ledger.own_postgres import OwnPostgres
from runs.measure.streams import call, chat_request, gateway, scripted

console = Console(width=120)
MODEL, SECRET = "m", "hw-outages"
CALLS_PER_S, TOKENS = 25.0, 20
WARM_UP_S, BETWEEN_S, SETTLE_S = 30.0, 8.0, 4.0
MOST_GROWTH = 0.05
PRICE = "[models.price]\ninput = 1.0\noutput = 10.0\n"


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the gateway is gone")


async def load(url: str, answers: Counter[str]) -> None:
    chance, request = random.Random(1), chat_request(MODEL, TOKENS, key=SECRET)
    calls = set[asyncio.Task[None]]()

    async def one() -> None:
        stream = await call(url, request)
        answers["complete" if stream.complete else stream.status.decode() or "no answer"] += 1

    while True:
        task = asyncio.create_task(one())
        calls.add(task)
        task.add_done_callback(calls.discard)
        await asyncio.sleep(chance.expovariate(CALLS_PER_S))


async def main() -> int:
    outages = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    away_s = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    folder = Path(tempfile.mkdtemp(prefix="headway-outages-"))
    port, engine_port = free_port(), free_port()
    answers: Counter[str] = Counter()
    table = Table("outage", "spool at its end, kB", "caught up after, s", "memory, MB", "beside the start")
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        store.put_key(Key(id="key-outages", hash=key_hash(SECRET.encode())))
        store.close()
        stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=10, step_ms="1:10", seats=256))
        spool = folder / "spool"
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
        loading = asyncio.create_task(load(f"http://127.0.0.1:{port}", answers))
        await asyncio.sleep(WARM_UP_S)
        before_mb = resident_mb(pid)
        growth = 0.0
        for number in range(outages):
            await asyncio.to_thread(database.kill)
            await asyncio.sleep(away_s)
            spooled_kb = sum(path.stat().st_size for path in spool.glob("*.jsonl")) / 1024
            await asyncio.to_thread(database.start)
            since = time.monotonic()
            while entries_behind(database.url, answers) > 3 * CALLS_PER_S:
                await asyncio.sleep(0.2)
            caught_up_s = time.monotonic() - since
            await asyncio.sleep(BETWEEN_S)
            now_mb = resident_mb(pid)
            growth = max(growth, now_mb / before_mb - 1)
            row = [f"{spooled_kb:,.0f}", f"{caught_up_s:.1f}", f"{now_mb:.1f}", f"{now_mb / before_mb - 1:+.1%}"]
            table.add_row(str(number + 1), *row)
            console.print(f"outage {number + 1} of {outages}: {dict(answers)}, memory {row[-1]}")
        loading.cancel()
        await asyncio.sleep(SETTLE_S)
        store = open_store(database.url)
        verdict = verify(store.entries())
        store.close()
    console.print(table)
    refused = sum(count for status, count in answers.items() if status != "complete")
    console.print(f"answers: {dict(answers)}; the books: {verdict.calls} calls, {len(verdict.problems)} problems")
    console.print(
        f"{outages} outages of {away_s:g} s, {answers['complete']} calls: {refused} not served (bar 0), memory at most "
        f"{growth:+.1%} after one (bar {MOST_GROWTH:.0%}), {answers['complete'] - verdict.calls} calls missing (bar 0)"
    )
    is_whole = verdict.calls >= answers["complete"] and not verdict.problems
    return 0 if not refused and growth <= MOST_GROWTH and is_whole else 1


def entries_behind(url: str, answers: Counter[str]) -> float:
    store = open_store(url)
    try:
        with store.transaction() as cursor:
            cursor.execute("SELECT COUNT(*) FROM entries WHERE kind = 'served'")
            return answers["complete"] - int(cursor.fetchone()[0])
    finally:
        store.close()


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
