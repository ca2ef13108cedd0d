"""The gateway's state of one call, from its arrival to its receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headway.core.types import Adopted, Board, Call
from headway.engines.base import Engine
from headway.errors import EngineFailed, RefusalReason
from headway.gateway.billing import make_receipt
from headway.gateway.relay import Relay
from headway.ledger.books import Account
from headway.observe.base import Span
from headway.price import HostedPrice, Price
from headway.wire import ContinuableMeter, Grant, Meter, NoSeat, Outcome, Receipt, Request, Seam, Usage


@dataclass(slots=True)
class Trip:
    request: Request
    grant: Grant  # of the last boarding; before the first boarding, only the tier asked
    meter: Meter  # of the last boarding
    arrived_at: float
    seat: asyncio.Future[Engine]
    settled: asyncio.Future[int]  # the call's seat-time in microseconds
    account: Account | None  # None if nothing is billed
    span: Span | None = None  # None if calls are not traced
    downgraded_at: float | None = None
    downgraded_why: RefusalReason | None = None
    epoch: int = 0  # of the core that granted the seat (dispatch/base.py)
    is_sent: bool = False  # to the engine, since the last boarding
    boardings: int = 0
    boarded_at: float | None = None
    deadline: asyncio.TimerHandle | None = None
    held_bytes: int = 0  # of its request, while it waits for a seat
    # The scope in which an engine runs the call. It has no time limit; core's Cut and Preempt end it.
    aboard: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    is_aboard: bool = False
    is_preempted: bool = False
    seam: Seam | None = None  # where its stream has stopped, until it goes on at another engine
    lost: EngineFailed | None = None  # how it lost the last engine that had begun to answer
    is_fixed: bool = False  # core has been told that it cannot go on at another engine
    moves: int = 0  # how often its stream went on at another engine
    is_finished: bool = False  # core has been told that the answer is complete
    is_counted: bool = False  # the engine streams, so the meter counts tokens as they come
    relay: Relay | None = None
    outcome: Outcome = "left"
    receipt: Receipt | None = None

    @property
    def call(self) -> Call:
        return self.request.call

    @property
    def held_s(self) -> float | None:
        """How long it waited for its seat; None if it never boarded."""
        return self.boarded_at - self.arrived_at if self.boarded_at is not None else None

    @property
    def first_token_s(self) -> float | None:
        """From its arrival to the first token; None if there was none."""
        return self.meter.first_at - self.arrived_at if self.meter.first_at is not None else None

    @property
    def reader_was_slow(self) -> bool:
        return self.relay is not None and self.relay.reader_was_slow

    def granted(self, board: Board, price: Price | None, hosted: HostedPrice | None) -> Grant:
        """What core granted, with the configured price of the tier served, or of the server if it is hosted."""
        return Grant(
            tier_asked=self.call.tier,
            tier=board.tier,
            replica=board.replica,
            reason=board.reason,
            floor_tps=board.floor_tps,
            price=(hosted.price if hosted is not None else price) if self.account is not None else None,
            served_by=hosted.host if hosted is not None else "",
            rate_limit=board.rate_limit,
            rung=self.request.rung,
        )

    @property
    def max_output_tokens(self) -> int | None:
        """Of all choices."""
        limit = self.request.max_output_tokens
        return limit * self.call.choices if limit is not None else None

    def leaves_seat(self, outcome: Outcome) -> bool:
        """Whether the client left while the call had a seat, so that an engine worked for it until then."""
        return outcome == "left" and self.seat.done() and not self.seat.cancelled()

    def work(self) -> Usage:
        """What the engine did for the call that has a seat, as far as it is known. Until the engine has reported the
        length of the prompt, it is estimated from its size."""
        usage = self.meter.usage()
        return usage if usage.prompt_tokens else replace(usage, prompt_tokens=self.call.prompt_tokens)

    def receipt_at(self, now: float, outcome: Outcome, *, is_delivered: bool) -> Receipt:
        return make_receipt(
            self.grant,
            outcome,
            self.meter,
            is_delivered=is_delivered,
            reader_was_slow=self.reader_was_slow,
            seat_us=0 if self.grant.served_by else self.settled.result() if self.settled.done() else None,
            answer_s=now - self.arrived_at,
            boardings=self.boardings,
            undelivered=self.work() if self.leaves_seat(outcome) and not is_delivered else None,
            moves=self.moves,
            repeated_tokens=self.meter.repeated_tokens
            if self.moves and isinstance(self.meter, ContinuableMeter)
            else 0,
        )

    def cut(self) -> None:
        if self.is_aboard:
            self.aboard.reschedule(0)
        else:  # it got its seat in this turn of the loop and has not been sent yet
            self.aboard = asyncio.timeout(0)

    def wait_until(self, until: float, clock: Callable[[], float], tick: Callable[[], None]) -> None:
        """Call `tick` when the time is over for which the call may be held."""

        def check() -> None:
            if clock() < until:  # the event loop's timers can fire a millisecond early
                self.wait_until(until, clock, tick)
            else:
                tick()

        self.deadline = asyncio.get_running_loop().call_later(until - clock() + 0.001, check)

    def wait_for_seat(self) -> None:
        """The call has no seat any more, and may get another."""
        self.seat = asyncio.get_running_loop().create_future()
        self.aboard = asyncio.timeout(None)
        self.is_aboard = self.is_sent = False

    def adopted(self, now: float) -> Adopted:
        """Where the call is, for a core that does not know it."""
        reason = self.downgraded_why or self.grant.reason
        call = replace(
            self.call,
            tier=self.grant.tier if self.downgraded_at is None else "standard",
            falls_back=self.call.falls_back and reason is None,
            is_continuable=self.call.is_continuable and not self.is_fixed,
            moves=self.moves,
        )
        replica = self.grant.replica if self.seat.done() else None
        is_paused = self.moves > 0 and replica is None
        is_delivering = is_paused or (self.relay is not None and replica is not None)
        since = self.arrived_at if self.downgraded_at is None else self.downgraded_at
        if is_paused and self.meter.last_at is not None:
            since = self.meter.last_at
        return Adopted(call, replica, now - since, is_delivering, reason)

    def refuse(self, no_seat: NoSeat) -> None:
        """It gets no seat. If a part of its answer was delivered, it ends by what its last engine failed with."""
        self.outcome = "refused" if self.lost is None else "failed"
        self.seat.set_exception(no_seat if self.lost is None else self.lost)

    def downgrade(self, reason: RefusalReason, now: float) -> None:
        """What was delivered before a pause stays billed at the tier that served it, unless the call goes on."""
        self.downgraded_at, self.downgraded_why = now, reason
        if not self.boardings:
            self.grant = replace(self.grant, tier="standard", reason=reason)

    def stop_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
