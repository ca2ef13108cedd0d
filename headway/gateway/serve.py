"""The gateway: drives core with live events and does what core says. `handle()` is the path of a call, top to bottom.

The only place that awaits between stages. It decides nothing: `tell` gives an event to the machine, `_do` carries out
an action. sim/ will have the same two methods with a heap of times where this has a clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headway.core.machine import Machine
from headway.core.types import (
    MIN_TOKENS_FOR_PROMISE,
    Action,
    Arrived,
    Board,
    Call,
    Cut,
    Delivering,
    Downgrade,
    Draining,
    Event,
    Failed,
    Finished,
    Hold,
    Left,
    Preempt,
    Refuse,
    Replica,
    ReplicaSuspect,
    Stage,
    Ticked,
)
from headway.engines.base import Answer, Engine
from headway.engines.probe import Prober
from headway.errors import EngineAnswered, EngineFailed, EngineLost, Refused
from headway.gateway.events import EventLog
from headway.gateway.metrics import Metrics
from headway.gateway.prompts import PromptFile
from headway.gateway.relay import Relay
from headway.gateway.till import Till
from headway.ledger.books import Account
from headway.wire import Client, Request, Served

log = logging.getLogger("headway.gateway")

TICK_S = 1.0
# An engine learns that a call is over when it next looks at the connection: up to a step later. Its seat is given on
# after this long; else a replica would for that moment carry one stream more than a floor allows.
LETTING_GO_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """The gateway's patience with replicas and readers; see docs/reference/configuration.md."""

    probe_interval_s: float = 1.0
    stall_s: float = 30.0
    reader_stall_s: float = 30.0


@dataclass(slots=True)
class _Trip:
    """What the gateway keeps for a call between events."""

    call: Call
    served: Served
    arrived_at: float
    seat: asyncio.Future[Engine]
    seated_at: float | None = None
    deadline: asyncio.TimerHandle | None = None
    # A scope that has no time limit of its own: it is open while an engine has the call, and core's Cut ends it.
    aboard: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    is_aboard: bool = False
    is_preempted: bool = False
    outcome: str = "left"
    account: Account | None = None  # where there is a ledger

    def cut(self) -> None:
        if self.is_aboard:
            self.aboard.reschedule(0)
        else:  # it was given a seat in this very turn of the loop and has not set off
            self.aboard = asyncio.timeout(0)


