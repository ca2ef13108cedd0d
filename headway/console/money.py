"""`GET /admin/money` and `GET /admin/keys`: what calls brought and cost today, and what each key has spent.

Money is in millionths of the owner's currency. Figures lag behind the calls by a few seconds (ledger/reading.py). The
hashes of keys are not shown.
"""

from __future__ import annotations

from typing import Any

from headway.config import Config
from headway.ledger.bill import HOUR_US
from headway.ledger.entries import day_of, now_us
from headway.ledger.keys import Key
from headway.ledger.reading import StoreReader
from headway.ledger.store import EarnedRow, Store
from headway.price import MICRO

MAX_KEYS = 500


async def money_today(reader: StoreReader, config: Config) -> dict[str, Any]:
    """Raises Refused while the store is away."""
    day = day_of(now_us())
    at_us, rows = await reader.read(f"earned {day}", lambda store: (now_us(), store.earned(day)))
    hourly = {
        model.name: round(model.price.replica_hour * MICRO)
        for model in config.models
        if model.price is not None and model.price.replica_hour is not None
    }
    tiers = [_tier(row, hourly.get(row.model)) for row in sorted(rows, key=lambda row: (row.model, row.tier))]
    return {"day": day, "as_of": at_us // MICRO, "tiers": tiers}


def _tier(row: EarnedRow, replica_hour: int | None) -> dict[str, Any]:
    return {
        "model": row.model,
        "tier": row.tier,
        "calls": row.calls,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "revenue_micro": row.served,
        "refunded_micro": row.refunded,
        "cost_micro": row.seat_us * replica_hour // HOUR_US if replica_hour is not None else None,
        "seat_us": row.seat_us,
    }


async def keys_today(reader: StoreReader) -> dict[str, Any]:
    """Those that spent the most first. Raises Refused while the store is away."""
    day = day_of(now_us())
    keys, spent, now = await reader.read(f"keys {day}", lambda store: _keys(store, day))
    rows = sorted(keys, key=lambda key: (-spent.get(key.id, (0, 0))[1], key.name, key.id))
    shown = [_key(key, *spent.get(key.id, (0, 0)), now) for key in rows[:MAX_KEYS]]
    return {"keys": shown, "more_keys": len(rows) - len(shown)}


def _keys(store: Store, day: str) -> tuple[list[Key], dict[str, tuple[int, int]], int]:
    """The keys, the calls and the spending of each, and the store's time."""
    spent = {key: (calls, amount) for key, calls, amount in store.spent_by_key(day)}
    return store.keys_since(0), spent, store.now_us()


def _key(key: Key, calls: int, amount: int, store_now_us: int) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "is_revoked": key.revoked_us is not None and key.revoked_us <= store_now_us,
        "calls_today": calls,
        "spent_today_micro": amount,
        "budget_day_micro": key.budget_day,
        "budget_month_micro": key.budget_month,
        "requests_per_minute": key.requests_pm,
        "fast_requests_per_minute": key.fast_requests_pm,
    }
