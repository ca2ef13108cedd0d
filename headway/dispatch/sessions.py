"""One relay, as the dispatcher sees it: its link and its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from headway.dispatch.frames import PROTOCOL, AskStatus, Beat, BeatEcho, FromRelay, Hello, Status, Turned, Welcome
from headway.dispatch.link import Link

log = logging.getLogger("headway.dispatch")

LEASE_S = 1.0  # a relay may write to engines for so long after a beat that was answered
MAX_ECHOES = 64  # whose time is remembered; a relay that has got none of them is not counted as obeying


class RelayHost(Protocol):
    """What a session belongs to: a dispatcher, or one that stands by."""

    epoch: int
    config: str
    leader: str

    @property
    def is_ready(self) -> bool: ...

    def refusal(self, hello: Hello) -> str:
        """Why this relay is turned away; empty: it is welcome."""

    def welcome(self, session: RelaySession) -> None: ...

    def on_beat(self, session: RelaySession) -> bool:
        """The relay obeys. Returns whether its lease is renewed."""

    def on_message(self, session: RelaySession, message: FromRelay) -> None: ...

    def on_lost(self, session: RelaySession) -> None: ...

    def status(self) -> Status: ...


class RelaySession:
    """Says hello first, or only asks for the status. A relay that connects again, in the same run, takes over the calls
    of its session before."""

    def __init__(self, host: RelayHost, link: Link, clock: Callable[[], float]) -> None:
        self.link = link
        self.relay = ""
        self.run = ""
        self.calls: set[str] = set()
        self.named: set[str] = set()  # calls that it has said are its own, since it connected
        self.has_reported = False
        self.lost_at: float | None = None
        self.heard_at = clock()
        self.unheard_ticks = 0  # since then
        self.obeyed_at = 0.0  # the relay has obeyed since then, or later
        self._host = host
        self._clock = clock
        self._sent_at: dict[int, float] = {}  # when the Welcome (0) and the last echoes were sent

    def on_message(self, message: FromRelay) -> None:
        if not self.run:
            self._greet(message)
        elif isinstance(message, Beat):
            self._answer(message)
        elif isinstance(message, Hello):
            self.link.close("a relay says hello once")
        else:
            self._host.on_message(self, message)

    def _greet(self, message: FromRelay) -> None:
        if not isinstance(message, Hello | AskStatus):
            self.link.close("it did not say hello")
        elif message.protocol != PROTOCOL:
            why = f"this dispatcher speaks version {PROTOCOL} and not {message.protocol}: run the same Headway"
            who = f"relay {message.relay}" if isinstance(message, Hello) else "`headway status`"
            log.warning("%s is turned away: %s", who, why)
            self._turn_away(why)
        elif isinstance(message, AskStatus):
            self.link.send(self._host.status())
            self.link.close("it has the status")
        elif why := self._host.refusal(message):
            self._turn_away(why)
        else:
            self._welcome(message)

    def _turn_away(self, why: str) -> None:
        self.link.send(Turned(why, ""))
        self.link.close("turned away")

    def _welcome(self, message: Hello) -> None:
        self._sent_at[0] = self._clock()
        self.link.send(Welcome(self._host.epoch, self._host.config, LEASE_S, self._host.leader))
        if not message.run:
            self.link.close("it has the configuration")
            return
        self.relay, self.run = message.relay, message.run
        self._host.welcome(self)

    def _answer(self, beat: Beat) -> None:
        now = self.heard_at = self._clock()
        self.unheard_ticks = 0
        self.obeyed_at = max(self.obeyed_at, self._sent_at.get(beat.heard, 0.0))
        self._sent_at[beat.number] = now
        while len(self._sent_at) > MAX_ECHOES:
            del self._sent_at[next(iter(self._sent_at))]
        self.link.send(BeatEcho(beat.number, self._host.is_ready, self._host.on_beat(self)))

    def on_lost(self, reason: str) -> None:
        if self.run:
            log.warning("relay %s is lost: %s", self.relay, reason)
            self._host.on_lost(self)

    def is_gone(self, now: float, after_s: float) -> bool:
        """Whether the relay has been lost for so long."""
        return self.lost_at is not None and now - self.lost_at >= after_s
