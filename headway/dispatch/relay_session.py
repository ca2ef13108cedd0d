"""One link of a relay to a dispatcher, from its Hello to its end, and the beats that keep its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from headway.dispatch.frames import Beat, FromDispatcher, Hello, Turned, Welcome
from headway.dispatch.link import Link

BEAT_S = 0.2
UNDECIDED_S = 5.0  # after which one that renews no lease is left: a leader that may not decide ends its term sooner
SILENT_BEATS = 5  # after which a dispatcher that answers none is taken for lost


class Obeying(Protocol):
    """The relay, as its links see it."""

    def hello(self) -> Hello: ...

    def welcomed(self, welcome: Welcome, session: DispatcherSession) -> None: ...

    def turned_away(self, why: str, link: Link) -> None: ...

    def obeys(self, link: Link) -> bool:
        """Whether this is the link to the dispatcher that decides."""

    def obey(self, message: FromDispatcher, session: DispatcherSession) -> None: ...

    def left(self, session: DispatcherSession, reason: str) -> None: ...


class DispatcherSession:
    """One link, from its Hello to its end."""

    def __init__(self, dispatch: Obeying, link: Link, clock: Callable[[], float]) -> None:
        self.link = link
        self.began_at = clock()
        self.lease_s = 0.0
        self._dispatch = dispatch
        self._clock = clock
        self._heard_at = self._renewed_at = self.began_at
        self._unheard_beats = 0  # since then
        self._sent_at: dict[int, float] = {}  # beats that were not answered yet
        self._answered = 0  # the last beat that was
        self._is_lost = asyncio.Event()
        link.send(dispatch.hello())

    def on_message(self, message: FromDispatcher) -> None:
        self._heard_at = self._clock()
        self._unheard_beats = 0
        if isinstance(message, Welcome):
            self._dispatch.welcomed(message, self)
        elif isinstance(message, Turned):
            self._dispatch.turned_away(message.why, self.link)
        elif self._dispatch.obeys(self.link):
            self._dispatch.obey(message, self)

    def on_lost(self, reason: str) -> None:
        self._is_lost.set()
        self._dispatch.left(self, reason)

    def answered(self, number: int, *, renews: bool) -> float | None:
        """The dispatcher has answered this beat. Returns when it was sent."""
        if renews:
            self._renewed_at = self._heard_at
        self._answered = max(self._answered, number)
        return self._sent_at.pop(number, None)

    async def beat(self) -> None:
        """Until the link is lost. One that is silent is lost: a dispatcher that is stopped does not close it.

        Beats are counted and not seconds: after a pause of this process, answers wait that it has not read yet."""
        number = 0
        while not self._is_lost.is_set():
            now = self._clock()
            if self._unheard_beats > SILENT_BEATS:
                self.link.abort("the dispatcher is silent")
            elif now - self._renewed_at > UNDECIDED_S:
                self.link.abort("the dispatcher does not decide")
            elif self._dispatch.obeys(self.link):
                number += 1
                self._sent_at[number] = now
                self.link.send(Beat(number, self._answered))
            self._unheard_beats += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._is_lost.wait()
