"""What an engine said of the streams that it runs, and which engines say nothing."""

from __future__ import annotations

import logging
from collections.abc import Container, Set
from dataclasses import dataclass

log = logging.getLogger("headway.dispatch")

TELL_S = 5.0  # after which an engine that does not say how many streams it runs is told of


@dataclass(frozen=True, slots=True)
class StreamCount:
    """How many streams an engine ran, and what was known of them then."""

    streams: int
    known: dict[str, int]  # streams of each call that it surely ran
    lost: list[str]  # calls of relays that were gone
    is_first: bool  # since the replica came up, or the dispatcher

    def others(self, still_known: Container[str]) -> int:
        """The most streams that it ran for calls that were not known.

        A call that had just ended at its engine may have been known still, and must not hide another. So only those are
        left out that are known some time later: they did run."""
        return max(0, self.streams - sum(choices for call_id, choices in self.known.items() if call_id in still_known))


class SilentEngines:
    """Replicas that are up and cannot be opened, because their engines do not say how many streams they run. Each is
    logged once, until it is up no more or has said it."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self._since: dict[str, float] = {}

    def look(self, silent: Set[str], now: float) -> None:
        """`silent` are all that are so now."""
        self.told &= silent
        self._since = {name: self._since.get(name, now) for name in silent}
        for name, since in self._since.items():
            if now - since >= TELL_S and name not in self.told:
                self.told.add(name)
                log.warning(
                    "replica %s is up and takes no calls: its engine does not say how many streams it runs. Let relays "
                    "read its /metrics, with the numbers of running and waiting requests.",
                    name,
                )
