"""What an engine said of the streams that it runs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


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
