"""What an engine said of the streams that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamCount:
    """How many streams an engine ran, and what was known of them then."""

    streams: int
    known: dict[str, int]  # streams of each call that it surely ran
    lost: list[str]  # calls of relays that were gone
