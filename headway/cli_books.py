"""The commands about money: keys, bills, and whether the books are right. Each body only calls what does the work."""

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

from headway.config import Config, load
from headway.engines.vllm import VLLMEngine
from headway.errors import SetupError
from headway.ledger.bill import FIELDS, as_cloud_events, as_csv, as_records, make_bill, money
from headway.ledger.entries import day_of, now_us
from headway.ledger.keys import Key, key_hash, new_key_id, new_secret
from headway.ledger.opening import open_store
from headway.ledger.store import Store, StoreAway
from headway.ledger.verify import MAX_SHOWN, EngineCount, verify, verify_budgets, verify_engines
from headway.price import MICRO

console = Console()
keys_app = typer.Typer(
    no_args_is_help=True, help="Make, list, rotate and revoke keys.", epilog="Example: `headway keys list`"
)
ledger_app = typer.Typer(
    no_args_is_help=True, help="Look after the books.", epilog="Example: `headway ledger verify --engines`"
)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
DEFAULT_CONFIG = Path("headway.toml")
PerMinute = Annotated[int | None, typer.Option(min=1, help="Per minute; none: no limit.")]
Budget = Annotated[float | None, typer.Option(min=0, help="In the currency of the prices; none: no limit.")]


@contextmanager
def store_of(settings: Config, config: Path) -> Iterator[Store]:
    if settings.ledger is None:
        raise SetupError(f'{config} keeps no ledger. Add [ledger] with store = "sqlite:///books.db".')
    try:
        store = open_store(settings.ledger.store)
        store.migrate()
    except StoreAway as error:
        raise SetupError(f"the store of the ledger cannot be reached: {str(error).strip()}") from error
    try:
        yield store
    finally:
        store.close()


# --- keys ------------------------------------------------------------------------------------------------------------


@keys_app.command(epilog="Example: `headway keys create --name search-team --tier fast --budget-day 50`")
def create(
    name: Annotated[str, typer.Option(help="Whose it is; for people.")] = "",
    model: Annotated[list[str] | None, typer.Option(help="A model it is for; repeat for more. None: all.")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="A tier it is for; repeat for more. None: all.")] = None,
    requests: PerMinute = None,
    input_tokens: PerMinute = None,
    output_tokens: PerMinute = None,
    fast_requests: PerMinute = None,
    fast_input_tokens: PerMinute = None,
    fast_output_tokens: PerMinute = None,
    budget_day: Budget = None,
    budget_month: Budget = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Make a key. It is shown once, now; the store has its hash only."""
    settings = load(config)
    _check_names(settings, model, tier)
    secret = new_secret()
    key = Key(
        id=new_key_id(),
        hash=key_hash(secret.encode()),
        name=name,
        models=model,
        tiers=tier,
        requests_pm=requests,
        input_tpm=input_tokens,
        output_tpm=output_tokens,
        fast_requests_pm=fast_requests,
        fast_input_tpm=fast_input_tokens,
        fast_output_tpm=fast_output_tokens,
        budget_day=_micro(budget_day),
        budget_month=_micro(budget_month),
        created_us=now_us(),
    )
    with store_of(settings, config) as store:
        store.put_key(key)
    _show_secret(key, secret)


@keys_app.command(name="list", epilog="Example: `headway keys list`")
def list_keys(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """All keys, without what they are."""
    table = Table("key", "name", "models", "tiers", "per day", "per month", "state")
    with store_of(load(config), config) as store:
        keys = store.keys_since(0)
    for key in keys:
        budgets = [money(budget) if budget is not None else "-" for budget in (key.budget_day, key.budget_month)]
        state = "revoked" if key.revoked_us is not None else "good"
        table.add_row(key.id, key.name, _names(key.models), _names(key.tiers), *budgets, state)
    console.print(table)


@keys_app.command(epilog="Example: `headway keys revoke key-5f0c6a1b2d`")
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `headway keys list` shows it.")], config: ConfigPath = DEFAULT_CONFIG
) -> None:
    """End a key. Gateways that reach the store refuse it within two seconds; calls under way are served."""
    with store_of(load(config), config) as store:
        store.put_key(msgspec.structs.replace(_find(store, key_id), revoked_us=now_us()))
    console.print(f"{key_id} is revoked.")


@keys_app.command(epilog="Example: `headway keys rotate key-5f0c6a1b2d --keep-old-hours 24`")
def rotate(
    key_id: Annotated[str, typer.Argument(help="As `headway keys list` shows it.")],
    keep_old_hours: Annotated[float, typer.Option(min=0, max=720, help="How long the old one is good too.")] = 0.0,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Give a key a new secret, with the same rights, budgets and bill."""
    secret = new_secret()
    until_us = now_us() + int(keep_old_hours * 3600e6)
    with store_of(load(config), config) as store:
        key = _find(store, key_id)
        hashes = {"hash": key_hash(secret.encode()), "old_hash": key.hash, "old_hash_until_us": until_us}
        store.put_key(msgspec.structs.replace(key, **hashes))
    _show_secret(key, secret)


