"""Budgets: no key spends more than it may, however many gateways serve it, and no call waits for the store.

A gateway leases a slice of a budget and spends from that. What it has leased is the most it can spend, so

    spent by all gateways  <=  slices out  <=  budget

holds without anyone adding up what was spent. The worst case of a call is taken out of the slice before it is sent to
an engine; what it did not use comes back when it ends. A slice that nobody draws on is given back. Only a slice that is
used up asks the store.

A budget is for a day or a month in UTC, and a call belongs to the one in which it was reserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from headway.ledger.entries import month_of
from headway.ledger.keys import Key
from headway.ledger.store import Lease

SLICE_CALLS = 64  # a slice is for about so many calls like the one that needs it
IDLE_S = 2.0

AskStore = Callable[[Lease, int], Awaitable[int]]
GiveBack = Callable[[str, str, str, int], None]


@dataclass(slots=True)
class Purse:
    """What this gateway has of one budget."""

    key: str
    period: str
    free: int = 0
    reserved: int = 0
    used_at: float = 0.0
    asked: Lease | None = None  # a question to the store whose answer was lost: it must be asked again as it was
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Budgets:
    """`ask` and `give_back` reach the store; `ask` raises what the store does when it is away."""

    def __init__(self, gateway: str, ask: AskStore, give_back: GiveBack, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._ask = ask
        self._give_back = give_back
        self._clock = clock
        self._purses: dict[tuple[str, str], Purse] = {}
        self._numbers = count(1)

    async def reserve(self, key: Key, day: str, amount: int) -> bool:
        """Take the worst case of a call out of its key's budgets; False if there is not that much."""
        taken: list[Purse] = []
        try:
            for period, budget in _budgets(key, day):
                purse = self._purses.setdefault((key.id, period), Purse(key.id, period))
                if not await self._fill(purse, budget, amount):
                    break
                purse.free -= amount
                purse.reserved += amount
                purse.used_at = self._clock()
                taken.append(purse)
            else:
                taken.clear()
                return True
        finally:
            for purse in taken:
                _put_back(purse, amount, 0)
        return False

    def settle(self, key: Key, day: str, reserved: int, spent: int) -> None:
        """The call is over."""
        for period, _ in _budgets(key, day):
            if (purse := self._purses.get((key.id, period))) is not None:
                _put_back(purse, reserved, spent)
                purse.used_at = self._clock()

    async def _fill(self, purse: Purse, budget: int, amount: int) -> bool:
        if purse.free >= amount:
            return True
        async with purse.lock:
            while purse.free < amount:
                if purse.asked is None:
                    slice_id = f"{self._gateway}:{purse.key}:{purse.period}:{next(self._numbers)}"
                    need = amount - purse.free
                    purse.asked = Lease(slice_id, purse.key, purse.period, self._gateway, need, SLICE_CALLS * amount)
                given = await self._ask(purse.asked, budget)
                is_enough = given >= purse.asked.need
                purse.asked = None
                purse.free += given
                if not is_enough:
                    return False
        return True

    def give_back_idle(self) -> None:
        """What has not been drawn on for a while goes back, to where other gateways can have it."""
        now = self._clock()
        for place, purse in list(self._purses.items()):
            if now - purse.used_at < IDLE_S or purse.lock.locked() or purse.asked is not None:
                continue
            if purse.free:
                slice_id = f"{self._gateway}:{purse.key}:{purse.period}:{next(self._numbers)}"
                amount, purse.free = purse.free, 0
                self._give_back(slice_id, purse.key, purse.period, amount)
            elif not purse.reserved:
                del self._purses[place]


def _budgets(key: Key, day: str) -> list[tuple[str, int]]:
    budgets = ((day, key.budget_day), (month_of(day), key.budget_month))
    return [(period, budget) for period, budget in budgets if budget is not None]


def _put_back(purse: Purse, reserved: int, spent: int) -> None:
    purse.reserved -= reserved
    purse.free += reserved - spent
