"""One of several dispatchers of a cell: it stands by until it gets the lease, leads for a term, and stands again.

While it leads, it decides only as long as `Leadership` allows it (lease.py). What relays say meanwhile waits. While it
stands by, it turns relays away; they ask the next dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from prometheus_client.core import Metric

from headway.core.types import TICK_S
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.frames import FromRelay, Hello, Status
from headway.dispatch.lease import LeaderLease, Leadership, LeaseUnavailable
from headway.dispatch.link import Link
from headway.dispatch.sessions import RelaySession
from headway.dispatch.status import relays_status

log = logging.getLogger("headway.dispatch")

NO_EPOCH = -1
STAND_S = 0.1  # between two attempts to get the lease
ALONE_S = 2.0  # a leader that reaches too few relays for so long lets another one try
REST_S = (0.5, 1.5)  # after that: at random, so that two dispatchers do not try in step
MAX_WAITING = 200_000  # messages of relays that wait until it may decide

Clock = Callable[[], float]


class LeaseCandidate:
    def __init__(
        self,
        lease: LeaderLease,
        relays: Collection[str],
        make_dispatcher: Callable[[int], Dispatcher],
        clock: Clock = time.monotonic,
    ) -> None:
        """`relays` are the names of all relays of the cell. `make_dispatcher` gets the epoch."""
        self.term: Term | None = None
        self._lease = lease
        self._leadership = Leadership(lease, clock)
        self._relays = relays
        self._make_dispatcher = make_dispatcher
        self._clock = clock
        self._standby = Standby()
        self._id = secrets.token_hex(8)
        self._is_store_away = False

    def make_session(self, link: Link) -> RelaySession:
        return RelaySession(self.term or self._standby, link, self._clock)

    async def run(self) -> None:
        """Until it is cancelled. Then the lease is released: another dispatcher can lead at once."""
        while True:
            if await self._stand():
                await self._lead()
            else:
                await asyncio.sleep(STAND_S)

    def metrics(self) -> Iterable[Metric]:
        return self.term.dispatcher.metrics() if self.term is not None else ()

    async def _stand(self) -> bool:
        try:
            if self._is_store_away:
                # A leader may have gone on without the store. Now that it is back, that one renews first.
                await self._lease.renew(NO_EPOCH)
                await asyncio.sleep(self._lease.lease_s)
            has_lease = await self._leadership.stand(self._standby.highest_epoch)
        except LeaseUnavailable as error:
            if not self._is_store_away:
                log.warning("the lease cannot be reached: %s", error)
            self._is_store_away = True
            return False
        self._is_store_away = False
        return has_lease

    async def _lead(self) -> None:
        """Until the lease is lost, another dispatcher has a higher epoch, or too few relays are reached."""
        epoch = self._leadership.epoch
        assert epoch is not None
        log.info("has the lease, epoch %d", epoch)
        dispatcher = self._make_dispatcher(epoch)
        term = self.term = Term(dispatcher, self._leadership, self._relays, self._id, self._clock)
        renewing = asyncio.create_task(self._renew())
        try:
            while not (why := term.why_over()):
                sleep_s = term.wake()
                await asyncio.sleep(sleep_s)
            log.warning("leads no longer, epoch %d: %s", epoch, why)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            self.term = None
            self._standby.highest_epoch = max(self._standby.highest_epoch, term.highest_epoch)
            term.close()
            await self._leadership.resign()
        if not term.has_begun:
            await asyncio.sleep(random.uniform(*REST_S))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease.lease_s / 3)
            await self._leadership.renew()


class Standby:
    """Has no relays: it turns them away, and learns from them which epochs are used up."""

    epoch = 0
    config = ""
    leader = ""
    is_ready = False

    def __init__(self) -> None:
        self.highest_epoch = 0

    def refusal(self, hello: Hello) -> str:
        self.highest_epoch = max(self.highest_epoch, hello.epoch)
        return "it stands by"

    def welcome(self, session: RelaySession) -> None: ...

    def on_beat(self, session: RelaySession) -> bool:  # noqa: ARG002
        return False

    def on_message(self, session: RelaySession, message: FromRelay) -> None: ...

    def on_lost(self, session: RelaySession) -> None: ...

    def status(self) -> Status:
        return Status("standby")


class Term:
    """One dispatcher's time as the leader. It hands to `dispatcher` what relays say, while it may decide."""

    def __init__(
        self, dispatcher: Dispatcher, leadership: Leadership, relays: Collection[str], leader: str, clock: Clock
    ) -> None:
        self.dispatcher = dispatcher
        self.epoch = self.highest_epoch = dispatcher.epoch
        self.config = dispatcher.config
        self.leader = leader
        self.has_begun = False
        self._leadership = leadership
        self._relays = frozenset(relays)
        self._clock = clock
        self._is_closed = False
        self._sessions: set[RelaySession] = set()  # that are connected
        self._obeyed_at: dict[str, float] = {}  # by relay
        self._waiting: deque[Callable[[], None]] = deque()
        self._heard_at = clock()  # when a relay was heard last while it could decide; first, when it began

    @property
    def is_ready(self) -> bool:
        return self.has_begun and self.dispatcher.is_ready

    def why_over(self) -> str:
        """Why this term is over; empty: it is not."""
        if self._leadership.epoch != self.epoch:
            return "the lease is lost"
        if self.highest_epoch > self.epoch:
            return f"a relay has seen epoch {self.highest_epoch}"
        if len(self._waiting) > MAX_WAITING:
            return "too much waits"
        if self._clock() - self._heard_at > ALONE_S:
            return "it reaches too few relays"
        return ""

    def wake(self) -> float:
        """Do what is due by now, if it may. Returns the seconds to sleep."""
        if self._may_decide():
            self._decide()
            if self.has_begun:
                return self.dispatcher.wake()
        return TICK_S

    def close(self) -> None:
        self._is_closed = True
        for session in self._sessions:  # also those that wait to be welcome
            session.link.close("this dispatcher leads no longer")
        self.dispatcher.close()

    def status(self) -> Status:
        if self.has_begun and self._may_decide():
            return self.dispatcher.status()
        connected = relays_status(self._relays, self._sessions, self._clock())
        return Status("candidate", self.epoch, connected)

    # --- relays ---

    def refusal(self, hello: Hello) -> str:
        if self._is_closed:  # the relay has connected while it led, and says hello now
            return "it leads no longer"
        if hello.relay not in self._relays:
            log.warning("relay %s is turned away: it is not in [cell] relays", hello.relay)
            return f"{hello.relay!r} is not one of the relays in [cell]: add it there, or correct its --name"
        if any(one.relay == hello.relay and one.run != hello.run for one in self._sessions):
            return f"another relay is called {hello.relay!r}: give each its own --name"
        if hello.epoch > self.epoch or (hello.epoch == self.epoch and hello.leader != self.leader):
            # The store gave this epoch twice, or has forgotten higher ones. This term ends, and the next is above.
            self.highest_epoch = max(self.epoch + 1, hello.epoch)
            return f"epoch {hello.epoch} has begun elsewhere"
        return ""

    def welcome(self, session: RelaySession) -> None:
        self._sessions.add(session)
        self._when_deciding(lambda: self.dispatcher.welcome(session))

    def on_beat(self, session: RelaySession) -> bool:
        self._obeyed_at[session.relay] = session.obeyed_at
        self._leadership.heard_from(self._obeyed_at.values(), of=len(self._relays))
        may_decide = self._may_decide()
        if may_decide:
            self._heard_at = self._clock()
            self._decide()
        return may_decide

    def on_message(self, session: RelaySession, message: FromRelay) -> None:
        self._when_deciding(lambda: self.dispatcher.on_message(session, message))

    def on_lost(self, session: RelaySession) -> None:
        self._sessions.discard(session)
        self._when_deciding(lambda: self.dispatcher.on_lost(session))

    def _may_decide(self) -> bool:
        return self._leadership.epoch == self.epoch and self._leadership.may_decide(self._clock())

    def _when_deciding(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        self._decide()

    def _decide(self) -> None:
        while self._waiting and self._may_decide():
            if not self.has_begun:
                # Only now is it certain that no other dispatcher renews the lease of a relay that is not heard.
                self.has_begun = True
                self.dispatcher.begin()
                log.info("leads, epoch %d", self.epoch)
            self._waiting.popleft()()
