"""Entries: what happened to a call's money, one immutable line each. Nothing here is ever changed or added up in place;
every balance is derived from entries.

    reserved   the call was sent to an engine; the amount is the most that it can cost
    served     it is over; the amount is what its tokens cost at the tier served
    refunded   its promise was missed; the amount (negative) is what it cost beyond standard
    released   the reservation is lifted; the amount (negative) is what had been reserved
    seated     seat-time that was not known yet when `served` was written; the amount is 0

So the sum of reserved and released is what is held for calls under way, and the sum of served and refunded is what was
billed. A call that was sent to an engine has exactly one `served`, whatever became of it.

An entry's id is made of what it says (`call:attempt:kind`), so writing it twice writes it once.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

from headway.core.types import EXPRESS
from headway.price import Bill, Price, bill
from headway.wire import Receipt, Usage

Kind = Literal["reserved", "served", "refunded", "released", "seated"]
BILLED: tuple[Kind, ...] = ("served", "refunded")
DAY_US = 86_400 * 1_000_000


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    call_id: str
    attempt: int  # the engines that were given the call, counted from 1
    kind: Kind
    at_us: int  # microseconds since 1970
    day: str  # in UTC, on which it was reserved: the call is on this day's budget and bill
    gateway: str  # which run of which gateway wrote it
    key: str
    model: str
    replica: str
    tier_asked: str
    tier: str  # as served
    input_price: int  # micro-units per million tokens
    output_price: int
    multiple_milli: int
    amount: int  # micro-units
    outcome: str = ""  # how the call ended; empty where it has not
    prompt_tokens: int = 0
    output_tokens: int = 0
    seat_us: int = 0
    auto: str = ""  # the auto model that was asked for, where this call is a rung of one
    # What the same would have cost, were the full model asked at once. Of a call that was escalated the student's
    # entry says what was thought then, the full model's adds what is missing: their sum is what counts.
    all_full: int = 0
    cached_tokens: int | None = None  # of the prompt tokens; None in entries of versions that did not count them

    @property
    def id(self) -> str:
        return f"{self.call_id}:{self.attempt}:{self.kind}"

    @property
    def price(self) -> Price:
        return Price(self.input_price, self.output_price, self.multiple_milli)

    def closing(self, receipt: Receipt, at_us: int) -> list[Entry]:
        """What follows this reservation when its call is over, served as its last boarding granted."""
        grant, usage = receipt.grant, receipt.usage
        price = grant.price or self.price
        served = msgspec.structs.replace(
            self,
            kind="served",
            attempt=receipt.boardings,
            replica=grant.replica,
            tier=grant.tier,
            input_price=price.input_micro,
            output_price=price.output_micro,
            multiple_milli=price.multiple_milli,
            at_us=at_us,
            amount=receipt.bill.amount,
            outcome=receipt.outcome,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            seat_us=receipt.seat_us or 0,
            all_full=_all_full(receipt),
        )
        return self._closed_by(served, receipt.bill)

    def lost(self, attempt: int, replica: str, usage: tuple[int, int], at_us: int) -> list[Entry]:
        """The call's gateway died with it: it is billed for what is known to have been delivered, and as standard,
        since nothing can be proved of its speed."""
        due = bill(self.price, *usage, is_missed=self.tier in EXPRESS)
        served = msgspec.structs.replace(
            self,
            kind="served",
            attempt=attempt,
            replica=replica,
            at_us=at_us,
            amount=due.amount,
            outcome="gateway_lost",
            prompt_tokens=usage[0],
            output_tokens=usage[1],
        )
        return self._closed_by(served, due)

    def _closed_by(self, served: Entry, due: Bill) -> list[Entry]:
        entries = [served]
        if due.refund:
            entries.append(served.followed_by("refunded", -due.refund))
        entries.append(served.followed_by("released", -self.amount))
        return entries

    def followed_by(self, kind: Kind, amount: int = 0, seat_us: int = 0) -> Entry:
        """Another entry of the same call; what `served` counts is not counted again."""
        return msgspec.structs.replace(
            self,
            kind=kind,
            amount=amount,
            seat_us=seat_us,
            prompt_tokens=0,
            output_tokens=0,
            cached_tokens=None,
            all_full=0,
        )


def _all_full(receipt: Receipt) -> int:
    """What the full model alone would have cost, as far as this rung can tell."""
    rung = receipt.grant.rung
    if rung is None or rung.full_price is None:
        return 0
    noted = _full_cost(rung.full_price, rung.student.usage) if rung.student is not None else 0
    return _full_cost(rung.full_price, receipt.usage) - noted


def _full_cost(price: Price, usage: Usage) -> int:
    return price.amount(usage.prompt_tokens, usage.output_tokens)


def now_us() -> int:
    return time.time_ns() // 1_000


def day_of(at_us: int) -> str:
    return _day(at_us // DAY_US)


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_US / 1e6, UTC).strftime("%Y-%m-%d")


def month_of(day: str) -> str:
    return day[:7]
