"""What a key has spent today and this month, for `GET /v1/usage`.

    api/app.py ──► KeyUsage ──► one thread of its own ──► Store

Reads never wait for the thread that ships entries and leases budgets, and that thread never waits for them. What was
read is kept for a few seconds, and for longer if reading took long, so that a client that polls costs the store little.
A figure lags behind the calls by that time, and by the time that entries wait in the spool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from headway.core.types import EXPRESS, TIERS
from headway.errors import Refused, SetupError
from headway.ledger.entries import day_of, month_of, now_us
from headway.ledger.keys import Key
from headway.ledger.store import SpentRow, Store, StoreRefused, StoreUnavailable

log = logging.getLogger("headway.ledger")

KEPT_S = 5.0
FAILURE_KEPT_S = 1.0
MAX_SHARE = 0.05  # of the time may go into reading for one key
ANSWER_S = 5.0  # how long a client waits for the store
MAX_READING = 64  # keys that wait for the thread
MAX_KEPT = 4_096  # keys
RETRY_AFTER_S = 5
OTHER = tuple(tier for tier in TIERS if tier not in EXPRESS)


@dataclass(frozen=True, slots=True)
class Spending:
    """What the store had of one key, in the month of `day` until then."""

    rows: list[SpentRow] | None  # None if the store failed
    day: str
    at_us: int
    took_s: float


class KeyUsage:
    def __init__(self, open_store: Callable[[], Store], is_unavailable: Callable[[], bool]) -> None:
        self._open_store = open_store
        self._is_unavailable = is_unavailable
        self._store: Store | None = None  # used in the thread only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._kept: OrderedDict[str, tuple[float, Spending]] = OrderedDict()  # by key: until when, and what
        self._reading: dict[str, asyncio.Future[Spending]] = {}

    async def page(self, key: Key) -> bytes:
        """The page of one key, as JSON. Raises Refused if the store does not answer in time."""
        spending = await self._spending(key.id)
        if spending.rows is None:
            raise Refused("books_away", RETRY_AFTER_S)
        return msgspec.json.encode(describe_usage(key, spending.rows, spending.day, spending.at_us))

    async def _spending(self, key_id: str) -> Spending:
        until, kept = self._kept.get(key_id, (0.0, None))
        if kept is not None and time.monotonic() < until and kept.day == day_of(now_us()):
            return kept
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._begin_reading(key_id))  # others may wait for the same
        except TimeoutError:
            raise Refused("books_away", RETRY_AFTER_S) from None

    def _begin_reading(self, key_id: str) -> asyncio.Future[Spending]:
        if (reading := self._reading.get(key_id)) is not None:
            return reading
        if self._is_unavailable() or len(self._reading) >= MAX_READING:
            raise Refused("books_away", RETRY_AFTER_S)
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read, key_id, day_of(now_us()))
        self._reading[key_id] = reading
        reading.add_done_callback(partial(self._end_reading, key_id))
        return reading

    def _end_reading(self, key_id: str, reading: asyncio.Future[Spending]) -> None:
        del self._reading[key_id]
        if reading.cancelled():
            return
        spending = reading.result()
        kept_s = KEPT_S if spending.rows is not None else FAILURE_KEPT_S
        self._kept[key_id] = (time.monotonic() + max(kept_s, spending.took_s / MAX_SHARE), spending)
        self._kept.move_to_end(key_id)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def stop(self) -> None:
        for reading in self._reading.values():
            reading.cancel()
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    # --- in the thread ---

    def _read(self, key_id: str, day: str) -> Spending:
        began, at_us = time.monotonic(), now_us()
        rows: list[SpentRow] | None = None
        try:
            self._store = self._store or self._open_store()
            days = [f"{month_of(day)}-{number:02d}" for number in range(1, int(day[-2:]) + 1)]
            rows = self._store.spent(key_id, days)
        except (StoreUnavailable, StoreRefused, SetupError) as error:
            log.warning("cannot read what a key has spent: %s", str(error).strip())
            self._close()
        return Spending(rows, day, at_us, time.monotonic() - began)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = None


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
