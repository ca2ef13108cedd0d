"""Prices: integers, rounded once, and a refund that leaves exactly the standard price."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headway.price import Bill, Price, bill

TOKENS = st.integers(0, 10**7)
PRICES = st.builds(Price, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 10**5))


@given(PRICES, TOKENS, TOKENS)
def test_an_amount_is_the_exact_one_rounded_half_up(price: Price, prompt: int, output: int) -> None:
    exact = Fraction(prompt * price.input_micro + output * price.output_micro, 10**6) * Fraction(
        price.multiple_milli, 1000
    )
    assert price.amount(prompt, output) == (exact + Fraction(1, 2)).__floor__()


@given(PRICES, TOKENS, TOKENS)
def test_a_missed_floor_costs_what_standard_does_and_never_more_than_the_tier(
    price: Price, prompt: int, output: int
) -> None:
    due = bill(price, prompt, output, is_missed=True)
    standard = price.as_standard().amount(prompt, output)
    assert due.amount - due.refund == min(due.amount, standard)
    assert bill(price, prompt, output, is_missed=False) == Bill(due.amount)


@given(PRICES, TOKENS, TOKENS, st.data())
def test_cached_tokens_cost_their_own_price_or_as_much_as_others(
    price: Price, prompt: int, output: int, data: st.DataObject
) -> None:
    cached = data.draw(st.integers(0, prompt))
    assert price.amount(prompt, output, cached) == price.amount(prompt, output)
    cheaper = replace(price, cached_micro=data.draw(st.integers(0, price.input_micro)))
    assert 0 <= cheaper.amount(prompt, output, cached) <= price.amount(prompt, output)
    free = replace(price, cached_micro=0)
    assert free.amount(prompt, output, cached) == price.amount(prompt - cached, output)


def test_a_price_by_hand() -> None:
    price = Price(input_micro=150_000, output_micro=600_000, multiple_milli=2_500)  # 0.15 and 0.60, 2.5 times
    assert price.amount(1_000, 500) == 1_125  # (150 + 300) * 2.5
    assert bill(price, 1_000, 500, is_missed=True) == Bill(1_125, 675)
    cached = replace(price, cached_micro=50_000)
    assert cached.amount(1_000, 500, 800) == 925  # (30 + 40 + 300) * 2.5
    assert bill(cached, 1_000, 500, 800, is_missed=True) == Bill(925, 555)
