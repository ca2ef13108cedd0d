"""`headway keys`: create, list, rotate and revoke API keys."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headway.cli.ledger import store_of
from headway.cli.options import DEFAULT_CONFIG, ConfigPath
from headway.config import Config, load
from headway.errors import SetupError
from headway.ledger.bill import money
from headway.ledger.keys import Key, key_hash, new_key_id, new_secret
from headway.ledger.store import Store
from headway.price import MICRO

console = Console()
keys = typer.Typer()

KeyId = Annotated[str, typer.Argument(help="Id of the key, as shown by `headway keys list`.")]


def _limit(help: str, min: int = 1) -> Any:
    return typer.Option(min=min, help=help, show_default="no limit")


@keys.command(epilog="Example: `headway keys create --name search-team --tier fast --budget-day 50`")
def create(
    name: Annotated[str, typer.Option(help="Label that says whose key it is.")] = "",
    model: Annotated[
        list[str] | None, typer.Option(help="Model that the key may use. Repeat for several.", show_default="all")
    ] = None,
    tier: Annotated[
        list[str] | None, typer.Option(help="Tier that the key may use. Repeat for several.", show_default="all")
    ] = None,
    default_tier: Annotated[
        str | None,
        typer.Option(help="Tier of calls that do not ask for one, where the model offers it.", show_default="standard"),
    ] = None,
    requests: Annotated[int | None, _limit("Requests per minute in `standard` and `flex`.")] = None,
    input_tokens: Annotated[int | None, _limit("Prompt tokens per minute in `standard` and `flex`.")] = None,
    output_tokens: Annotated[int | None, _limit("Output tokens per minute in `standard` and `flex`.")] = None,
    fast_requests: Annotated[int | None, _limit("Requests per minute in `fast` and `ultrafast`.")] = None,
    fast_input_tokens: Annotated[int | None, _limit("Prompt tokens per minute in `fast` and `ultrafast`.")] = None,
    fast_output_tokens: Annotated[int | None, _limit("Output tokens per minute in `fast` and `ultrafast`.")] = None,
    budget_day: Annotated[float | None, _limit("Budget per day, in the currency of the prices.", min=0)] = None,
    budget_month: Annotated[float | None, _limit("Budget per month, in the currency of the prices.", min=0)] = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Create a key. It is shown only once: the store keeps its hash."""
    settings = load(config)
    _check_names(settings, model, tier, default_tier)
    secret = new_secret()
    key = Key(
        id=new_key_id(),
        hash=key_hash(secret.encode()),
        name=name,
        models=model,
        tiers=tier,
        default_tier=default_tier,
        requests_pm=requests,
        input_tpm=input_tokens,
        output_tpm=output_tokens,
        fast_requests_pm=fast_requests,
        fast_input_tpm=fast_input_tokens,
        fast_output_tpm=fast_output_tokens,
        budget_day=_micro(budget_day),
        budget_month=_micro(budget_month),
    )
    with store_of(settings, config) as store:
        store.put_key(msgspec.structs.replace(key, created_us=store.now_us()))
    _show_secret(key, secret)


@keys.command(name="list", epilog="Example: `headway keys list`")
def list_keys(config: ConfigPath = DEFAULT_CONFIG) -> None:
    """List all keys with their rights, budgets and state."""
    table = Table("key", "name", "models", "tiers", "default tier", "per day", "per month", "state")
    with store_of(load(config), config) as store:
        keys = store.keys_since(0)
    for key in keys:
        budgets = [money(budget) if budget is not None else "-" for budget in (key.budget_day, key.budget_month)]
        state = "revoked" if key.revoked_us is not None else "active"
        tiers = (_names(key.tiers), key.default_tier or "standard")
        table.add_row(key.id, key.name, _names(key.models), *tiers, *budgets, state)
    console.print(table)


@keys.command(epilog="Example: `headway keys revoke key-5f0c6a1b2d`")
def revoke(
    key_id: KeyId,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Revoke a key. Gateways that reach the store refuse it within two seconds; running calls are completed."""
    with store_of(load(config), config) as store:
        store.put_key(msgspec.structs.replace(_find(store, key_id), revoked_us=store.now_us()))
    console.print(f"{key_id} is revoked.")


@keys.command(epilog="Example: `headway keys rotate key-5f0c6a1b2d --keep-old-hours 24`")
def rotate(
    key_id: KeyId,
    keep_old_hours: Annotated[
        float, typer.Option(min=0, max=720, help="Hours for which the old secret stays valid.")
    ] = 0.0,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Give a key a new secret. Its rights, budgets and bill stay the same."""
    secret = new_secret()
    with store_of(load(config), config) as store:
        key = _find(store, key_id)
        until_us = store.now_us() + int(keep_old_hours * 3600e6)
        hashes = {"hash": key_hash(secret.encode()), "old_hash": key.hash, "old_hash_until_us": until_us}
        store.put_key(msgspec.structs.replace(key, **hashes))
    _show_secret(key, secret)


def _find(store: Store, key_id: str) -> Key:
    keys = {key.id: key for key in store.keys_since(0)}
    if key_id not in keys:
        raise SetupError(f"there is no key {key_id}. List the keys with `headway keys list`.")
    return keys[key_id]


def _check_names(settings: Config, models: list[str] | None, tiers: list[str] | None, default_tier: str | None) -> None:
    known_models = [model.name for model in settings.models]
    known_models += [model.auto_name for model in settings.models if model.auto is not None]
    known_tiers = sorted({tier.name for model in settings.models for tier in model.tiers})
    for what, said, known in (("model", models, known_models), ("tier", tiers, known_tiers)):
        for one in said or ():
            if one not in known:
                raise SetupError(f"there is no {what} {one!r} in the configuration. Known: {', '.join(known)}.")
    usable = tiers or known_tiers
    if default_tier is not None and default_tier not in usable:
        raise SetupError(f"the key may not use its default tier {default_tier!r}. It may use: {', '.join(usable)}.")


def _show_secret(key: Key, secret: str) -> None:
    console.print(f"{key.id}: this secret is shown only once and not stored:", highlight=False)
    console.print(secret, highlight=False, soft_wrap=True)


def _names(names: list[str] | None) -> str:
    return ", ".join(names) if names is not None else "all"


def _micro(amount: float | None) -> int | None:
    return round(amount * MICRO) if amount is not None else None
