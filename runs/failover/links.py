"""The links between relays and dispatchers."""

from __future__ import annotations

import time
from collections import deque

from runs.torture.links import FaultyLink

RECENT_S = 0.6  # some heartbeats


class CuttableLink(FaultyLink):
    """From one relay to one dispatcher. The relay connects to `port`."""

    def __init__(self, relay: str, dispatcher: str, target_port: int) -> None:
        super().__init__(f"{relay} {dispatcher}", target_port)
        self.relay = relay
        self.dispatcher = dispatcher
        self._told: deque[tuple[float, int]] = deque()  # (when, bytes) that the dispatcher sent

    def heard(self, count: int) -> None:
        self._told.append((time.monotonic(), count))
        self._forget_old()

    def told_lately(self) -> int:
        """Bytes that the dispatcher has sent to the relay. Only the leader sends more than a few."""
        self._forget_old()
        return sum(count for _, count in self._told)

    def _forget_old(self) -> None:
        since = time.monotonic() - RECENT_S
        while self._told and self._told[0][0] < since:
            self._told.popleft()


def leader_of(links: list[CuttableLink]) -> str | None:
    """The dispatcher that relays hear from; None if no relay hears from any."""
    told: dict[str, int] = {}
    for link in links:
        told[link.dispatcher] = told.get(link.dispatcher, 0) + link.told_lately()
    loudest = max(told, key=lambda name: told[name])
    return loudest if told[loudest] else None