def _find(store: Store, key_id: str) -> Key:
    keys = {key.id: key for key in store.keys_since(0)}
    if key_id not in keys:
        raise SetupError(f"there is no key {key_id}: `headway keys list` shows them.")
    return keys[key_id]


def _check_names(settings: Config, models: list[str] | None, tiers: list[str] | None) -> None:
    known_models = [model.name for model in settings.models]
    known_tiers = sorted({tier.name for model in settings.models for tier in model.tiers})
    for what, said, known in (("model", models, known_models), ("tier", tiers, known_tiers)):
        for one in said or ():
            if one not in known:
                raise SetupError(f"there is no {what} {one!r} here. Known: {', '.join(known)}.")


def _show_secret(key: Key, secret: str) -> None:
    console.print(f"{key.id}: this is shown once, and stored nowhere:", highlight=False)
    console.print(secret, highlight=False, soft_wrap=True)


def _names(names: list[str] | None) -> str:
    return ", ".join(names) if names is not None else "all"


def _micro(amount: float | None) -> int | None:
    return round(amount * MICRO) if amount is not None else None


# --- bills -----------------------------------------------------------------------------------------------------------


def bill(
    since: Annotated[str, typer.Option(help="First day, in UTC: 2026-11-01. Default: the first of this month.")] = "",
    until: Annotated[str, typer.Option(help="Last day. Default: today.")] = "9999",
    by: Annotated[str, typer.Option(help=f"What to add up by: any of {','.join(FIELDS)}.")] = "key,model,tier",
    form: Annotated[
        Literal["table", "csv", "json", "cloudevents"], typer.Option("--format", help="How to print it.")
    ] = "table",
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """What was billed, beside what it cost in seat-time."""
    settings = load(config)
    fields = tuple(field for field in by.split(",") if field)
    if unknown := [field for field in fields if field not in FIELDS]:
        raise SetupError(f"--by {unknown[0]}: must be of {', '.join(FIELDS)}.")
    hours = {
        model.name: round(model.price.replica_hour * MICRO)
        for model in settings.models
        if model.price is not None and model.price.replica_hour is not None
    }
    with store_of(settings, config) as store:
        entries = store.entries(since or day_of(now_us())[:8] + "01", until)
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
        table = Table(*(records[0] if records else ["nothing was billed"]))
        for record in records:
            table.add_row(*[str(value) for value in record.values()])
        console.print(table)


# --- the books -------------------------------------------------------------------------------------------------------


@ledger_app.command(name="verify", epilog="Example: `headway ledger verify --engines`")
def verify_ledger(
    engines: Annotated[bool, typer.Option(help="Ask the engines of the configuration what they made, too.")] = False,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Derive every total again from the entries; exit 1 if anything is not as it must be."""
    settings = load(config)
    with store_of(settings, config) as store:
        verdict = verify(store.entries())
        verify_budgets(verdict, store.slices(), store.keys_since(0))
    if engines:
        table = Table("replica", "prompt tokens billed", "it says", "output tokens billed", "it says")
        for row in verify_engines(verdict, asyncio.run(_engine_counts(settings))):
            table.add_row(*[str(value) for value in row])
        console.print(table)
    console.print(
        f"{verdict.entries} entries of {verdict.calls} calls, {verdict.open_calls} under way: "
        f"{money(verdict.billed)} billed, {money(verdict.held)} held.",
        highlight=False,
    )
    for problem in verdict.problems[:MAX_SHOWN]:
        console.print(problem, style="red", highlight=False, markup=False)
    if verdict.problems:
        console.print(f"{len(verdict.problems)} problems.", style="red")
        raise typer.Exit(1)
    console.print("The books are right.", style="green")


@ledger_app.command(epilog="Example: `headway ledger migrate`")
def migrate(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """Make or update the store's tables. Gateways do this when they start, too."""
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
