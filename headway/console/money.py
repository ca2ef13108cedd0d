"""`GET /admin/money` and `GET /admin/keys`: what calls brought and cost today, and what each key has spent.

Money is in millionths of the owner's currency. Figures lag behind the calls by a few seconds (ledger/reading.py). The
hashes of keys are not shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.config import Config
from headway.ledger.bill import HOUR_US
from headway.ledger.entries import day_of, month_of, now_us
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


@dataclass(frozen=True, slots=True)
class _KeysOfDay:
    keys: list[Key]
    spent: dict[str, tuple[int, int]]  # by key: its calls, and their amount
    leased: dict[str, int]  # by key, of its budget of the month
    store_now_us: int


async def keys_today(reader: StoreReader) -> dict[str, Any]:
    """Those that spent the most first. Raises Refused while the store is away."""
    day = day_of(now_us())
    read = await reader.read(f"keys {day}", lambda store: _read_keys(store, day))
    rows = [_key(key, read) for key in read.keys]
    rows.sort(key=lambda row: (-row["spent_today_micro"], row["name"], row["id"]))
    return {"keys": rows[:MAX_KEYS], "more_keys": len(rows[MAX_KEYS:])}


def _read_keys(store: Store, day: str) -> _KeysOfDay:
    spent = {key: (calls, amount) for key, calls, amount in store.spent_by_key(day)}
    return _KeysOfDay(store.keys_since(0), spent, store.leased_by_key(month_of(day)), store.now_us())


def _key(key: Key, read: _KeysOfDay) -> dict[str, Any]:
    calls, spent_micro = read.spent.get(key.id, (0, 0))
    return {
        "id": key.id,
        "name": key.name,
        "is_revoked": key.revoked_us is not None and key.revoked_us <= read.store_now_us,
        "calls_today": calls,
        "spent_today_micro": spent_micro,
        "budget_day_micro": key.budget_day,
        # A month's entries are too many to add up for each viewer; what was leased of a budget is known.
        "reserved_month_micro": read.leased.get(key.id, 0) if key.budget_month is not None else None,
        "budget_month_micro": key.budget_month,
        "requests_per_minute": key.requests_pm,
        "fast_requests_per_minute": key.fast_requests_pm,
    }
