"""Entries: what happened to a call's money, one immutable line each. Nothing here is ever changed or added up in place;
every balance is derived from entries.

    reserved   the call was sent to an engine; the amount is the most that it can cost
    served     it is over; the amount is what its tokens cost at the tier served
    refunded   its promise was missed; the amount (negative) is what it cost beyond standard
    released   the reservation is lifted; the amount (negative) is what had been reserved

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

Kind = Literal["reserved", "served", "refunded", "released"]
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

    @property
    def id(self) -> str:
        return f"{self.call_id}:{self.attempt}:{self.kind}"

    @property
    def price(self) -> Price:
        return Price(self.input_price, self.output_price, self.multiple_milli)

    def closing(
        self,
        outcome: str,
        attempt: int,
        replica: str,
        usage: tuple[int, int],
        seat_us: int,
        due: Bill,
        at_us: int,
        all_full: int = 0,
    ) -> list[Entry]:
        """What follows this reservation when its call is over."""
        prompt_tokens, output_tokens = usage
        served = msgspec.structs.replace(
            self,
            kind="served",
            attempt=attempt,
            replica=replica,
            at_us=at_us,
            amount=due.amount,
            outcome=outcome,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seat_us=seat_us,
            all_full=all_full,
        )
        entries = [served]
        if due.refund:
            entries.append(_follows(served, "refunded", -due.refund))
        entries.append(_follows(served, "released", -self.amount))
        return entries

    def lost(self, attempt: int, replica: str, usage: tuple[int, int], at_us: int) -> list[Entry]:
        """The call's gateway died with it: it is billed for what is known to have been delivered, and as standard,
        since nothing can be proved of its speed."""
        due = bill(self.price, *usage, is_missed=self.tier in EXPRESS)
        return self.closing("gateway_lost", attempt, replica, usage, 0, due, at_us)


def _follows(served: Entry, kind: Kind, amount: int) -> Entry:
    nothing = {"prompt_tokens": 0, "output_tokens": 0, "seat_us": 0, "all_full": 0}
    return msgspec.structs.replace(served, kind=kind, amount=amount, **nothing)


def now_us() -> int:
    return time.time_ns() // 1_000


def day_of(at_us: int) -> str:
    return _day(at_us // DAY_US)


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_US / 1e6, UTC).strftime("%Y-%m-%d")


def month_of(day: str) -> str:
    return day[:7]
