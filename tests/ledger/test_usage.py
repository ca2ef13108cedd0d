"""What a key is told about its spending: its own, exact, seldom read, and never in the way of calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.errors import Refused
from headway.ledger import reading
from headway.ledger import usage as usage_module
from headway.ledger.entries import Entry, day_of, now_us
from headway.ledger.keys import Key
from headway.ledger.reading import StoreReader
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import SpentRow, Store, StoreUnavailable
from headway.ledger.usage import KeyUsage, describe_usage
from tests.ledger.test_store import whole_call

KEY = Key(id="k", hash="h", budget_day=1_000, budget_month=100, requests_pm=60, fast_output_tpm=9, models=["m"])
DAY = "2026-11-15"


def call(call_id: str, **values: Any) -> list[Entry]:
    return [msgspec.structs.replace(entry, **values) for entry in whole_call(call_id)]


def test_a_store_adds_up_what_one_key_spent_by_day_model_and_tier(store: Store) -> None:
    store.insert(whole_call("c1"))
    store.insert(whole_call("c2"))
    store.insert(call("c3", model="n", tier="standard"))
    store.insert(call("c4", day="2026-11-14"))
    store.insert(call("c5", day="2026-10-31"))
    store.insert(call("c6", key="other"))
    rows = sorted(store.spent("k", ["2026-11-14", DAY]), key=lambda row: (row.day, row.model))
    assert rows == [
        SpentRow("2026-11-14", "m", "fast", 1, 100, 10, 100, 300),
        SpentRow(DAY, "m", "fast", 2, 200, 20, 200, 600),
        SpentRow(DAY, "n", "standard", 1, 100, 10, 100, 300),
    ]
    assert store.spent("nobody", [DAY]) == []


def test_a_store_adds_up_what_a_day_brought_by_tier_and_by_key(store: Store) -> None:
    store.insert(whole_call("c1"))
    store.insert(call("c2", key="other"))
    store.insert(call("c3", tier="standard", key="other"))
    store.insert(call("c4", day="2026-11-14"))
    [fast, standard] = sorted(store.earned(DAY), key=lambda row: row.tier)
    assert (fast.model, fast.tier, fast.calls, fast.prompt_tokens, fast.output_tokens) == ("m", "fast", 2, 200, 200)
    [one] = [row for row in store.spent("k", [DAY]) if row.tier == "fast"]
    assert fast.served + fast.refunded == 2 * one.amount
    assert fast.served > 0 >= fast.refunded
    assert standard.calls == 1
    assert sorted(store.spent_by_key(DAY)) == [("k", 1, one.amount), ("other", 2, 2 * one.amount)]
    assert store.earned("2026-11-13") == []


def test_an_index_finds_the_days_of_one_key(tmp_path: Path) -> None:
    """A range of days would go through the entries of all keys."""
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    asked: list[str] = []
    store._db.set_trace_callback(asked.append)
    store.spent("k", ["2026-11-14", DAY])
    store._db.set_trace_callback(None)
    [sql] = [sql for sql in asked if sql.startswith("SELECT")]
    plan = " ".join(str(row[-1]) for row in store.rows(f"EXPLAIN QUERY PLAN {sql}", ()))
    assert "entries_by_day (day=? AND key=?)" in plan
    store.close()


def test_the_page_says_what_was_spent_and_what_is_left() -> None:
    rows = [
        SpentRow(DAY, "m", "fast", 2, 200, 20, 200, 600),
        SpentRow(DAY, "m", "standard", 1, 10, 0, 5, 40),
        SpentRow("2026-11-14", "m", "fast", 1, 100, 10, 100, 300),
    ]
    page = describe_usage(KEY, rows, DAY, 7_000_000)
    sums = {"calls": 3, "prompt_tokens": 210, "cached_tokens": 20, "output_tokens": 205, "spent_micro": 640}
    by_model = page["today"].pop("by_model")
    assert page["today"] == {"period": DAY, **sums, "budget_micro": 1_000, "left_micro": 360}
    assert [(part["tier"], part["spent_micro"]) for part in by_model] == [("fast", 600), ("standard", 40)]
    assert page["month"]["spent_micro"] == 940
    assert [part["spent_micro"] for part in page["month"]["by_model"]] == [900, 40]
    assert page["month"]["left_micro"] == 0  # never negative
    other, express = page["limits"]
    assert (other["requests_per_minute"], other["output_tokens_per_minute"]) == (60, None)
    assert (express["tiers"], express["output_tokens_per_minute"]) == (("ultrafast", "fast"), 9)
    assert (page["key"], page["as_of"], page["models"], page["tiers"]) == ("k", 7, ["m"], None)
    unlimited = describe_usage(Key(id="key-0", hash="h"), [], DAY, 0)
    assert (unlimited["today"]["budget_micro"], unlimited["today"]["left_micro"]) == (None, None)


class Shelf(Store):
    """A store that only says what was spent, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error: Exception | None = None
        self.closed = 0

    def spent(self, key: str, days: Any) -> list[SpentRow]:
        self.asked.append(key)
        self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return [SpentRow(days[-1], "m", "fast", 1, 2, 0, 3, len(self.asked))]

    def close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def reader(shelf: Shelf, is_unavailable: Callable[[], bool] = lambda: False) -> AsyncIterator[KeyUsage]:
    store_reader = StoreReader(lambda: shelf, is_unavailable)
    yield KeyUsage(store_reader)
    shelf.may_answer.set()
    store_reader.stop()


