"""Budgets: no key spends more than its budget, however many gateways serve it, and few calls wait for the store.

A gateway leases slices of a budget and spends only what it has leased, so

    spent by all gateways  <=  slices leased  <=  budget

holds without a shared count of what was spent. The maximum cost of a call is taken from the slice before the call is
sent to an engine; what it did not use returns when it ends. Idle slices are given back. Only a call that finds its
slice used up waits for the store.

A budget covers a day or a month in UTC, and a call counts in the period in which it was reserved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from headway.ledger.entries import day_of, month_of, now_us
from headway.ledger.keys import Key
from headway.ledger.store import Lease, StoreUnavailable

log = logging.getLogger("headway.ledger")

SLICE_CALLS = 64  # size of a slice, in calls like the one that needs it
IDLE_S = 2.0
LACKED_S = 5.0  # how long the store is not asked again for as much as it had not

AskStore = Callable[[Lease, int], Awaitable[int]]
GiveBack = Callable[[str, str, str, int], None]


@dataclass(slots=True)
class LocalBudget:
    """What this gateway has leased of one budget."""

    key: str
    period: str
    free: int = 0
    reserved: int = 0
    used_at: float = 0.0
    asked: Lease | None = None  # a request whose answer was lost: it must be repeated unchanged
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Budgets:
    """`ask` and `give_back` reach the store; `ask` passes on StoreUnavailable."""

    def __init__(self, gateway: str, ask: AskStore, give_back: GiveBack, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._ask = ask
        self._give_back = give_back
        self._clock = clock
        self._local: dict[tuple[str, str], LocalBudget] = {}
        self._numbers = count(1)

    async def reserve(self, key: Key, day: str, amount: int) -> str | None:
        """Take the maximum cost of a call out of its key's budgets. Returns the period whose budget has too little
        left, the longer one if both have; None if the cost is reserved."""
        taken: list[LocalBudget] = []
        try:
            for period, budget in _budgets(key, day):
                local = self._local.setdefault((key.id, period), LocalBudget(key.id, period))
                if not await self._fill(local, budget, amount):
                    return period
                local.free -= amount
                local.reserved += amount
                local.used_at = self._clock()
                taken.append(local)
            taken.clear()
            return None
        finally:
            for local in taken:
                _put_back(local, amount, 0)

    def settle(self, key: Key, day: str, reserved: int, spent: int) -> None:
        """Return what a call that has ended did not spend."""
        for period, _ in _budgets(key, day):
            if (local := self._local.get((key.id, period))) is not None:
                _put_back(local, reserved, spent)
                local.used_at = self._clock()

    async def _fill(self, local: LocalBudget, budget: int, amount: int) -> bool:
        if local.free >= amount:
            return True
        async with local.lock:
            while local.free < amount:
                if local.asked is None:
                    slice_id = f"{self._gateway}:{local.key}:{local.period}:{next(self._numbers)}"
                    need = amount - local.free
                    local.asked = Lease(slice_id, local.key, local.period, self._gateway, need, SLICE_CALLS * amount)
                given = await self._ask(local.asked, budget)
                is_enough = given >= local.asked.need
                local.asked = None
                local.free += given
                if not is_enough:
                    return False
        return True

    def give_back_idle(self) -> None:
        """Give back what was not used for IDLE_S, so that other gateways can lease it."""
        now = self._clock()
        for place, local in list(self._local.items()):
            if now - local.used_at < IDLE_S or local.lock.locked():
                continue
            if local.free:
                slice_id = f"{self._gateway}:{local.key}:{local.period}:{next(self._numbers)}"
                amount, local.free = local.free, 0
                self._give_back(slice_id, local.key, local.period, amount)
            elif not local.reserved and local.asked is None:
                del self._local[place]


def _budgets(key: Key, day: str) -> list[tuple[str, int]]:
    """The budgets by period, the longest first."""
    budgets = ((month_of(day), key.budget_month), (day, key.budget_day))
    return [(period, budget) for period, budget in budgets if budget is not None]


def _put_back(local: LocalBudget, reserved: int, spent: int) -> None:
    local.reserved -= reserved
    local.free += reserved - spent


class HostedBudget:
    """What may be spent on a day at a server of somebody else, by all gateways together. In the store it is a budget
    like that of a key, under the server's URL."""

    def __init__(self, budgets: Budgets, url: str, per_day: int, clock: Callable[[], float]) -> None:
        self._budgets = budgets
        self._key = Key(id=url, hash="", budget_day=per_day)
        self._clock = clock
        self._lacked = (-LACKED_S, 0)  # when the store last had too little left, and for how much

    async def reserve(self, amount: int) -> Callable[[int], None] | None:
        """Take the most that a call may cost. Returns what to call once with what it did cost; None if less is left, or
        if the store cannot say."""
        lacked_at, lacked = self._lacked
        if self._clock() - lacked_at < LACKED_S and amount >= lacked:
            return None
        day = day_of(now_us())
        try:
            is_lacking = await self._budgets.reserve(self._key, day, amount) is not None
        except StoreUnavailable:
            return None
        if is_lacking:
            self._lacked = (self._clock(), amount)
            log.warning("the budget for %s of %s has too little left for a call", self._key.id, day)
            return None
        return lambda spent: self._budgets.settle(self._key, day, amount, spent)
