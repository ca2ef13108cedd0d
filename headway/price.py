"""Prices: integers in, integers out. Money is counted in micro-units, a millionth of the owner's currency.

A price is for a million tokens, so one that is 0.15 in the configuration is 150,000 here; a tier's multiple is counted
in thousandths. A call's amount is rounded once, half a micro-unit up: what is billed is a function of the token counts
and the three numbers, and anyone who has them gets the same amount.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MICRO = 1_000_000
MTOK = 1_000_000
MILLI = 1_000


@dataclass(slots=True)
class Price:
    """What tokens cost: micro-units per million of them, times the tier's multiple in thousandths."""

    input_micro: int
    output_micro: int
    multiple_milli: int = MILLI

    def amount(self, prompt_tokens: int, output_tokens: int) -> int:
        """In micro-units."""
        whole = prompt_tokens * self.input_micro + output_tokens * self.output_micro
        per = MTOK * MILLI
        return (2 * whole * self.multiple_milli + per) // (2 * per)

    def as_standard(self) -> Price:
        return replace(self, multiple_milli=MILLI)


@dataclass(slots=True)
class Bill:
    """What a call costs, and how much of that is given back because its promise was missed."""

    amount: int
    refund: int = 0


def bill(price: Price, prompt_tokens: int, output_tokens: int, *, is_missed: bool) -> Bill:
    """A missed floor costs what standard costs. One that was cheaper than standard stays so."""
    amount = price.amount(prompt_tokens, output_tokens)
    refund = amount - price.as_standard().amount(prompt_tokens, output_tokens) if is_missed else 0
    return Bill(amount, max(0, refund))
