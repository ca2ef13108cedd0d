"""Prices, in integers only. Money is counted in micro-units, a millionth of the owner's currency.

Prices are per million tokens: 0.15 in the configuration is 150,000 here. A tier's price multiple is in thousandths. A
call's amount is rounded once, with half a micro-unit rounded up, so anyone can compute the same amount from the token
counts and these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MICRO = 1_000_000
MTOK = 1_000_000
MILLI = 1_000


@dataclass(slots=True)
class Price:
    """Micro-units per million tokens, and the tier's price multiple in thousandths."""

    input_micro: int
    output_micro: int
    multiple_milli: int = MILLI
    cached_micro: int | None = None  # of prompt tokens that the engine had in its cache; None: as other prompt tokens

    def amount(self, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        """The cost in micro-units. `cached_tokens` are part of the prompt tokens."""
        whole = prompt_tokens * self.input_micro + output_tokens * self.output_micro
        if self.cached_micro is not None:
            whole -= cached_tokens * (self.input_micro - self.cached_micro)
        per = MTOK * MILLI
        return (2 * whole * self.multiple_milli + per) // (2 * per)

    def as_standard(self) -> Price:
        return replace(self, multiple_milli=MILLI)


@dataclass(slots=True)
class HostedPrice:
    """What a server of somebody else costs: its URL, its name for clients, and its price at any tier."""

    url: str
    host: str
    price: Price


@dataclass(slots=True)
class Bill:
    """The cost of a call, and the part of it that is refunded because the floor was missed."""

    amount: int
    refund: int = 0


def bill(price: Price, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, *, is_missed: bool) -> Bill:
    """If the floor was missed, the refund lowers the cost to that of standard; a cheaper tier gets no refund."""
    tokens = (prompt_tokens, output_tokens, cached_tokens)
    amount = price.amount(*tokens)
    refund = amount - price.as_standard().amount(*tokens) if is_missed else 0
    return Bill(amount, max(0, refund))