class Gateway:
    def __init__(
        self,
        machine: Machine,
        fleet: list[tuple[Replica, Engine]],
        timing: Timing,
        record: EventLog | None = None,
        till: Till | None = None,
        prompts: Mapping[str, PromptFile] | None = None,
    ) -> None:
        self.machine = machine
        self.draining = False
        self.metrics = Metrics(machine, {replica.name: replica.model for replica, _ in fleet})
        self._engines = {replica.name: engine for replica, engine in fleet}
        self._timing = timing
        self._record = record
        self._till = till or Till()
        self._prompts = dict(prompts or {})  # by model, where the owner keeps them
        self.books = self._till.books
        self.price_of = self._till.price
        self._clock = time.monotonic
        self._trips: dict[str, _Trip] = {}
        self._stopped = False
        self._probers = {
            replica.name: Prober(
                replica,
                engine,
                tell=self.tell,
                aboard=machine.boarding[replica.model].aboard,
                clock=self._clock,
                interval_s=timing.probe_interval_s,
                stall_s=timing.stall_s,
            )
            for replica, engine in fleet
        }
        self._tasks: list[asyncio.Task[None]] = []

    # --- the path of a call ---

    async def handle(self, request: Request, client: Client) -> None:
        """Boarding gives the call a seat, an engine answers, the relay carries the answer to the client."""
        trip = self._set_out(request, await self._till.open(request))  # ledger/books.py may refuse it
        self.tell(Arrived(request.call))
        try:
            while trip.outcome != "finished":
                engine = await trip.seat  # core/boarding.py decides; raises Refused
                request.meter.served = trip.served
                self._till.boards(trip.account, request, engine.name)
                try:
                    await self._carry(trip, request, engine, client)  # engines/http.py -> relay.py -> api/server.py
                    trip.outcome = "finished"
                except EngineFailed as failure:
                    await self._report(trip, engine, client, failure)  # raises what no other engine can mend
        finally:
            if trip.outcome == "left" and request.streaming and request.meter.complete:
                trip.outcome = "finished"  # many clients hang up at the last event, before the stream is closed
            self._till.close(trip.account, request, trip.outcome, is_delivered=client.started)
            self._leave(trip, request)
            self._arrive(trip, request)

    async def _carry(self, trip: _Trip, request: Request, engine: Engine, client: Client) -> None:
        try:
            async with trip.aboard:
                trip.is_aboard = True
                answer = await engine.send(request.path, request.body, request.call.id)
                try:
                    await self._pass_on(trip, answer, request, engine, client)
                finally:
                    answer.close()
        except TimeoutError:
            raise EngineLost("the call was taken off its replica") from None
        finally:
            trip.is_aboard = False

    async def _pass_on(self, trip: _Trip, answer: Answer, request: Request, engine: Engine, client: Client) -> None:
        if answer.status != 200:
            raise EngineAnswered(answer.status, await answer.read())
        if not request.streaming:
            whole = await self._read_whole(answer, request, engine)
            self.tell(Delivering(request.call.id))
            await self._till.write(trip.account, request)
            await client.send_whole(b"application/json", whole, request.meter.served)
            return
        self.tell(Delivering(request.call.id))
        await client.start_stream(answer.content_type, request.meter.served)
        relay = Relay(
            answer,
            client,
            request.meter,
            engine.pulse,
            self._clock,
            self._timing.reader_stall_s,
            keeps_end=trip.account is not None,
        )
        await relay.run()
        if not request.meter.complete:
            raise EngineLost("the engine ended its answer in the middle")
        await self._till.write(trip.account, request)
        if relay.end:
            client.write(relay.end)
        await client.end_stream()

    async def _read_whole(self, answer: Answer, request: Request, engine: Engine) -> bytes:
        if (meter := request.fold) is None:
            return request.meter.read_whole(await answer.read())

        def feed(data: bytes) -> None:
            now = engine.pulse.at = self._clock()
            meter.feed(data, now)

        meter.restart()
        await answer.pipe(feed)
        if not meter.complete:
            raise EngineLost("the engine ended its answer in the middle")
        return meter.folded()

    async def _report(self, trip: _Trip, engine: Engine, client: Client, failure: EngineFailed) -> None:
        """Tell core what an engine did; raises the failure where the call cannot be given to another."""
        if isinstance(failure, EngineAnswered) and failure.status != 503:
            trip.outcome = "error"
            raise failure
        stage: Stage = "full"
        if isinstance(failure, EngineLost):
            stage = "waiting" if failure.reached else "connect"
        if trip.is_preempted:
            trip.is_preempted = False
            stage = "preempted"
            await asyncio.sleep(LETTING_GO_S)
        elif isinstance(failure, EngineLost):
            log.warning("call %s lost replica %s (%s): %s", trip.call.id, engine.name, stage, failure)
            self.tell(ReplicaSuspect(engine.name))
            self._probers[engine.name].doubt()
        if client.started:
            trip.outcome = "failed"
            raise failure
        self._want_seat(trip)
        self.tell(Failed(trip.call.id, stage))

    def _leave(self, trip: _Trip, request: Request) -> None:
        """The last word of every call. One that leaves in the middle keeps its seat until its engine has let go."""
        if trip.outcome == "finished":
            self.tell(Finished(trip.call.id, *request.meter.usage(), self._engine_speed_tps(request)))
            return
        left = Left(trip.call.id, *request.meter.usage())
        if trip.outcome == "left" and trip.seated_at is not None and not self._stopped:
            asyncio.get_running_loop().call_later(LETTING_GO_S, self._let_go, left)
        else:
            self.tell(left)

    def _let_go(self, left: Left) -> None:
        if not self._stopped:
            self.tell(left)

    # --- core ---

    def tell(self, event: Event) -> None:
        now = self._clock()
        actions = self.machine.step(event, now)
        if self._record is not None:
            self._record.append(now, event, actions)
        for action in actions:
            self._do(action, now)

    def _do(self, action: Action, now: float) -> None:
        trip = self._trips.get(action.call_id)
        if trip is None:
            return
        match action:
            case Board(replica=name) if not trip.seat.done():
                self._stop_deadline(trip)
                trip.seated_at = now
                trip.seat.set_result(self._engines[name])
            case Refuse(reason=reason, retry_after_s=retry_after_s) if not trip.seat.done():
                self._stop_deadline(trip)
                trip.outcome = "refused"
                trip.seat.set_exception(Refused(reason, retry_after_s))
            case Hold(until=until):
                self._stop_deadline(trip)
                self._tick_at(until, trip)
            case Downgrade(reason=reason):
                price = trip.served.price and self._till.price(trip.call.model, "standard")
                trip.served = replace(
                    trip.served, tier="standard", reason=reason, floor_tps=0.0, allowance=None, price=price
                )
            case Cut():
                trip.cut()
            case Preempt():
                trip.is_preempted = True
                trip.cut()

    def _tick_at(self, until: float, trip: _Trip) -> None:
        def tick() -> None:
            if self._clock() < until:  # the event loop's timers may be a millisecond early
                self._tick_at(until, trip)
            else:
                self.tell(Ticked())

        trip.deadline = asyncio.get_running_loop().call_later(until - self._clock() + 0.001, tick)

    # --- trips ---

    def _set_out(self, request: Request, account: Account | None) -> _Trip:
        call = request.call
        now, boarding = self._clock(), self.machine.boarding[call.model]
        floor_tps = boarding.policy.tiers[call.tier].floor_tps
        served = Served(call.tier, call.tier, None, floor_tps, self.machine.allowance(call, now))
        served.price = self._till.price(call.model, call.tier) if account is not None else None
        served.rung = request.rung
        served.seconds = lambda: self._clock() - now
        served.seat_us = lambda: self.machine.seat_us(call.id, self._clock())
        trip = _Trip(call, served, now, asyncio.get_running_loop().create_future(), account=account)
        self._trips[call.id] = trip
        request.meter.served = served
        return trip

    def _want_seat(self, trip: _Trip) -> None:
        trip.seat = asyncio.get_running_loop().create_future()
        trip.aboard = asyncio.timeout(None)

    def _arrive(self, trip: _Trip, request: Request) -> None:
        """The call is over, however it ended: count it."""
        self._stop_deadline(trip)
        del self._trips[trip.call.id]
        model, tier, meter = trip.call.model, trip.served.tier, request.meter
        self.metrics.calls.labels(model, tier, trip.outcome).inc()
        if trip.seated_at is not None:
            self.metrics.held.labels(model, tier).observe(trip.seated_at - trip.arrived_at)
        prompt_tokens, output_tokens = meter.usage()
        self.metrics.tokens.labels(model, tier, "prompt").inc(prompt_tokens)
        self.metrics.tokens.labels(model, tier, "output").inc(output_tokens)
        if trip.outcome == "finished" and trip.call.model in self._prompts:
            self._prompts[trip.call.model].keep(request)
        if meter.first_at is not None and meter.last_at is not None:
            self.metrics.first_token.labels(model, tier).observe(meter.first_at - trip.arrived_at)
        speed_tps = meter.speed_tps()
        if output_tokens >= MIN_TOKENS_FOR_PROMISE and speed_tps is not None:
            self.metrics.speed.labels(model, tier).observe(speed_tps)
        kept = trip.served.kept(output_tokens, speed_tps)
        if kept is not None and trip.outcome == "finished":
            self.metrics.promises.labels(model, tier, "kept" if kept else "missed").inc()

    @staticmethod
    def _engine_speed_tps(request: Request) -> float | None:
        """The stream's speed where it says something of the engine."""
        if request.meter.served.reader_was_slow or request.meter.usage()[1] < MIN_TOKENS_FOR_PROMISE:
            return None
        return request.meter.speed_tps()

    @staticmethod
    def _stop_deadline(trip: _Trip) -> None:
        if trip.deadline is not None:
            trip.deadline.cancel()
            trip.deadline = None

    # --- life ---

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(prober.run()) for prober in self._probers.values()]
        self._tasks.append(loop.create_task(self._tick()))

    async def _tick(self) -> None:
        """What core keeps ready for express calls follows their demand also while nothing else happens."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tell(Ticked())

    def is_ready(self) -> bool:
        return not self.draining and any(boarding.open_replicas for boarding in self.machine.boarding.values())

    def drain(self) -> None:
        """Take no new calls; those here are served to their end."""
        self.draining = True
        self.tell(Draining())

    async def stop(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for engine in self._engines.values():
            engine.close()
        if self._record is not None:
            self._record.close()
        for prompts in self._prompts.values():
            prompts.close()
