"""One key with a budget for half of its calls, used on four gateways at once. See runs/budget-race.sh."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.store import Store
from headway.ledger.verify import verify, verify_budgets
from headway.local.engine_process import free_port
from runs.ledger.own_postgres import OwnPostgres
from runs.measure.streams import Stream, call, chat_request, gateway, scripted
from runs.measure.verdict import Verdict, finish, none_of

console = Console(width=120)
MODEL = "m"
GATEWAYS, CALLS, TOKENS = 4, 500, 10
COST = TOKENS * 10  # micro-units; prompts are free here, so the reservation of a call is its exact cost
BUDGET = COST * CALLS // 2
PRICE = "[models.price]\ninput = 0.0\noutput = 10.0\n"
GIVE_UP_S = 60.0  # time limit for shipping all entries


@dataclass(frozen=True)
class Round:
    served: int
    over_budget: int  # refused with 402
    billed: int  # micro-units


@dataclass(frozen=True)
class Figures:
    rounds: tuple[Round, ...]
    problems: tuple[str, ...]  # of `headway ledger verify`


def verdict(figures: Figures) -> Verdict:
    overrun = sum(max(0, one.billed - BUDGET) for one in figures.rounds)
    refused = sum(max(0, BUDGET - one.billed) // COST for one in figures.rounds)
    others = sum(CALLS - one.served - one.over_budget for one in figures.rounds)
    unbilled = sum(one.served * COST != one.billed for one in figures.rounds)
    bars = (
        none_of("micro-units over the budget", overrun),
        none_of("calls refused while there was money", refused),
        none_of("calls that got any other answer", others),
        none_of("rounds whose bill is not that of the calls served", unbilled),
        none_of("problems in the ledger", len(figures.problems)),
    )
    figure = (
        f"{len(figures.rounds)} rounds of {CALLS} calls, {GATEWAYS} gateways: overrun {overrun} micro-units (bar 0), "
        f"refused while there was money {refused} (bar 0), answered otherwise {others} (bar 0)"
    )
    return Verdict(figure, bars)


async def one_round(number: int, ports: list[int]) -> Counter[int]:
    secret = f"hw-race-{number}"
    request = chat_request(MODEL, TOKENS, key=secret)
    done: list[Stream] = await asyncio.gather(
        *[call(f"http://127.0.0.1:{ports[n % GATEWAYS]}", request) for n in range(CALLS)]
    )
    return Counter(stream.status for stream in done)


async def until_shipped(store: Store, calls: int) -> None:
    """Wait until the ledger has every served call, at most GIVE_UP_S. The bars catch what is still missing then."""
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        if sum(entry.kind == "released" for entry in store.entries()) >= calls:
            return
        await asyncio.sleep(0.2)


async def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    folder = Path(tempfile.mkdtemp(prefix="headway-race-"))
    ports, engine_port = [free_port() for _ in range(GATEWAYS)], free_port()
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        for number in range(rounds):
            hashed = key_hash(f"hw-race-{number}".encode())
            store.put_key(Key(id=f"key-{number}", hash=hashed, budget_day=BUDGET))
        stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=5, step_ms="1:2", seats=CALLS))
        for number, port in enumerate(ports):
            ledger = f'store = "{database.url}"\nspool = "{folder}/spool-{number}"\n'
            urls = [f"http://127.0.0.1:{engine_port}"]
            stack.enter_context(
                gateway(port, folder, model=MODEL, engine_urls=urls, seats=CALLS, tiers=PRICE, ledger=ledger)
            )
        counts = [await one_round(number, ports) for number in track(range(rounds), console=console)]
        await until_shipped(store, sum(one[200] for one in counts))
        checked = verify(store.entries())
        verify_budgets(checked, store.slices(), store.keys_since(0))
        store.close()
    billed: Counter[str] = Counter()
    for (key, period, _), amount in checked.spent.items():
        billed[key] += amount if len(period) > len("2026-11") else 0  # days, not months
    found = [Round(one[200], one[402], billed[f"key-{number}"]) for number, one in enumerate(counts)]
    table = Table("round", "served", "over the budget", "billed ÷ budget")
    for number, one in enumerate(found):
        table.add_row(str(number), str(one.served), str(one.over_budget), f"{one.billed / BUDGET:.4f}")
    console.print(table)
    for problem in checked.problems[:10]:
        console.print(problem, style="red", markup=False)
    return finish(console, verdict(Figures(tuple(found), tuple(checked.problems))))


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
