"""Billing of a call: makes its receipt and writes its cost to the ledger (ledger/books.py).

Opens an account before a call is accepted, records each boarding, and writes the cost before the last event goes out.
Without a ledger nothing is billed.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.types import MIN_TOKENS_FOR_PROMISE, Tier
from headway.gateway.metrics import Metrics
from headway.ledger.books import Account, Books
from headway.price import Bill, HostedPrice, Price, bill
from headway.wire import Grant, Meter, Outcome, Receipt, Request, Usage

Prices = dict[str, dict[Tier, Price]]  # by model


class Billing:
    def __init__(
        self, books: Books | None = None, prices: Prices | None = None, hosted: Mapping[str, HostedPrice] | None = None
    ) -> None:
        self.books = books
        self._prices: Prices = {}
        self._hosted: dict[str, HostedPrice] = {}  # by model
        self.change(prices or {}, hosted or {})

    @property
    def takes_calls(self) -> bool:
        """False once the spool turned out to be another gateway's, until its owner has decided whose it is."""
        return self.books is None or self.books.setup_error is None

    def show_spool(self, metrics: Metrics) -> None:
        if (books := self.books) is not None:
            metrics.bad_lines.set_function(lambda: books.spool.bad_lines)
            metrics.spool_bytes.set_function(lambda: books.spool.size_bytes)
            metrics.spool_limit.set(books.spool.quota_bytes)
            metrics.spool_behind.set_function(lambda: books.spool.behind_s)

    def change(self, prices: Prices, hosted: Mapping[str, HostedPrice]) -> None:
        """Calls that board from now on have these prices. Those of tiers and servers that are not offered any more
        stay, for calls that are here."""
        for model, by_tier in prices.items():
            self._prices[model] = self._prices.get(model, {}) | by_tier
        self._hosted |= hosted

    async def open(self, request: Request) -> Account | None:
        """Reserve the highest possible cost of the call. Raises Refused if the budget or the spool has no room for it.

        Returns None if the call is not billed."""
        call = request.call
        if self.books is None or not request.runs_model:
            return None
        worst = 0  # without a limit there is no maximum; on a key with a budget, api/app.py sets a limit
        if request.max_output_tokens is not None:
            output_tokens = call.choices * request.max_output_tokens
            prompt_tokens = request.max_prompt_tokens
            worst = self._prices[call.model][call.tier].amount(prompt_tokens, output_tokens)
            if call.may_overflow and (hosted := self._hosted.get(call.model)) is not None:
                worst = max(worst, hosted.price.amount(prompt_tokens, output_tokens))
        return await self.books.open(call, worst, request.session)

    def price(self, model: str, tier: Tier) -> Price | None:
        return self._prices[model][tier] if self.books is not None else None

    def hosted(self, model: str, replica: str) -> HostedPrice | None:
        """The price of the replica, if it is a server of somebody else."""
        hosted = self._hosted.get(model)
        return hosted if hosted is not None and hosted.url == replica else None

    def record_boarding(self, account: Account | None, grant: Grant, meter: Meter | None) -> None:
        """Record that the call is sent to an engine. `meter` counts the tokens delivered so far; None for an answer in
        one piece, which delivers nothing before its end."""
        if account is not None:
            account.boards(grant, meter)

    async def write(self, account: Account | None, receipt: Receipt) -> None:
        """Close the account of a complete answer. Its cost is on disk when this returns."""
        if account is not None:
            account.close(receipt)
            await account.durable()

    def close(self, account: Account | None, receipt: Receipt) -> None:
        """Close the account of a call that is over. Does nothing after `write`."""
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
    undelivered: Usage | None = None,
    moves: int = 0,
    repeated_tokens: int = 0,
) -> Receipt:
    """Tokens that are not delivered are not billed."""
    usage, speed_tps = meter.usage() if is_delivered else Usage(), meter.speed_tps()
    kept = _kept(grant, usage, speed_tps, reader_was_slow=reader_was_slow)
    due = Bill(0)
    if grant.price is not None and is_delivered:
        tokens = (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
        due = bill(grant.price, *tokens, is_missed=kept is False)
    return Receipt(
        grant,
        outcome,
        usage,
        speed_tps,
        kept,
        due,
        seat_us,
        answer_s,
        boardings,
        reader_was_slow,
        undelivered,
        moves,
        repeated_tokens,
    )


def _kept(grant: Grant, usage: Usage, speed_tps: float | None, *, reader_was_slow: bool) -> bool | None:
    """Whether the floor was kept. None if there is no floor, if the answer is too short, if its speed is unknown, or if
    the client slowed the stream down."""
    if not grant.floor_tps or max(usage.outputs) < MIN_TOKENS_FOR_PROMISE or speed_tps is None:
        return None
    return True if speed_tps >= grant.floor_tps else None if reader_was_slow else False
