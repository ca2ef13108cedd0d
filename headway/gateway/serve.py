"""The gateway: reports live events to core and carries out the actions that core decides on.

`handle()` is the path of a call, from top to bottom. It is the only place that awaits between stages. The gateway makes
no decisions: `tell` reports an event, in this process or to a dispatcher (dispatch/base.py), and `do` carries out an
action. sim/loop.py has the same two methods, with a heap of timestamps instead of a clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from prometheus_client.core import Metric

from headway.core.machine import Machine
from headway.core.types import (
    MIN_TOKENS_FOR_PROMISE,
    Action,
    Adopted,
    Arrived,
    Board,
    Cut,
    Downgrade,
    Draining,
    Failed,
    Finished,
    Hold,
    Left,
    Preempt,
    Refuse,
    ReplicaSuspect,
    Settled,
)
from headway.dispatch.base import Dispatch
from headway.dispatch.fleet import Member
from headway.dispatch.local import LocalDispatch
from headway.engines.base import Answer, Engine
from headway.errors import (
    AnswerTooLarge,
    ConnectionFailed,
    EngineFailed,
    EngineLost,
    ResponseTooLarge,
)
from headway.gateway.billing import Billing
from headway.gateway.continuation import ends_call, finish_at_seam, fix, may_go_on, next_request, stage_of
from headway.gateway.floors import FloorWatch
from headway.gateway.held_bytes import HeldBytes
from headway.gateway.leaving import SEAT_RELEASE_S, Leaving
from headway.gateway.metrics import Metrics, replica_metrics
from headway.gateway.prompts import PromptFile
from headway.gateway.relay import Relay, failure_of
from headway.gateway.replicas import Replicas
from headway.gateway.reports import Reports
from headway.gateway.timing import Timing
from headway.gateway.trip import Trip
from headway.ledger.books import Account
from headway.observe.base import UNOBSERVED, Observer
from headway.supervise import Supervisor, measure_lag
from headway.wire import AnswerOver, Client, Grant, NoSeat, Receipt, Request, SeatVoid

log = logging.getLogger("headway.gateway")

# How long a receipt waits for the call's seat-time. A core in the same process reports it at once.
SETTLE_S = 0.02


class Gateway:
    def __init__(
        self,
        dispatch: Dispatch,
        make_engine: Callable[[Member], Engine],
        timing: Timing,
        billing: Billing | None = None,
        prompts: Mapping[str, PromptFile] | None = None,
        held_bytes: HeldBytes | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.dispatch = dispatch
        self.tell = dispatch.tell
        self.leaving = False  # not ready any more, so that a load balancer sends no more calls
        self.draining = False
        self._clock = time.monotonic
        self.supervisor = Supervisor(self._clock)
        self.replicas = Replicas(make_engine, dispatch.probed, self._clock, self.supervisor, timing)
        self.max_model_lens = self.replicas.max_model_lens
        # For the dispatcher's driver:
        self.add_replica, self.remove_replica = self.replicas.add, self.replicas.remove
        self.change_replica = self.replicas.change
        self.probe_only, self.probe_now = self.replicas.probe_only, self.replicas.probe_now
        self.replica_tokens = self.replicas.output_tokens
        self.metrics = Metrics(self._metrics_when_scraped, self.supervisor)
        self._timing = timing
        self._billing = billing or Billing()
        self._reports = Reports(self.metrics, observer, prompts or {})
        self.tell_refused = self._reports.refused
        self._held_bytes = held_bytes or HeldBytes()
        self.books = self._billing.books
        self._billing.show_spool(self.metrics)
        self.price_of, self.change_prices = self._billing.price, self._billing.change
        self._floors = FloorWatch(self.tell, self._clock)
        self._trips: dict[str, Trip] = {}
        self._leaving = Leaving(self.tell)
        self._unsettled: dict[str, Account] = {}  # calls that ended before core reported their seat-time
        self._tasks: list[asyncio.Task[None]] = []

    # --- the path of a call ---

    async def handle(self, request: Request, client: Client) -> Receipt:
        """Get a seat for the call, send it to that engine, relay the answer to the client. Returns the receipt."""
        trip = await self._open_trip(request)  # ledger/books.py; raises Refused
        self.tell(Arrived(request.call))
        try:
            while trip.outcome != "finished":
                seat = trip.seat
                engine = await seat  # core/pool.py decides; raises NoSeat
                try:
                    await self._run_on_engine(trip, engine, client)  # http1.py -> relay.py -> api/server.py
                    trip.outcome = "finished"
                except SeatVoid:
                    if trip.seat is seat:  # else it has been given back
                        trip.wait_for_seat()
                        self.tell(Failed(trip.call.id, "unsent"))
                except EngineFailed as failure:
                    await self._handle_failure(trip, engine, client, failure)  # raises unless it can be retried
        finally:
            receipt = self._close_trip(trip, client)
        return receipt

    async def _run_on_engine(self, trip: Trip, engine: Engine, client: Client) -> None:
        seat = trip.seat
        try:
            async with trip.aboard:
                trip.is_aboard = True
                request = await self._begin_boarding(trip, engine)
                with self.replicas.carrying(engine.name, trip.meter, trip.request):
                    await self._exchange(trip, request, engine, client)
        except TimeoutError:
            raise EngineLost("the call was taken off its replica") from None
        except ConnectionFailed as failed:
            lost = AnswerTooLarge if isinstance(failed, ResponseTooLarge) else EngineLost
            raise lost(f"the engine failed: {failed}", reached=failed.reached) from failed
        finally:
            if trip.seat is seat:
                trip.is_aboard = False

    async def _exchange(self, trip: Trip, request: Request, engine: Engine, client: Client) -> None:
        seat, asked = trip.seat, engine.prepare(request)
        trip.is_counted = request.streaming or asked.collects
        answer = await engine.send(asked, lambda: self._check_seat(trip, seat))
        try:
            if answer.status != 200:
                raise await failure_of(answer)
            if request.streaming and not asked.returns_ids:  # a whole answer can be made again until it is sent
                fix(trip, self.tell)
            deliver = self._stream if request.streaming else self._send_whole
            with self._floors.watching(trip):
                await deliver(trip, answer, engine, client)
        finally:
            answer.close()

    async def _stream(self, trip: Trip, answer: Answer, engine: Engine, client: Client) -> None:
        if not client.started:
            await client.start_stream(answer.content_type, trip.grant)
        stall_s, was_slow = self._timing.reader_stall_s, trip.reader_was_slow
        trip.relay = Relay(
            answer, client, trip.meter, engine.pulse, self._clock, stall_s, on_final=lambda: self._report_finished(trip)
        )
        trip.relay.reader_was_slow = was_slow
        with suppress(AnswerOver):
            await trip.relay.run()
        await self._end_stream(trip, client)

    async def _end_stream(self, trip: Trip, client: Client) -> None:
        client.write(trip.meter.end(await self._settle(trip)))
        await client.end_stream()

    async def _send_whole(self, trip: Trip, answer: Answer, engine: Engine, client: Client) -> None:
        meter = trip.meter
        if trip.is_counted and answer.content_type.startswith(b"text/event-stream"):

            def feed(data: bytes) -> None:
                now = engine.pulse.at = self._clock()
                meter.feed(data, now)

            await answer.pipe(feed)
        else:
            meter.read_whole(await answer.read(), engine.generation_s)
        receipt = await self._settle(trip)
        await client.send_whole(b"application/json", meter.end(receipt), receipt)

    async def _settle(self, trip: Trip) -> Receipt:
        """Make the receipt of an answer that has been read to its end, and write its cost to disk."""
        if not trip.meter.is_complete:
            raise EngineLost("the engine ended its answer early")
        self._report_finished(trip)
        if not trip.settled.done():
            await asyncio.wait([trip.settled], timeout=SETTLE_S)
        receipt = trip.receipt_at(self._clock(), "finished", is_delivered=True)
        await self._billing.write(trip.account, receipt)
        trip.receipt = receipt
        return receipt

    async def _handle_failure(self, trip: Trip, engine: Engine, client: Client, failure: EngineFailed) -> None:
        """Report a failure to core, which tries another engine. Raises the failure if that is not possible."""
        if ends_call(trip, failure):
            trip.outcome = "error"
            raise failure
        stage = stage_of(trip, failure, has_begun=client.started)
        if stage == "preempted":
            trip.is_preempted = False
            await asyncio.sleep(SEAT_RELEASE_S)
        elif isinstance(failure, EngineLost):
            log.warning("call %s lost replica %s (%s): %s", trip.call.id, engine.name, stage, failure)
            self.tell(ReplicaSuspect(engine.name))
            self.replicas.probe_now(engine.name)
        if client.started and not may_go_on(trip, self.max_model_lens()):
            trip.outcome = "failed"
            raise failure
        if client.started and finish_at_seam(trip, self._clock()):
            await self._end_stream(trip, client)
            trip.outcome = "finished"
            return
        if client.started:
            trip.moves, trip.lost = trip.moves + 1, failure
        trip.wait_for_seat()
        self.tell(Failed(trip.call.id, stage, trip.seam.tokens if trip.seam is not None else 0))

    def _check_seat(self, trip: Trip, seat: asyncio.Future[Engine]) -> None:
        """Called immediately before the call is written to its engine."""
        if trip.seat is not seat or not self.dispatch.may_send(trip.epoch):
            raise SeatVoid
        trip.is_sent = True

    # --- the dispatcher's driver (dispatch/base.py) ---

    @property
    def machine(self) -> Machine:
        """Of a gateway that decides for itself."""
        assert isinstance(self.dispatch, LocalDispatch)
        return self.dispatch.machine

    def calls(self) -> Iterator[Adopted]:
        for trip in self._trips.values():
            if trip.seat.done() and not trip.is_sent:
                trip.wait_for_seat()
            if not trip.is_finished:  # else its end was told: only its entries or its reader are waited for
                yield trip.adopted(self._clock())

    def forget_unsettled(self) -> None:
        self._unsettled.clear()

    def count_streams(self, name: str) -> None:
        self.replicas.count_streams(name, self.dispatch.counted)

    def do(self, action: Action) -> None:
        trip = self._trips.get(action.call_id)
        if trip is None:
            if isinstance(action, Settled) and (account := self._unsettled.pop(action.call_id, None)) is not None:
                account.add_seat_time(action.seat_us, action.estimated_tokens)
            return
        match action:
            case Board() if not trip.seat.done():
                self._held_bytes.end_hold(trip)
                trip.boarded_at, trip.epoch = self._clock(), self.dispatch.epoch
                hosted = self._billing.hosted(trip.call.model, action.replica)
                trip.grant = trip.granted(action, self._billing.price(trip.call.model, action.tier), hosted)
                trip.seat.set_result(self.replicas.engine(action.replica))
            case Refuse(reason=reason, retry_after_s=retry_after_s, rate_limit=rate_limit) if not trip.seat.done():
                self._held_bytes.end_hold(trip)
                trip.settled.set_result(action.seat_us)
                trip.refuse(NoSeat(reason, retry_after_s, rate_limit))
            case Hold(for_s=for_s):
                self._hold(trip, self._clock() + for_s)
            case Downgrade(reason=reason):
                trip.downgrade(reason, self._clock())
            # A dispatcher's order may cross what was told: that the call has lost its seat, or was served to its end.
            case Cut() | Preempt() if trip.is_finished or not trip.seat.done():
                pass
            case Cut():
                trip.cut()
            case Preempt():
                if trip.relay is not None and not may_go_on(trip, self.max_model_lens()):
                    fix(trip, self.tell)
                    return
                trip.is_preempted = True
                trip.cut()
            case Settled(seat_us=seat_us) if not trip.settled.done():
                trip.settled.set_result(seat_us)

    def _hold(self, trip: Trip, until: float) -> None:
        """Keep the request until core has a seat for it, or until then; refuse it if too many bytes are kept."""
        self._held_bytes.end_hold(trip)
        if self._held_bytes.take(trip):
            trip.wait_until(until, self._clock, lambda: self.dispatch.deadline(trip.call.id))
            return
        trip.refuse(NoSeat("held_bytes", 1, None))
        self.tell(Left(trip.call.id))

    # --- trips ---

    async def _open_trip(self, request: Request) -> Trip:
        with self._reports.refusals(request):
            account = await self._billing.open(request)
        if (span := self._reports.begin(request)) is not None:
            request = replace(request, trace=span.trace)
        call, loop = request.call, asyncio.get_running_loop()
        grant = Grant(call.tier, call.tier, rung=request.rung)
        seat, settled = loop.create_future(), loop.create_future()
        trip = Trip(request, grant, request.form.meter(grant), self._clock(), seat, settled, account, span)
        self._trips[call.id] = trip
        return trip

    async def _begin_boarding(self, trip: Trip, engine: Engine) -> Request:
        """The request for the engine. The trip's meter reads the answer."""
        trip.boardings += 1
        if trip.seam is not None:
            request = await next_request(trip, engine, self.max_model_lens())
        else:
            request = trip.request
            trip.meter = request.form.meter(trip.grant)
        self._billing.record_boarding(trip.account, trip.grant, trip.meter if request.streaming else None)
        return request

    def _report_finished(self, trip: Trip) -> None:
        """Tell core, once, that the engine's answer has been read to its end."""
        if not trip.is_finished:
            usage, speed_tps = trip.meter.usage(), trip.meter.speed_tps()
            if trip.reader_was_slow or trip.moves or max(usage.outputs) < MIN_TOKENS_FOR_PROMISE:
                speed_tps = None  # not a measurement of the engine
            trip.is_finished = True
            self.tell(Finished(trip.call.id, usage.prompt_tokens, usage.output_tokens, speed_tps))

    def _close_trip(self, trip: Trip, client: Client) -> Receipt:
        """End the call, however it ended. A meter that fails even now must not keep a seat or a budget: then the call
        ends with nothing counted."""
        is_readable = False
        try:
            trip.meter.usage()
            trip.meter.speed_tps()
            is_readable = True
        finally:
            if not is_readable:
                trip.meter, trip.outcome = trip.request.form.meter(trip.grant), "failed"
            receipt = self._end_call(trip, client)
        return receipt

    def _end_call(self, trip: Trip, client: Client) -> Receipt:
        """Tell core that the call is over, close its account and count it."""
        outcome = trip.outcome
        if outcome == "left" and trip.request.streaming and trip.meter.is_complete:
            outcome = "finished"  # many clients disconnect after the last event, before the stream is closed
        if outcome == "finished":
            self._report_finished(trip)
        elif outcome != "refused":
            self._leaving.leave(trip, outcome)
        try:
            receipt = trip.receipt or trip.receipt_at(self._clock(), outcome, is_delivered=client.started)
            self._billing.close(trip.account, receipt)
            if receipt.seat_us is None and trip.account is not None and outcome != "refused":
                self._unsettled[trip.call.id] = trip.account
        finally:
            self._held_bytes.end_hold(trip)
            del self._trips[trip.call.id]
        self._reports.ended(trip, receipt)
        return receipt

    def _metrics_when_scraped(self) -> Iterable[Metric]:
        pools = self.replicas.pools
        return (*self.dispatch.metrics(pools), *replica_metrics(pools, self.replica_tokens()), *self._reports.metrics())

    # --- start and stop ---

    def start(self) -> None:
        self.dispatch.start(self, self.supervisor)
        self._tasks = [
            self.supervisor.start("floors", self._floors.run),
            self.supervisor.start("loop lag", lambda: measure_lag(self.metrics.loop_lag.observe)),
        ]

    def is_ready(self) -> bool:
        return not self.leaving and self._billing.takes_calls and self.dispatch.is_ready and self.supervisor.is_well

    def drain(self) -> None:
        """Take no new calls. Calls already here are served to their end."""
        self.leaving = self.draining = True
        self.tell(Draining())

    async def stop(self) -> None:
        self._leaving.release_all()
        await self.replicas.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatch.stop()
        await self._reports.stop()
