"""`headway bill` and `headway ledger`: what was billed, and whether the ledger is consistent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import Config, load
from headway.engines.vllm import VLLMEngine
from headway.errors import SetupError
from headway.ledger.bill import FIELDS, as_cloud_events, as_csv, as_records, make_bill, money
from headway.ledger.entries import day_of, now_us
from headway.ledger.opening import open_store
from headway.ledger.segments import BAD, BadLines
from headway.ledger.store import Store, StoreUnavailable
from headway.ledger.verify import MAX_SHOWN, EngineCount, verify, verify_budgets, verify_engines
from headway.price import MICRO

console = Console()
LAST_DAY = "9999"  # sorts after every date
ledger = typer.Typer()


@contextmanager
def store_of(settings: Config, config: Path) -> Iterator[Store]:
    if settings.ledger is None:
        raise SetupError(f'{config} has no ledger. Add [ledger] with store = "sqlite:///books.db".')
    try:
        store = open_store(settings.ledger.store)
        store.migrate()
    except StoreUnavailable as error:
        raise SetupError(f"cannot reach the ledger's store: {str(error).strip()}") from error
    try:
        yield store
    finally:
        store.close()


def bill(
    since: Annotated[
        str | None, typer.Option(help="First day in UTC, such as 2026-11-01.", show_default="first of this month")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Last day in UTC.", show_default="no end")] = None,
    by: Annotated[str, typer.Option(help=f"Group by any of {','.join(FIELDS)}.")] = "key,model,tier",
    form: Annotated[
        Literal["table", "csv", "json", "cloudevents"], typer.Option("--format", help="Output format.")
    ] = "table",
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    settings = load(config)
    fields = tuple(field for field in by.split(",") if field)
    if unknown := [field for field in fields if field not in FIELDS]:
        raise SetupError(f"--by {unknown[0]}: must be one of {', '.join(FIELDS)}.")
    hours = {
        model.name: round(model.price.replica_hour * MICRO)
        for model in settings.models
        if model.price is not None and model.price.replica_hour is not None
    }
    with store_of(settings, config) as store:
        entries = store.entries(since or day_of(now_us())[:8] + "01", until or LAST_DAY)
        if form == "cloudevents":
            sys.stdout.writelines(event.decode() for event in as_cloud_events(entries))
            return
        rows = make_bill(entries, fields, hours)
    if form == "csv":
        sys.stdout.write(as_csv(rows, fields))
    elif form == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(as_records(rows))).decode() + "\n")
    else:
        records = as_records(rows)
        table = Table(*(records[0] if records else ["nothing billed"]))
        for record in records:
            table.add_row(*[str(value) for value in record.values()])
        console.print(table)


def spools_of(settings: Config) -> list[Path]:
    """On this machine, also those of the relays that one gateway has."""
    if settings.ledger is None:
        return []
    spool = Path(settings.ledger.spool)
    return [spool, *sorted(spool.glob("relay-*"))]


@ledger.command(name="verify", epilog="Example: `headway ledger verify --engines`")
def verify_ledger(
    engines: Annotated[bool, typer.Option(help="Also compare with the engines' own token counters.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Recompute every total from the entries. Exits with 1 if anything does not add up, or if lines of the spool on
    this machine were set aside."""
    settings = load(config)
    with store_of(settings, config) as store:
        verdict = verify(store.entries())
        verify_budgets(verdict, store.slices(), store.keys_since(0))
    for spool in spools_of(settings):
        if bad := BadLines(spool).count:
            verdict.report(f"{spool}/{BAD}: {bad} lines of the spool could not be read and were set aside")
    if engines:
        table = Table("replica", "prompt tokens billed", "reported", "output tokens billed", "reported")
        for row in verify_engines(verdict, asyncio.run(_engine_counts(settings))):
            table.add_row(*[str(value) for value in row])
        console.print(table)
    console.print(
        f"{verdict.entries} entries of {verdict.calls} calls, {verdict.open_calls} running: "
        f"{money(verdict.billed)} billed, {money(verdict.held)} held, {money(verdict.undelivered)} not delivered and "
        "not billed.",
        highlight=False,
    )
    for problem in verdict.problems[:MAX_SHOWN]:
        console.print(problem, style="red", highlight=False, markup=False)
    if verdict.problems:
        console.print(f"{len(verdict.problems)} problems.", style="red")
        raise typer.Exit(1)
    console.print("The ledger is consistent.", style="green")


@ledger.command(epilog="Example: `headway ledger migrate`")
def migrate(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Create or update the tables of the store. Gateways also do this when they start."""
    with store_of(load(config), config):
        console.print("The store is up to date.")


async def _engine_counts(settings: Config) -> dict[str, EngineCount]:
    counts = {}
    for model in settings.models:
        for replica in model.replicas:
            engine = VLLMEngine(replica.url, replica.url, model.name)
            try:
                started_s, prompt_tokens, output_tokens = await engine.counts()
            finally:
                engine.close()
            counts[replica.url] = EngineCount(int(started_s * 1e6), int(prompt_tokens), int(output_tokens))
    return counts
