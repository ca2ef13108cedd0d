"""Relays that a test plays by hand, without a socket."""

from __future__ import annotations

from typing import Any

from headway.dispatch.frames import PROTOCOL, Actions, Beat, BeatEcho, Hello
from headway.dispatch.sessions import RelaySession
from tests.dispatch.fake_lease import FakeTime


class Line:
    """A link that remembers what was sent on it."""

    name = "a line"

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = ""

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def act(self, action: Any) -> None:
        self.sent.append(Actions([action]))

    def close(self, reason: str) -> None:
        self.closed = reason

    abort = close

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class HandRelay:
    def __init__(
        self, host: Any, clock: FakeTime, relay: str, *, run: str = "", epoch: int = 0, leader: str = ""
    ) -> None:
        self.line = Line()
        self.session = RelaySession(host, self.line, clock)  # type: ignore[arg-type]
        self._number = 0
        self.say(Hello(PROTOCOL, relay, run or f"run of {relay}", epoch, leader))

    def say(self, message: Any) -> None:
        self.session.on_message(message)

    def beat(self) -> BeatEcho:
        """Beat, having got all echoes before."""
        heard, self._number = self._number, self._number + 1
        self.say(Beat(self._number, heard))
        echo: BeatEcho = self.line.of(BeatEcho)[-1]
        return echo
