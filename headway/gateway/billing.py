"""What a call costs, from the gateway's side: makes its receipt, and tells the books.

Opens an account before a call is let in, notes each boarding, and writes what the call cost before its last event goes
out. Without books nothing is billed.
"""

from __future__ import annotations

from headway.core.types import MIN_TOKENS_FOR_PROMISE, Tier
from headway.ledger.books import Account, Books
from headway.price import Bill, Price, bill
from headway.wire import Grant, Meter, Outcome, Receipt, Request, Usage

Prices = dict[str, dict[Tier, Price]]  # by model

# A prompt has at most as many tokens as its request has bytes, and what a chat template may add.
TEMPLATE_TOKENS = 256


class Billing:
    def __init__(self, books: Books | None = None, prices: Prices | None = None) -> None:
        self.books = books
        self._prices = prices or {}

    async def open(self, request: Request) -> Account | None:
        """Reserve the most the call can cost. Raises Refused if the budget or the books have no room for it."""
        call = request.call
        if self.books is None or request.max_output_tokens == 0:
            return None
        output_tokens = call.choices * (request.max_output_tokens or 0)
        worst = self._prices[call.model][call.tier].amount(len(request.body) + TEMPLATE_TOKENS, output_tokens)
        return await self.books.open(call, worst)

    def price(self, model: str, tier: Tier) -> Price | None:
        return self._prices[model][tier] if self.books is not None else None

    def boards(self, account: Account | None, grant: Grant, meter: Meter | None) -> None:
        """The call is sent to an engine. `meter` counts what is delivered while it runs; None for a whole answer, of
        which nothing is delivered before its end."""
        if account is not None:
            account.boards(grant, meter)

    async def write(self, account: Account | None, receipt: Receipt) -> None:
        """The answer is here in full: what it cost is on the disk when this returns."""
        if account is not None:
            account.close(receipt)
            await account.durable()

    def close(self, account: Account | None, receipt: Receipt) -> None:
        """The call is over; does nothing after `write`."""
        if account is not None and not account.is_over:
            account.close(receipt)


def make_receipt(
    grant: Grant,
    outcome: Outcome,
    meter: Meter,
    *,
    is_delivered: bool,
    reader_was_slow: bool,
    seat_us: int | None,
    answer_s: float,
    boardings: int,
) -> Receipt:
    """What is not delivered is not billed."""
    usage, speed_tps = meter.usage() if is_delivered else Usage(), meter.speed_tps()
    kept = _kept(grant, usage, speed_tps, reader_was_slow=reader_was_slow)
    due = Bill(0)
    if grant.price is not None and is_delivered:
        due = bill(grant.price, usage.prompt_tokens, usage.output_tokens, is_missed=kept is False)
    return Receipt(grant, outcome, usage, speed_tps, kept, due, seat_us, answer_s, boardings, reader_was_slow)


def _kept(grant: Grant, usage: Usage, speed_tps: float | None, *, reader_was_slow: bool) -> bool | None:
    """Was the floor kept? None if there is no floor, if the answer is too short for its speed to mean anything, if the
    speed could not be measured, or if the client held the stream up."""
    if not grant.floor_tps or max(usage.outputs) < MIN_TOKENS_FOR_PROMISE or speed_tps is None:
        return None
    return True if speed_tps >= grant.floor_tps else None if reader_was_slow else False
