"""One relay, as the dispatcher sees it: its link and its calls."""

from __future__ import annotations

import logging
from typing import Protocol

from headway.dispatch.frames import PROTOCOL, FromRelay, Hello, Turned, Welcome
from headway.dispatch.link import Link

log = logging.getLogger("headway.dispatch")


class RelayHost(Protocol):
    """What a session belongs to: the dispatcher."""

    epoch: int
    config: str

    def welcome(self, session: RelaySession) -> None: ...

    def on_message(self, session: RelaySession, message: FromRelay) -> None: ...

    def on_lost(self, session: RelaySession) -> None: ...


class RelaySession:
    """Says hello first. A relay that connects again, in the same run, takes over the calls of its session before."""

    def __init__(self, dispatcher: RelayHost, link: Link, lease_s: float) -> None:
        self.link = link
        self.relay = ""
        self.run = ""
        self.calls: set[str] = set()
        self.named: set[str] = set()  # calls that it has said are its own, since it connected
        self.has_reported = False
        self.lost_at: float | None = None
        self._dispatcher = dispatcher
        self._lease_s = lease_s

    def on_message(self, message: FromRelay) -> None:
        if self.run:
            self._dispatcher.on_message(self, message)
        elif not isinstance(message, Hello):
            self.link.close("it did not say hello")
        elif message.protocol != PROTOCOL:
            why = f"this dispatcher speaks version {PROTOCOL} and the relay {message.protocol}: run the same Headway"
            log.warning("relay %s is turned away: %s", message.relay, why)
            self.link.send(Turned(why, ""))
            self.link.close("another version")
        else:
            self.relay, self.run = message.relay, message.run
            self.link.send(Welcome(self._dispatcher.epoch, self._dispatcher.config, self._lease_s))
            self._dispatcher.welcome(self)

    def on_lost(self, reason: str) -> None:
        if self.run:
            log.warning("relay %s is lost: %s", self.relay, reason)
            self._dispatcher.on_lost(self)

    def is_gone(self, now: float, after_s: float) -> bool:
        """Whether the relay has been lost for so long."""
        return self.lost_at is not None and now - self.lost_at >= after_s
