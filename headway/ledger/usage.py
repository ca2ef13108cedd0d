"""What a key has spent today and this month, for `GET /v1/usage`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.core.types import EXPRESS, TIERS
from headway.ledger.entries import day_of, month_of, now_us
from headway.ledger.keys import Key
from headway.ledger.reading import StoreReader
from headway.ledger.store import SpentRow, Store

OTHER = tuple(tier for tier in TIERS if tier not in EXPRESS)


@dataclass(frozen=True, slots=True)
class Spending:
    """What the store had of one key, in the month of `day` until then."""

    rows: list[SpentRow]
    day: str
    at_us: int


class KeyUsage:
    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    async def page(self, key: Key) -> bytes:
        """The page of one key, as JSON. Raises Refused if the store does not answer in time."""
        day = day_of(now_us())
        spending = await self._reader.read(f"usage {day} {key.id}", lambda store: _spending(store, key.id, day))
        return msgspec.json.encode(describe_usage(key, spending.rows, spending.day, spending.at_us))


def _spending(store: Store, key_id: str, day: str) -> Spending:
    at_us = now_us()
    return Spending(store.spent(key_id, days_until(day)), day, at_us)


def days_until(day: str) -> Sequence[str]:
    """The days of its month until this one."""
    return [f"{month_of(day)}-{number:02d}" for number in range(1, int(day[-2:]) + 1)]


def describe_usage(key: Key, rows: list[SpentRow], day: str, at_us: int) -> dict[str, Any]:
    """The object of `GET /v1/usage`: money in micro-units. None stands for no limit, and for all models and tiers."""
    today = [row for row in rows if row.day == day]
    express = (key.fast_requests_pm, key.fast_input_tpm, key.fast_output_tpm)
    return {
        "object": "usage",
        "key": key.id,
        "as_of": at_us // 1_000_000,
        "today": {"period": day, **_sums(today), **_budget(key.budget_day, today)},
        "month": {"period": month_of(day), **_sums(rows), **_budget(key.budget_month, rows)},
        "limits": [
            _limits(OTHER, (key.requests_pm, key.input_tpm, key.output_tpm)),
            _limits(EXPRESS, express),
        ],
        "models": key.models,
        "tiers": key.tiers,
    }


def _sums(rows: list[SpentRow]) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[SpentRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.tier), []).append(row)
    parts = [{"model": model, "tier": tier, **_sum(groups[model, tier])} for model, tier in sorted(groups)]
    return {**_sum(rows), "by_model": parts}


def _sum(rows: list[SpentRow]) -> dict[str, int]:
    return {
        "calls": sum(row.calls for row in rows),
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
        "cached_tokens": sum(row.cached_tokens for row in rows),
        "output_tokens": sum(row.output_tokens for row in rows),
        "spent_micro": sum(row.amount for row in rows),
    }


def _budget(budget: int | None, rows: list[SpentRow]) -> dict[str, int | None]:
    left = max(0, budget - sum(row.amount for row in rows)) if budget is not None else None
    return {"budget_micro": budget, "left_micro": left}


def _limits(tiers: tuple[str, ...], per_minute: tuple[int | None, int | None, int | None]) -> dict[str, Any]:
    names = ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute")
    return {"tiers": tiers, **dict(zip(names, per_minute, strict=True))}
