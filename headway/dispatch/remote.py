"""Core in another process: this gateway is a relay of a dispatcher.

Events go to the dispatcher and actions come back (link.py). While there is no dispatcher, streams go on, and calls that
arrive or are held wait until their own deadlines. When there is one again, possibly another one, the relay says where
each of its calls is, and boarding goes on.

Two dispatchers may believe that they lead. A relay obeys the highest epoch it has seen. It writes to an engine only
while its own lease lasts, which each beat that the dispatcher answers renews, counted from before the beat was sent: so
the dispatcher can tell when a relay that it cannot reach has stopped boarding.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from prometheus_client.core import Metric

from headway.core.types import (
    MAX_PAUSE_S,
    Action,
    Arrived,
    Delivering,
    Downgrade,
    Draining,
    Event,
    Failed,
    Finished,
    Hold,
    Left,
    Offer,
    Refuse,
    Settled,
    Ticked,
)
from headway.dispatch.address import Address
from headway.dispatch.base import Driver, Finding, ServedConfig
from headway.dispatch.endpoints import connect
from headway.dispatch.frames import (
    PROTOCOL,
    Actions,
    AdminAnswer,
    BeatEcho,
    Count,
    Counted,
    FromDispatcher,
    Hello,
    Keep,
    Probe,
    ProbeNow,
    Reconfigured,
    Reported,
    Welcome,
)
from headway.dispatch.handover import Keeper
from headway.dispatch.link import Link
from headway.dispatch.relay_fleet import OrderOf, RelayFleet
from headway.dispatch.relay_gates import RelayGates
from headway.dispatch.relay_session import DispatcherSession
from headway.dispatch.security import Security
from headway.errors import ConnectionFailed
from headway.supervise import Supervisor

log = logging.getLogger("headway.dispatch")

# For which a relay stays ready after a dispatcher has said last that it is. Its calls wait, and in less another
# dispatcher has opened replicas. Else a load balancer would find no relay at all while a standby takes over.
GRACE_S = 4.0
RETRY_S = (0.05, 0.2)  # between two attempts to connect: at random, so that relays do not come in step
ANSWER_S = 1.0  # for which a call waits for the dispatcher's word after its deadline
# Tuples: `isinstance` with A | B makes a new union each time.
OWN_MATTERS = (Ticked, Draining)  # the dispatcher has its own clock, and goes on when one relay drains
ENDS = (Finished, Left)
NO_ANSWERS = (Settled, Downgrade)  # a call that waits for the dispatcher's word goes on waiting
MAX_ENDS = 10_000  # calls that ended while there was no dispatcher, which are reported later


class RemoteDispatch:
    def __init__(
        self,
        addresses: list[Address],
        security: Security,
        relay: str,
        run: str,
        config: ServedConfig,
        take_config: Callable[[str], ServedConfig | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`relay` is this relay's name, `run` the random id of this run of its process. `take_config` is called when a
        dispatcher has another configuration, with its text. It returns None if the relay must start again with it."""
        self.epoch = 0
        self._leader = ""
        self.gates = RelayGates(lambda: self.epoch, self.may_send)
        self._addresses = addresses
        self._security = security
        self._relay = relay
        self._run = run
        self._config = config
        self._take_config = take_config
        self._fleet = RelayFleet()
        self._clock = clock
        self._driver: Driver | None = None
        self._link: Link | None = None  # None unless a dispatcher has welcomed this relay
        self._leased_until = 0.0
        self._max_hold_s: dict[str, float] = {}  # of each call that has not ended
        self._unanswered: set[str] = set()  # calls that wait for the dispatcher's word, and have no deadline yet
        self._fallback_hold_s: dict[str, float] = {}  # of each that may be served as standard: for how long then
        self._movable: set[str] = set()  # calls that may be taken off their replica, and have not ended
        self._overdue: set[str] = set()  # calls whose deadline has passed, and that wait for its word
        self._ready_at = float("-inf")  # when a dispatcher said last that some replica takes calls
        self._unsent: list[Failed] = []  # calls that could not be sent and are told once the lease is renewed
        self._ends: deque[Finished | Left] = deque(maxlen=MAX_ENDS)
        self._keeper = Keeper(clock)
        self._refused: dict[str, str] = {}  # by dispatcher: why it turned this relay away
        self._is_alone = asyncio.Event()  # it has no dispatcher, and looks for one
        self._is_alone.set()
        self._tasks: list[asyncio.Task[None]] = []

    def may_send(self, epoch: int) -> bool:
        return epoch == self.epoch and self._clock() < self._leased_until

    @property
    def is_ready(self) -> bool:
        return self._clock() - self._ready_at < GRACE_S

    # --- from the gateway ---

    def tell(self, event: Event) -> None:
        if isinstance(event, OWN_MATTERS):
            return
        if isinstance(event, Arrived):
            call = event.call
            tiers = self._config.offers[call.model].tiers
            self._max_hold_s[call.id] = tiers[call.tier].max_hold_s
            if call.tier == "flex" or call.is_continuable:
                self._movable.add(call.id)
            if call.may_fall_back:
                self._fallback_hold_s[call.id] = tiers["standard"].max_hold_s
            self._wait_for_answer(call.id)
        elif isinstance(event, Delivering):
            if event.call_id not in self._movable:
                return  # this would change nothing but wake the dispatcher
        elif isinstance(event, Failed):
            if (
                event.output_tokens or event.stage == "streaming"
            ):  # it is paused, and can only go on where it was served as it is
                self._max_hold_s[event.call_id] = MAX_PAUSE_S
                self._fallback_hold_s.pop(event.call_id, None)
            self._wait_for_answer(event.call_id)
            if event.stage == "unsent" and self._link is not None and not self.may_send(self.epoch):
                self._unsent.append(event)  # with a new seat it would only be back at once
                return
        elif isinstance(event, ENDS):
            self._forget(event.call_id)
            if self._link is None:
                self._ends.append(event)
        if self._link is not None:
            self._link.tell(event)

    def probed(self, event: Finding) -> None:
        self.tell(event)

    def _wait_for_answer(self, call_id: str) -> None:
        self._unanswered.add(call_id)
        if self._link is None:
            self._hold_unanswered()

    def _hold_unanswered(self) -> None:
        """Without a dispatcher, calls wait until their own deadlines."""
        assert self._driver is not None
        while self._unanswered:
            call_id = self._unanswered.pop()
            self._driver.do(Hold(call_id, self._max_hold_s[call_id]))

    def deadline(self, call_id: str) -> None:
        """The dispatcher knows it too, and answers now. If it does not, this relay decides."""
        self._overdue.add(call_id)
        if self._link is None:
            self._decide_overdue(call_id)
        else:
            asyncio.get_running_loop().call_later(ANSWER_S, self._decide_overdue, call_id)

    def _decide_overdue(self, call_id: str) -> None:
        """As core would: the call waits as standard if it may, or is refused."""
        assert self._driver is not None
        if call_id not in self._overdue:
            return
        if call_id in self._fallback_hold_s:
            self._do(Downgrade(call_id, "no_dispatcher"))
            self._do(Hold(call_id, self._max_hold_s[call_id]))
        else:
            self._driver.do(Refuse(call_id, "no_dispatcher", 1))
            self.tell(Left(call_id))

    def _forget(self, call_id: str) -> None:
        self._max_hold_s.pop(call_id, None)
        self._fallback_hold_s.pop(call_id, None)
        self._unanswered.discard(call_id)
        self._overdue.discard(call_id)
        self._movable.discard(call_id)

    def counted(self, replica: str, streams: int) -> None:
        if self._link is not None:
            self._link.send(Counted(replica, streams))

    def metrics(self, replicas: Mapping[str, str]) -> Iterable[Metric]:  # noqa: ARG002 (the dispatcher has them)
        return ()

    # --- from the dispatcher ---

    def obeys(self, link: Link) -> bool:
        return self._link is link

    def obey(self, message: FromDispatcher, session: DispatcherSession) -> None:
        assert self._driver is not None
        if isinstance(message, Actions):
            for action in message.actions:
                self._do(action)
        elif isinstance(message, BeatEcho):
            if message.is_ready:
                self._ready_at = self._clock()
            sent_at = session.answered(message.number, renews=message.renews)
            if message.renews and sent_at is not None:
                self._leased_until = max(self._leased_until, sent_at + session.lease_s)
                self._tell_unsent()
        elif isinstance(message, Probe):
            self._driver.probe_only(dict(message.replicas))
        elif isinstance(message, ProbeNow):
            self._driver.probe_now(message.replica)
        elif isinstance(message, Count):
            self._driver.count_streams(message.replica)
        elif isinstance(message, Keep):
            self._keeper.keep(message, self.epoch)
        elif isinstance(message, Reconfigured):
            self._reconfigure(message.config, session)
        elif not self._fleet.obey(message, self._driver, self.epoch):
            self.gates.obey(message)

    def _reconfigure(self, text: str, session: DispatcherSession) -> bool:
        """Serve another configuration. Returns whether that is possible without a restart. Calls that were read before
        are told with what they were offered then."""
        if text == self._config.text:
            return True
        if (taken := self._take_config(text)) is None:
            session.link.close("its configuration needs a restart")
            self._is_alone.clear()
            return False
        offers = dict(self._config.offers)
        for model, offer in taken.offers.items():
            before = offers[model].tiers if model in offers else {}
            offers[model] = Offer(offer.pool, before | offer.tiers)
        self._config = ServedConfig(text, offers)
        return True

    async def order(self, order: OrderOf) -> AdminAnswer | None:
        """What the dispatcher answers to an operator; None if there is no dispatcher, or none that answers."""
        if self._link is not None:
            with suppress(TimeoutError):
                return await self._fleet.order(self._link, order)
        return None

    def _tell_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        for event in unsent:
            if event.call_id in self._unanswered:  # else it has left
                self.tell(event)

    def _do(self, action: Action) -> None:
        assert self._driver is not None
        if isinstance(action, Refuse):
            self._forget(action.call_id)
        elif not isinstance(action, NO_ANSWERS):
            self._unanswered.discard(action.call_id)
            self._overdue.discard(action.call_id)
        elif isinstance(action, Downgrade) and action.call_id in self._fallback_hold_s:
            self._max_hold_s[action.call_id] = self._fallback_hold_s.pop(action.call_id)
        self._driver.do(action)

    def welcomed(self, welcome: Welcome, session: DispatcherSession) -> None:
        assert self._driver is not None
        is_over = welcome.epoch < self.epoch or (welcome.epoch == self.epoch and welcome.leader != self._leader)
        if is_over or (self._link is not None and welcome.epoch == self.epoch):
            session.link.close(f"epoch {welcome.epoch} is over or known: {self.epoch} has begun")
            return
        if not self._reconfigure(welcome.config, session):
            return
        earlier, self._link = self._link, session.link
        if earlier is not None:
            earlier.close("another dispatcher has a higher epoch")
        self._is_alone.clear()
        self._unsent = []  # each call is told anew
        self.epoch, self._leader = welcome.epoch, welcome.leader
        session.lease_s = welcome.lease_s
        self._leased_until = max(self._leased_until, session.began_at + welcome.lease_s)
        self._driver.forget_unsettled()  # of calls that ended while there was no dispatcher
        while self._ends:
            session.link.tell(self._ends.popleft())
        calls = list(self._driver.calls())
        self._fleet.welcomed(session.link, self.epoch, {call.replica for call in calls if call.replica is not None})
        for call in calls:
            if call.replica is None:
                self._unanswered.add(call.call.id)
            session.link.tell(call)
        if (kept := self._keeper.kept_for(self.epoch)) is not None:
            session.link.send(kept)
        self.gates.welcomed(session.link)
        session.link.send(Reported())
        self._refused.clear()
        log.info("dispatcher %s decides, epoch %d", session.link.name, self.epoch)

    def left(self, session: DispatcherSession, reason: str) -> None:
        if self._link is session.link:
            log.warning("no dispatcher: %s", reason)
            self._link = None
            self._is_alone.set()
            self._unsent = []  # each call is told anew to the next dispatcher
            self.gates.left()
            self._hold_unanswered()

    def turned_away(self, why: str, link: Link) -> None:
        if self._refused.get(link.name) != why:  # it asks again several times a second
            log.warning("dispatcher %s turned this relay away: %s", link.name, why)
        self._refused[link.name] = why
        link.close("turned away")

    # --- connecting ---

    def start(self, driver: Driver, supervisor: Supervisor) -> None:
        self._driver = driver
        # All at once: one that is stopped accepts connections and says nothing.
        self._tasks = [
            supervisor.start(f"dispatcher {address}", partial(self._stay_connected, address), matters=True)
            for address in self._addresses
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            self._link.close("the relay ends")

    def hello(self) -> Hello:
        return Hello(PROTOCOL, self._relay, self._run, self.epoch, self._leader)

    async def _stay_connected(self, address: Address) -> None:
        while True:
            await self._is_alone.wait()
            sessions: list[DispatcherSession] = []

            def meet(link: Link, sessions: list[DispatcherSession] = sessions) -> DispatcherSession:
                sessions.append(DispatcherSession(self, link, self._clock))
                return sessions[0]

            try:
                await connect(address, meet, self._security)
            except ConnectionFailed as failed:
                log.debug("%s", failed)
            else:
                await sessions[0].beat()
            await asyncio.sleep(random.uniform(*RETRY_S))