async def spent(usage: KeyUsage, key: Key = KEY) -> int:
    return int(msgspec.json.decode(await usage.page(key))["today"]["spent_micro"])


@pytest.mark.anyio
async def test_polling_asks_the_store_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    async with reader(shelf) as usage:
        assert await asyncio.gather(*[spent(usage) for _ in range(50)]) == [1] * 50
        assert [await spent(usage) for _ in range(50)] == [1] * 50
        assert shelf.asked == ["k"]
        assert await spent(usage, Key(id="other", hash="h2")) == 2
        monkeypatch.setattr(reading, "KEPT_S", 0.0)
        monkeypatch.setattr(reading, "MAX_SHARE", float("inf"))
        usage._reader._kept.clear()
        assert [await spent(usage), await spent(usage)] == [3, 4]


@pytest.mark.anyio
async def test_what_took_long_to_read_is_kept_for_longer() -> None:
    shelf = Shelf()
    shelf.may_answer.clear()
    async with reader(shelf) as usage:
        asyncio.get_running_loop().call_later(0.3, shelf.may_answer.set)
        began = asyncio.get_running_loop().time()
        await spent(usage)
        until, _ = usage._reader._kept[f"usage {day_of(now_us())} k"]
        assert until - began > 0.25 / reading.MAX_SHARE > reading.KEPT_S - 0.1


@pytest.mark.anyio
async def test_a_new_day_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    async with reader(shelf) as usage:
        await spent(usage)
        monkeypatch.setattr(usage_module, "day_of", lambda _: "2031-01-01")
        page = msgspec.json.decode(await usage.page(KEY))
        assert (page["today"]["period"], page["month"]["period"]) == ("2031-01-01", "2031-01")


@pytest.mark.anyio
async def test_a_store_that_fails_or_does_not_answer_is_a_503_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf()
    shelf.error = StoreUnavailable("gone")
    async with reader(shelf) as usage:
        for _ in range(10):
            with pytest.raises(Refused) as refused:
                await usage.page(KEY)
            assert (refused.value.status, refused.value.reason) == (503, "books_away")
        assert (shelf.asked, shelf.closed) == (["k"], 1)
        shelf.error = None
        shelf.may_answer.clear()
        usage._reader._kept.clear()
        monkeypatch.setattr(reading, "ANSWER_S", 0.02)
        for _ in range(3):
            with pytest.raises(Refused):
                await usage.page(KEY)
        assert len(usage._reader._reading) == 1, "those who wait share one read"
        monkeypatch.setattr(reading, "MAX_READING", 1)
        with pytest.raises(Refused):
            await usage.page(Key(id="other", hash="h2"))
        assert len(usage._reader._reading) == 1
        monkeypatch.setattr(reading, "ANSWER_S", 10.0)
        shelf.may_answer.set()
        assert await spent(usage) == 2
    shelf = Shelf()
    async with reader(shelf, lambda: True) as usage:
        with pytest.raises(Refused):
            await usage.page(KEY)
    assert shelf.asked == []
