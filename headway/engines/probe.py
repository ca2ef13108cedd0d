"""Watches one replica and tells the machine whether it may carry calls.

A replica is let in when it has produced a token, not when a port answers. It is taken out when /health says so, when it
cannot be reached, or when calls are aboard and nothing has come out of it for `stall_s`, neither bytes to this gateway
nor any change in the engine's own counters: an engine can answer /health while its tokens stand still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headway.core.types import Event, Replica, ReplicaDown, ReplicaUp
from headway.engines.base import Engine

log = logging.getLogger("headway.probe")

# A busy box can be late with /health; three silent ones in a row are not lateness.
SILENT_HEALTH_CHECKS = 3


class Prober:
    def __init__(
        self,
        replica: Replica,
        engine: Engine,
        *,
        tell: Callable[[Event], None],
        aboard: Callable[[str], int],
        clock: Callable[[], float],
        interval_s: float,
        stall_s: float,
    ) -> None:
        self.replica = replica
        self.engine = engine
        self.is_up = False
        self.is_draining = False  # it is watched and not let in again
        self._tell = tell
        self._aboard = aboard
        self._clock = clock
        self._interval_s = interval_s
        self._stall_s = stall_s
        self._doubted = asyncio.Event()
        self._silent = 0
        self._counters: tuple[float, ...] = ()
        self._moved_at = 0.0

    def doubt(self) -> None:
        """A call failed there: look now instead of at the next interval."""
        self._doubted.set()

    async def run(self) -> None:
        while True:
            if not self.is_up or self._doubted.is_set():
                self._doubted.clear()
                await self._let_in_or_out()
            else:
                await self._check()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._doubted.wait()
            except TimeoutError:
                pass

    async def _let_in_or_out(self) -> None:
        if await self.engine.is_healthy() and await self.engine.produces_a_token():
            if not self.is_up:
                log.info("replica %s is up", self.replica.name)
            self.is_up = True
            self._silent = 0
            self._moved_at = self._clock()
            if not self.is_draining:
                self._tell(ReplicaUp(self.replica))
        elif self.is_up:
            self._take_out("it failed a call and does not produce a token")

    async def _check(self) -> None:
        self._silent = 0 if await self.engine.is_healthy() else self._silent + 1
        if self._silent >= SILENT_HEALTH_CHECKS:
            self._take_out("its health check does not answer")
        elif await self._stands_still():
            self._take_out(f"it carries calls and nothing has moved for {self._stall_s:g} s")

    async def _stands_still(self) -> bool:
        now = self._clock()
        if not self._aboard(self.replica.name):
            self._moved_at = now
        if now - max(self._moved_at, self.engine.pulse.at) < min(self._stall_s, self._interval_s):
            return False  # bytes are coming: no need to ask
        counters = await self.engine.progress()
        if counters != self._counters:
            self._counters = counters
            self._moved_at = now
        return now - max(self._moved_at, self.engine.pulse.at) >= self._stall_s

    def _take_out(self, why: str) -> None:
        log.warning("replica %s is taken out: %s", self.replica.name, why)
        self.is_up = False
        self.is_draining = False  # it is watched and not let in again
        self._tell(ReplicaDown(self.replica.name))
