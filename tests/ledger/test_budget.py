"""Budgets: never overrun, whatever happens between a gateway and the store."""

from __future__ import annotations

import asyncio
import random

import pytest

from headway.ledger.budget import IDLE_S, Budgets
from headway.ledger.entries import DAY_US, day_of, seconds_left_of_day
from headway.ledger.keys import Key
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import Lease, Store, StoreUnavailable

pytestmark = pytest.mark.anyio
DAY = "2026-11-15"


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
    assert sum(await asyncio.gather(*calls)) == 250


async def test_what_was_not_used_comes_back_and_idle_slices_go_to_others(store: Store) -> None:
    gateways = Gateways(store, 2)
    first, second = gateways.all
    key = Key(id="k", hash="h", budget_day=1_000, budget_month=5_000)
    assert await first.reserve(key, DAY, 900)
    assert not await second.reserve(key, DAY, 200)
    first.settle(key, DAY, 900, 300)
    assert not await second.reserve(key, DAY, 200)  # it lies with the first, who may need it
    gateways.now += IDLE_S + 1
    first.give_back_idle()
    assert await second.reserve(key, DAY, 700)
    assert not await second.reserve(key, DAY, 1)
    assert await second.reserve(key, "2026-11-16", 700)  # another day, the same month


async def test_a_month_that_is_used_up_takes_nothing_of_the_day(store: Store) -> None:
    [gateway] = Gateways(store, 1).all
    key = Key(id="k", hash="h", budget_day=1_000, budget_month=100)
    assert not await gateway.reserve(key, DAY, 200)
    assert await gateway.reserve(Key(id="k", hash="h", budget_day=1_000), DAY, 1_000)


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
                if await gateway.reserve(key, DAY, amount):
                    aboard.append((gateway, amount))
            except StoreUnavailable:
                pass
        gateway.give_back_idle()
        held = sum(amount for _, amount in aboard)
        out = sum(amount for *_, amount in store.slices())
        assert spent + held <= out <= 10_000
    store.close()


@pytest.mark.parametrize(
    ("before_midnight_us", "seconds"), [(1, 1), (1_000_000, 1), (1_000_001, 2), (DAY_US, 86_400)], ids=str
)
def test_who_is_told_to_wait_for_the_next_day_is_there_when_it_begins(before_midnight_us: int, seconds: int) -> None:
    at_us = 20_000 * DAY_US - before_midnight_us
    assert seconds_left_of_day(at_us) == seconds
    assert day_of(at_us) != day_of(at_us + seconds * 1_000_000)
