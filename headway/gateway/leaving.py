"""Calls whose client has left an engine. Their seats stay taken until the engine has noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.core.types import Event, Left
from headway.gateway.trip import Trip
from headway.wire import Outcome

# An engine notices up to one step later that a client has disconnected. The seat stays taken for this long; otherwise
# the replica would briefly run one stream more than the floor allows.
SEAT_RELEASE_S = 0.1


class Leaving:
    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._calls: dict[str, Left] = {}

    def leave(self, trip: Trip, outcome: Outcome) -> None:
        """Tell core that the call is over early: if its client left an engine, once the engine has noticed."""
        if not trip.leaves_seat(outcome):
            usage = trip.meter.usage()
            self._tell(Left(trip.call.id, usage.prompt_tokens, usage.output_tokens))
            return
        work = trip.work()
        output_tokens = work.output_tokens if trip.is_counted else None
        self._calls[trip.call.id] = Left(trip.call.id, work.prompt_tokens, output_tokens, trip.max_output_tokens)
        asyncio.get_running_loop().call_later(SEAT_RELEASE_S, self._release_seat, trip.call.id)

    def release_all(self) -> None:
        for call_id in list(self._calls):
            self._release_seat(call_id)

    def _release_seat(self, call_id: str) -> None:
        if (left := self._calls.pop(call_id, None)) is not None:
            self._tell(left)
