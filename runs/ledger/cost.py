"""Measures what the ledger adds to a call: gateways with and without one take turns. See runs/ledger-cost.sh."""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_process import free_port
from runs.ledger.own_postgres import OwnPostgres
from runs.measure.machine import require
from runs.measure.streams import ChatRequest, Stream, call, chat_request, gateway, scripted
from runs.measure.verdict import Verdict, at_most, finish

console = Console(width=120)
MODEL, SECRET = "m", "hw-cost"
CALLS, TOKENS, SEATS = 200, 8, 64
MOST_MS = 0.3


@dataclass(frozen=True)
class Figures:
    """What the ledger adds to the p50, in ms, for each round."""

    first_token_ms: tuple[float, ...]
    whole_answer_ms: tuple[float, ...]


def verdict(figures: Figures) -> Verdict:
    first, whole = statistics.median(figures.first_token_ms), statistics.median(figures.whole_answer_ms)
    bars = (
        at_most("added to the first token, p50", first, MOST_MS, ".3f", " ms"),
        at_most("added to the whole answer, p50", whole, MOST_MS, ".3f", " ms"),
    )
    figure = (
        f"the ledger adds {first:.3f} ms to the p50 of the first token and {whole:.3f} ms to that of the whole answer, "
        f"{len(figures.first_token_ms)} rounds of {CALLS} calls (bar {MOST_MS:g} ms)"
    )
    return Verdict(figure, bars)


def first_ms(stream: Stream) -> float:
    return (stream.first_at - stream.sent_at) * 1e3


def whole_ms(stream: Stream) -> float:
    return (stream.ended_at - stream.sent_at) * 1e3


async def one_at_a_time(plain: str, books: str, request: ChatRequest) -> tuple[list[Stream], list[Stream]]:
    streams: tuple[list[Stream], list[Stream]] = ([], [])
    for _ in range(CALLS):
        for url, mine in zip((plain, books), streams, strict=True):
            mine.append(await call(url, request))
    return streams


async def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    require(console, fast_cores=True, free_cores=True)
    folder = Path(tempfile.mkdtemp(prefix="headway-cost-"))
    engine_port, plain_port, books_port = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        # With a budget, so that every check of the ledger runs.
        store.put_key(Key(id="key-cost", hash=key_hash(SECRET.encode()), budget_day=10**12, budget_month=10**13))
        store.close()
        stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=20, step_ms="1:5", seats=SEATS))
        common = {"model": MODEL, "engine_urls": [f"http://127.0.0.1:{engine_port}"], "seats": SEATS}
        ledger = f'store = "{database.url}"\nspool = "{folder}/spool"\n'
        price = "[models.price]\ninput = 1.0\noutput = 10.0\n"
        keys = f'key_hashes = ["{key_hash(SECRET.encode())}"]'
        stack.enter_context(gateway(plain_port, folder, timing=keys, **common))  # type: ignore[arg-type]
        stack.enter_context(gateway(books_port, folder, tiers=price, ledger=ledger, **common))  # type: ignore[arg-type]
        plain, books = f"http://127.0.0.1:{plain_port}", f"http://127.0.0.1:{books_port}"
        added: dict[str, list[float]] = {"first token": [], "whole answer": []}
        for _ in track(range(rounds), console=console):
            streams = await one_at_a_time(plain, books, chat_request(MODEL, TOKENS, key=SECRET))
            if not all(stream.complete for of in streams for stream in of):
                raise SystemExit("calls failed")
            for what, time_ms in (("first token", first_ms), ("whole answer", whole_ms)):
                without, with_books = (statistics.median(map(time_ms, of)) for of in streams)
                added[what].append(with_books - without)
    table = Table("what, p50", "added, ms (median of rounds)", "lowest .. highest")
    for what, values in added.items():
        table.add_row(what, f"{statistics.median(values):.3f}", f"{min(values):.3f} .. {max(values):.3f}")
    console.print(table)
    return finish(console, verdict(Figures(tuple(added["first token"]), tuple(added["whole answer"]))))


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
