"""What the books cost on the hot path: a gateway with and one without, in turns. See runs/ledger-cost.sh."""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvloop
from own_postgres import OwnPostgres
from rich.console import Console
from rich.progress import track
from rich.table import Table
from streams import Stream, call, chat_request, cpu_seconds, gateway, scripted

from headway.fleet.local import free_port
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store

console = Console(width=120)
MODEL, SECRET = "m", "hw-cost"
CALLS, TOKENS = 200, 8
MOST_MS = 0.3


def first_ms(stream: Stream) -> float:
    return (stream.first_at - stream.sent_at) * 1e3


def whole_ms(stream: Stream) -> float:
    return (stream.ended_at - stream.sent_at) * 1e3


async def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = Path(tempfile.mkdtemp(prefix="headway-cost-"))
    engine_port, plain_port, books_port = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        # With a budget, so that all there is to do is done.
        store.put_key(Key(id="key-cost", hash=key_hash(SECRET.encode()), budget_day=10**12, budget_month=10**13))
        store.close()
        stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=20, step_ms="1:5", seats=64))
        common = {"model": MODEL, "engine_urls": [f"http://127.0.0.1:{engine_port}"], "seats": 64}
        ledger = f'store = "{database.url}"\nspool = "{folder}/spool"\n'
        price = "[models.price]\ninput = 1.0\noutput = 10.0\n"
        keys = f'key_hashes = ["{key_hash(SECRET.encode())}"]'
        plain_pid = stack.enter_context(gateway(plain_port, folder, timing=keys, **common))  # type: ignore[arg-type]
        books_pid = stack.enter_context(gateway(books_port, folder, tiers=price, ledger=ledger, **common))  # type: ignore[arg-type]
        request = chat_request(MODEL, TOKENS, key=SECRET)
        added_first, added_whole, calls = [], [], 0
        cpu = [-cpu_seconds(plain_pid), -cpu_seconds(books_pid)]
        for _ in track(range(rounds), console=console):
            plain, books = [], []
            for _ in range(CALLS):
                plain.append(await call(f"http://127.0.0.1:{plain_port}", request))
                books.append(await call(f"http://127.0.0.1:{books_port}", request))
            if not all(stream.complete for stream in plain + books):
                raise SystemExit("calls failed")
            calls += CALLS
            for added, time_ms in ((added_first, first_ms), (added_whole, whole_ms)):
                added.append(statistics.median(map(time_ms, books)) - statistics.median(map(time_ms, plain)))
        cpu = [cpu[0] + cpu_seconds(plain_pid), cpu[1] + cpu_seconds(books_pid)]
    table = Table("what, p50", "added, ms (median of rounds)", "rounds", "bar")
    bars = (("first token", added_first), ("whole answer", added_whole))
    for what, added in bars:
        spread = f"{min(added):.3f} .. {max(added):.3f}"
        table.add_row(what, f"{statistics.median(added):.3f}", spread, f"{MOST_MS:g}")
    console.print(table)
    console.print(f"CPU per call: {cpu[0] / calls * 1e3:.2f} ms without, {cpu[1] / calls * 1e3:.2f} ms with books")
    worst = max(statistics.median(added) for _, added in bars)
    console.print(f"the books add {worst:.3f} ms to the p50 of a call, {rounds} rounds of {CALLS} (bar {MOST_MS:g} ms)")
    return 0 if worst <= MOST_MS else 1


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
