"""Budgets: never overrun, whatever happens between a gateway and the store."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from datetime import UTC, datetime

import pytest

from headway.ledger.budget import IDLE_S, Budgets
from headway.ledger.entries import day_of, month_of, seconds_left
from headway.ledger.keys import Key
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import Lease, Store, StoreUnavailable

pytestmark = pytest.mark.anyio
DAY, MONTH = "2026-11-15", "2026-11"


class Gateways:
    """Some gateways on one store; `answers_lost` is how often an answer of the store does not arrive."""

    def __init__(self, store: Store, count: int, answers_lost: float = 0.0) -> None:
        self.store = store
        self.now = 0.0
        self.random = random.Random(7)
        self.answers_lost = answers_lost
        self.all = [self._make(f"gw{number}/1") for number in range(count)]

    def _make(self, name: str) -> Budgets:
        async def ask(lease: Lease, budget: int) -> int:
            await asyncio.sleep(0)
            if self.random.random() < self.answers_lost:
                raise StoreUnavailable
            given = self.store.lease(lease, budget, 0)
            if self.random.random() < self.answers_lost:
                raise StoreUnavailable
            return given

        def give_back(slice_id: str, key: str, period: str, amount: int) -> None:
            self.store.give_back(slice_id, key, period, name, amount, 0)

        return Budgets(name, ask, give_back, lambda: self.now)


async def test_as_many_calls_as_there_is_money_for(store: Store) -> None:
    gateways = Gateways(store, 4)
    key = Key(id="k", hash="h", budget_day=250 * 10)
    calls = [gateways.all[number % 4].reserve(key, DAY, 10) for number in range(500)]
    assert Counter(await asyncio.gather(*calls)) == {None: 250, DAY: 250}


async def test_what_was_not_used_comes_back_and_idle_slices_go_to_others(store: Store) -> None:
    gateways = Gateways(store, 2)
    first, second = gateways.all
    key = Key(id="k", hash="h", budget_day=1_000, budget_month=5_000)
    assert await first.reserve(key, DAY, 900) is None
    assert await second.reserve(key, DAY, 200) == DAY
    first.settle(key, DAY, 900, 300)
    assert await second.reserve(key, DAY, 200) == DAY  # it lies with the first, who may need it
    gateways.now += IDLE_S + 1
    first.give_back_idle()
    assert await second.reserve(key, DAY, 700) is None
    assert await second.reserve(key, DAY, 1) == DAY
    assert await second.reserve(key, "2026-11-16", 700) is None  # another day, the same month


async def test_an_idle_slice_goes_to_others_after_an_answer_was_lost(store: Store) -> None:
    """As when a client leaves while its call waits for the store."""
    gateways = Gateways(store, 2)
    first, second = gateways.all
    key = Key(id="k", hash="h", budget_day=1_000)
    assert await first.reserve(key, DAY, 300) is None
    first.settle(key, DAY, 300, 0)
    gateways.answers_lost = 1.0
    with pytest.raises(StoreUnavailable):
        await first.reserve(key, DAY, 400)
    gateways.answers_lost = 0.0
    gateways.now += IDLE_S + 1
    first.give_back_idle()
    assert await second.reserve(key, DAY, 1_000) is None
    second.settle(key, DAY, 1_000, 600)
    gateways.now += IDLE_S + 1
    second.give_back_idle()
    assert await first.reserve(key, DAY, 401) == DAY
    assert await first.reserve(key, DAY, 400) is None


async def test_a_month_that_is_used_up_takes_nothing_of_the_day(store: Store) -> None:
    [gateway] = Gateways(store, 1).all
    key = Key(id="k", hash="h", budget_day=1_000, budget_month=100)
    assert await gateway.reserve(key, DAY, 200) == MONTH
    assert await gateway.reserve(Key(id="k", hash="h", budget_day=1_000), DAY, 1_000) is None


async def test_a_day_that_is_used_up_takes_nothing_of_the_month(store: Store) -> None:
    [gateway] = Gateways(store, 1).all
    assert await gateway.reserve(Key(id="k", hash="h", budget_day=100, budget_month=1_000), DAY, 200) == DAY
    assert await gateway.reserve(Key(id="k", hash="h", budget_month=1_000), DAY, 1_000) is None


async def test_of_a_day_and_a_month_that_are_used_up_the_month_is_named(store: Store) -> None:
    [gateway] = Gateways(store, 1).all
    assert await gateway.reserve(Key(id="k", hash="h", budget_day=100, budget_month=100), DAY, 200) == MONTH


@pytest.mark.parametrize("seed", range(20))
async def test_no_overrun_when_answers_of_the_store_are_lost(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    store = SQLiteStore(tmp_path_factory.mktemp("budget") / "books.db")
    store.migrate()
    gateways = Gateways(store, 3, answers_lost=0.3)
    gateways.random = chance = random.Random(seed)
    key = Key(id="k", hash="h", budget_day=10_000)
    aboard: list[tuple[Budgets, int]] = []
    spent = 0
    for _ in range(300):
        gateways.now += chance.expovariate(1.0)
        gateway, amount = chance.choice(gateways.all), chance.randint(1, 400)
        if chance.random() < 0.5 and aboard:
            gateway, amount = aboard.pop(chance.randrange(len(aboard)))
            used = chance.randint(0, amount)
            gateway.settle(key, DAY, amount, used)
            spent += used
        else:
            try:
                if await gateway.reserve(key, DAY, amount) is None:
                    aboard.append((gateway, amount))
            except StoreUnavailable:
                pass
        gateway.give_back_idle()
        held = sum(amount for _, amount in aboard)
        out = sum(amount for *_, amount in store.slices())
        assert spent + held <= out <= 10_000
    store.close()


@pytest.mark.parametrize("before_us", [1, 1_000_000, 1_000_001, 86_400_000_000], ids=str)
@pytest.mark.parametrize(
    ("period", "next_day"),
    [
        (DAY, "2026-11-16"),
        ("2026-11-30", "2026-12-01"),
        ("2026-12-31", "2027-01-01"),
        (MONTH, "2026-12-01"),
        ("2026-12", "2027-01-01"),
        ("2027-02", "2027-03-01"),
        ("2028-02", "2028-03-01"),
    ],
)
def test_who_is_told_to_wait_for_the_next_period_is_there_when_it_begins(
    period: str, next_day: str, before_us: int
) -> None:
    end_us = int(datetime.fromisoformat(next_day).replace(tzinfo=UTC).timestamp()) * 1_000_000
    seconds = seconds_left(period, end_us - before_us)
    assert seconds == math.ceil(before_us / 1_000_000)
    assert day_of(end_us - before_us + seconds * 1_000_000) == next_day
    assert period in {day_of(end_us - before_us), month_of(day_of(end_us - before_us))}


def test_the_rest_of_a_month() -> None:
    noon_us = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * 1_000_000
    assert seconds_left(MONTH, noon_us) == 15 * 86_400 + 43_200
    assert seconds_left(DAY, noon_us) == 43_200
    assert seconds_left("2026-11-14", noon_us) == 1  # it ended while the store was asked
