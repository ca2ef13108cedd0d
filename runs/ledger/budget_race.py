"""One key, money for half of its calls, four gateways at once. See runs/budget-race.sh."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
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

console = Console(width=120)
MODEL = "m"
GATEWAYS, CALLS, TOKENS = 4, 500, 10
COST = TOKENS * 10  # micro-units: prompts are free here, so what a call may cost is what it costs
BUDGET = COST * CALLS // 2
PRICE = "[models.price]\ninput = 0.0\noutput = 10.0\n"
KEYS_KNOWN_S = 3.0  # gateways look for new keys every two seconds


async def one_round(store: Store, number: int, ports: list[int]) -> Counter[bytes]:
    secret = f"hw-race-{number}"
    request = chat_request(MODEL, TOKENS, key=secret)
    done: list[Stream] = await asyncio.gather(
        *[call(f"http://127.0.0.1:{ports[n % GATEWAYS]}", request) for n in range(CALLS)]
    )
    return Counter(stream.status for stream in done)


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
        table = Table("round", "served", "over the budget", "other", "billed ÷ budget")
        refused_wrongly = overrun = others = 0
        results = [await one_round(store, number, ports) for number in track(range(rounds), console=console)]
        await asyncio.sleep(KEYS_KNOWN_S)  # the last entries are shipped
        verdict = verify(store.entries())
        verify_budgets(verdict, store.slices(), store.keys_since(0))
        for number, counts in enumerate(results):
            billed = sum(
                amount
                for (key, period, _), amount in verdict.spent.items()
                if key == f"key-{number}" and len(period) > 7
            )
            other = CALLS - counts[b"200"] - counts[b"402"]
            table.add_row(str(number), str(counts[b"200"]), str(counts[b"402"]), str(other), f"{billed / BUDGET:.4f}")
            refused_wrongly += max(0, BUDGET - billed) // COST
            overrun += max(0, billed - BUDGET)
            others += other
        store.close()
    console.print(table)
    for problem in verdict.problems[:10]:
        console.print(problem, style="red", markup=False)
    console.print(
        f"{rounds} rounds of {CALLS} calls, {GATEWAYS} gateways: overrun {overrun} micro-units (bar 0), refused while "
        f"there was money {refused_wrongly} (bar 0), answered otherwise {others} (bar 0)"
    )
    return 0 if not (overrun or refused_wrongly or others or verdict.problems) else 1


if __name__ == "__main__":
    raise SystemExit(uvloop.run(main()))
