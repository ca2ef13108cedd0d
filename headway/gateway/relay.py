"""The relay: passes an answer from the engine to the client, and counts and times it on the way.

The engine's socket calls `_feed` for each piece, which writes to the client's socket. The relay queues nothing: if the
client does not read, its write buffer fills to the limit set in api/connection.py, then the relay stops reading from
the engine, and after `stall_s` it aborts the client's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.engines.base import Answer, Pulse
from headway.errors import EngineAnswered, EngineFailed, EngineLost
from headway.wire import Client, Meter


class Relay:
    """Calls `on_final` when the engine's last usage has been read, unless it arrives in one piece with a token."""

    def __init__(
        self,
        answer: Answer,
        client: Client,
        meter: Meter,
        pulse: Pulse,
        clock: Callable[[], float],
        stall_s: float,
        on_final: Callable[[], None],
    ) -> None:
        self.reader_was_slow = False
        self._answer = answer
        self._client = client
        self._meter = meter
        self._meter_feed = meter.feed
        self._client_write = client.write
        self._pulse = pulse
        self._clock = clock
        self._stall_s = stall_s
        self._stall: asyncio.TimerHandle | None = None
        self._is_over = False
        self._on_final: Callable[[], None] | None = on_final

    async def run(self) -> None:
        self._client.on_backpressure(self._pause, self._resume)
        try:
            await self._answer.pipe(self._feed)
        finally:
            self._stop_waiting()
            self._is_over = True

    def _feed(self, data: bytes) -> None:
        now = self._clock()
        self._pulse.at = now
        passed = self._meter_feed(data, now)
        if passed:
            self._client_write(passed)
        elif self._meter.is_final and self._on_final is not None:  # the meter keeps the closing events
            self._on_final()
            self._on_final = None

    def _pause(self) -> None:
        if self._is_over:  # the stream goes on with another answer, whose relay will be told
            return
        # From now on the times show how fast the client reads, not how fast the engine writes.
        self.reader_was_slow = True
        self._answer.pause()
        self._stop_waiting()
        self._stall = asyncio.get_running_loop().call_later(self._stall_s, self._client.abandon)

    def _resume(self) -> None:
        if self._is_over:
            return
        self._stop_waiting()
        self._answer.resume()

    def _stop_waiting(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


async def failure_of(answer: Answer) -> EngineFailed:
    """What an answer other than 200 means. Only an HTTP error is passed on: a client cannot read any other status."""
    if 400 <= answer.status < 600:
        return EngineAnswered(answer.status, await answer.read())
    return EngineLost(f"the engine answered with status {answer.status}")
