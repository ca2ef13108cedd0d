"""Entries: immutable records of what happens to a call's money. Every balance is a sum of entries.

    reserved   the call is sent to an engine; the amount is its maximum cost, or 0 if it has none (no `max_tokens`, and
               no budget that requires one)
    served     the call has ended; the amount is the price of its tokens at the tier served
    refunded   the floor was missed; the amount (negative) is the difference to the standard price
    released   the reservation ends; the amount (negative) is what was reserved
    seated     what was not known when `served` was written: seat-time, undelivered tokens; the amount is 0

The sum of reserved and released is held for running calls, and the sum of served and refunded was billed. A call
that was sent to an engine gets exactly one `served`, however it ends.

An entry's id is derived from its content (`call:attempt:kind`), so writing it again has no effect.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headway.core.types import EXPRESS
from headway.price import Bill, Price, bill
from headway.wire import Receipt, Usage

Kind = Literal["reserved", "served", "refunded", "released", "seated"]
BILLED: tuple[Kind, ...] = ("served", "refunded")
DAY_US = 86_400 * 1_000_000
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # where there is one: it counts while we sleep
_STARTED_NS = time.time_ns() - time.clock_gettime_ns(_STEADY)

# Limits that hold when an entry is read from the spool. Sums of a thousand such amounts fit into a column of the store.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # micro-units
Attempt = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    call_id: str
    attempt: Attempt  # number of engines that the call was sent to so far, from 1
    kind: Kind
    at_us: Count  # microseconds since 1970
    day: Day  # on which the call was reserved, in UTC: it counts in this day's budget and bill
    gateway: str  # the gateway and its run that wrote the entry, as `name/run`
    key: str
    model: str
    replica: str
    tier_asked: str
    tier: str  # as served
    input_price: Count  # micro-units per million tokens
    output_price: Count
    multiple_milli: Count
    amount: Amount
    outcome: str = ""  # how the call ended; empty while it runs
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    seat_us: Count = 0
    auto: str = ""  # the auto model that the client asked for, if this call is one of its rungs
    # What the call would have cost with the full model alone. After an escalation the student's entry has the estimate
    # made at that time and the full model's entry the correction, so only their sum is meaningful.
    all_full: Amount = 0
    cached_tokens: Count | None = None  # part of the prompt tokens; None in entries of versions that did not count them
    cached_price: Count | None = None  # micro-units per million cached tokens; None: as other prompt tokens
    # The price, in micro-units, of what an engine did for a client that left and got nothing of it. Not billed.
    undelivered: Amount | None = None
    # The price, in micro-units, of tokens that engines read again because the stream moved. Not billed.
    repeated: Amount | None = None
    session: str | None = None  # as the client names it, or a hash of that (api/sessions.py); None if it names none
    agent: str | None = None

    @property
    def id(self) -> str:
        return f"{self.call_id}:{self.attempt}:{self.kind}"

    @property
    def price(self) -> Price:
        return Price(self.input_price, self.output_price, self.multiple_milli, self.cached_price)

    @property
    def has_wrong_sign(self) -> bool:
        """Whether the amount has the sign of another kind of entry, or a count is negative."""
        is_taken = self.kind in ("refunded", "released")
        not_billed = (self.undelivered or 0, self.repeated or 0)
        counts = (self.prompt_tokens, self.output_tokens, self.cached_tokens or 0, self.seat_us, *not_billed)
        return (self.amount > 0 if is_taken else self.amount < 0) or min(counts) < 0

    def closing(self, receipt: Receipt, at_us: int) -> list[Entry]:
        """Return the entries that end this reservation, at the tier and price of the call's last grant."""
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
            cached_price=price.cached_micro,
            at_us=at_us,
            amount=receipt.bill.amount,
            outcome=receipt.outcome,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            seat_us=receipt.seat_us or 0,
            all_full=_all_full(receipt),
            undelivered=_cost(price, receipt.undelivered) if receipt.undelivered is not None else None,
            repeated=price.amount(receipt.repeated_tokens, 0) if receipt.moves else None,
        )
        return self._closed_by(served, receipt.bill)

    def lost(self, attempt: int, replica: str, usage: tuple[int, int], at_us: int) -> list[Entry]:
        """Return the entries that end a call whose gateway died. It is billed for what was recorded as delivered, at
        the standard price, because its speed cannot be proved. Cached tokens were not recorded."""
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

    def closed_after(self, served: Entry) -> list[Entry]:
        """Return the entries that end a call whose gateway died when it had written the first one of them. Nobody was
        told yet whether the floor was kept, so it counts as missed. Entries that were written are not counted twice."""
        tokens = (served.prompt_tokens, served.output_tokens, served.cached_tokens or 0)
        return self._closed_by(served, bill(served.price, *tokens, is_missed=served.tier in EXPRESS))

    def _closed_by(self, served: Entry, due: Bill) -> list[Entry]:
        entries = [served]
        if due.refund:
            entries.append(served.followed_by("refunded", -due.refund))
        entries.append(served.followed_by("released", -self.amount))
        return entries

    def followed_by(self, kind: Kind, amount: int = 0, seat_us: int = 0, undelivered: int | None = None) -> Entry:
        """Return another entry of the same call, without the tokens that `served` already counts."""
        return msgspec.structs.replace(
            self,
            kind=kind,
            amount=amount,
            seat_us=seat_us,
            prompt_tokens=0,
            output_tokens=0,
            cached_tokens=None,
            all_full=0,
            undelivered=undelivered,
            repeated=None,
        )


def _all_full(receipt: Receipt) -> int:
    """Return what this rung adds to the cost of the full model alone."""
    rung = receipt.grant.rung
    if rung is None or rung.full_price is None:
        return 0
    noted = _cost(rung.full_price, rung.student.usage) if rung.student is not None else 0
    return _cost(rung.full_price, receipt.usage) - noted


def _cost(price: Price, usage: Usage) -> int:
    return price.amount(usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)


def now_us() -> int:
    return time.time_ns() // 1_000


def steady_now_us() -> int:
    """The time of day, as if nobody had set the clock since this process started. For the age of things."""
    return (_STARTED_NS + time.clock_gettime_ns(_STEADY)) // 1_000


def day_of(at_us: int) -> str:
    return _day(at_us // DAY_US)


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_US / 1e6, UTC).strftime("%Y-%m-%d")


def month_of(day: str) -> str:
    return day[:7]


def seconds_left(period: str, at_us: int) -> int:
    """Until a day or a month is over, at least 1. Rounded up: a client that waits for so long calls in the next one."""
    return max(1, -(-(_end_us(period) - at_us) // 1_000_000))


def _end_us(period: str) -> int:
    if period == month_of(period):
        in_next_month = datetime.fromisoformat(f"{period}-28") + timedelta(days=4)
        end = in_next_month.replace(day=1)
    else:
        end = datetime.fromisoformat(period) + timedelta(days=1)
    return int(end.replace(tzinfo=UTC).timestamp()) * 1_000_000
