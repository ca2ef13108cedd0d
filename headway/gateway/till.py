"""The till: what a call costs, from the gateway's side. Opens an account before a call is let in, notes each engine it
is sent to, and writes what it cost before its last event goes out. Without books it does nothing.
"""

from __future__ import annotations

from headway.core.types import Tier
from headway.ledger.books import Account, Books
from headway.price import Bill, Price
from headway.wire import Request, Served

Prices = dict[str, dict[Tier, Price]]  # by model

# A prompt has at most as many tokens as its request has bytes, and what a chat template may add.
TEMPLATE_TOKENS = 256


class Till:
    def __init__(self, books: Books | None = None, prices: Prices | None = None) -> None:
        self.books = books
        self._prices = prices or {}

    async def open(self, request: Request) -> Account | None:
        """Is there money for the worst case, and room in the books? Raises Refused if not."""
        call = request.call
        if self.books is None or request.max_output_tokens == 0:
            return None
        output_tokens = request.choices * (request.max_output_tokens or 0)
        worst = self._prices[call.model][call.tier].amount(len(request.body) + TEMPLATE_TOKENS, output_tokens)
        return await self.books.open(call, worst)

    def price(self, model: str, tier: Tier) -> Price | None:
        return self._prices[model][tier] if self.books is not None else None

    def boards(self, account: Account | None, request: Request, replica: str) -> None:
        if account is None:
            return
        served = request.meter.served
        # A whole answer that is never delivered is not billed: what is seen of it before its end does not count.
        usage = request.meter.usage if request.streaming else lambda: (0, 0)
        auto = served.rung.auto if served.rung is not None else ""
        account.boards(replica, served.tier, self._prices[request.call.model][served.tier], usage, auto)

    async def write(self, account: Account | None, request: Request) -> None:
        """The answer is here in full: what it cost is on the disk when this returns."""
        if account is not None:
            self.close(account, request, "finished", is_delivered=True)
            await account.durable()

    def close(self, account: Account | None, request: Request, outcome: str, *, is_delivered: bool) -> None:
        """The call is over; after `write` there is nothing left to do."""
        if account is None or account.is_over:
            return
        served = request.meter.served
        usage = request.meter.usage() if is_delivered else (0, 0)
        due = _due(served, usage, request.meter.speed_tps()) if is_delivered else Bill(0)
        seat_us = served.seat_us() if served.seat_us is not None else 0
        account.close(outcome, usage, due, seat_us, _all_full(served, usage))


def _due(served: Served, usage: tuple[int, int], speed_tps: float | None) -> Bill:
    """What the answer has said it costs, where it has said so."""
    return served.billed if served.billed is not None else served.bill(*usage, speed_tps)


def _all_full(served: Served, usage: tuple[int, int]) -> int:
    """What the full model alone would have cost, as far as this rung can tell; see ledger/entries.py."""
    rung = served.rung
    if rung is None or rung.full_price is None:
        return 0
    return rung.full_price.amount(*usage) - rung.earlier_all_full
