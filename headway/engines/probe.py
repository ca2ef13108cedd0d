"""Probes one replica and tells the machine whether it is up.

A replica is up once it has produced a token, not once its port answers. It is down when its health check fails
repeatedly, when it fails a call and then produces no token, or when calls are aboard and it makes no progress for
`stall_s`: it sends no bytes and its own counters do not change. An engine that hangs can still answer /health.

An engine that was started again has lost its cache, also if it is up again before a check fails: its counts show it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from headway.core.types import Replica, ReplicaCacheLost, ReplicaDown, ReplicaUp
from headway.engines.base import Engine
from headway.errors import EngineLost

log = logging.getLogger("headway.probe")

# A busy machine may answer /health late; three failures in a row are not lateness.
MAX_FAILED_CHECKS = 3
# Between two looks at an engine's counts, unless a check has failed. No model is loaded in less, and to write the page
# of its metrics takes vLLM some milliseconds, in the process that also writes its streams.
LIFE_S = 5.0


class Prober:
    def __init__(
        self,
        replica: Replica,
        engine: Engine,
        *,
        tell: Callable[[ReplicaUp | ReplicaDown | ReplicaCacheLost], None],
        aboard: Callable[[str], int],
        clock: Callable[[], float],
        interval_s: float,
        stall_s: float,
        min_context: int = 0,
    ) -> None:
        self.replica = replica
        self.engine = engine
        self.is_up = False
        self.max_model_len: int | None = None  # as the engine last said
        self._tell = tell
        self._aboard = aboard
        self._clock = clock
        self._interval_s = interval_s
        self._stall_s = stall_s
        self._min_context = min_context
        self._wake = asyncio.Event()
        self._is_asking = False  # for a token
        self._failed_checks = 0
        self._mismatch = ""  # what the engine said last of itself that does not fit
        self._counters: tuple[float, ...] = ()
        self._moved_at = 0.0
        self._life: tuple[float, ...] = ()  # as the engine last said
        self._life_at = -math.inf

    def probe_now(self) -> None:
        """Probe at once instead of at the next interval, because a call failed on this replica."""
        self._wake.set()

    def say_again(self) -> None:
        """Tell that the replica is up, if that is known."""
        if self.is_up and not (self._wake.is_set() or self._is_asking):
            self._tell(ReplicaUp(self.replica))

    def note_progress(self) -> None:
        """The time without progress is counted from now."""
        self._moved_at = self._clock()

    async def run(self) -> None:
        while True:
            if not self.is_up or self._wake.is_set():
                self._wake.clear()
                await self._ask_for_token()
            else:
                await self._check()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _ask_for_token(self) -> None:
        self._is_asking = True
        try:
            produces = await self._is_fit() and await self.engine.produces_a_token()
        finally:
            self._is_asking = False
        if produces:
            await self._look_for_restart()
            if not self.is_up:
                log.info("replica %s is up", self.replica.name)
            self.is_up = True
            self._failed_checks = 0
            self._moved_at = self._clock()
            kv_tokens, self.max_model_len = await self.engine.kv_tokens(), await self.engine.max_model_len()
            self.replica = replace(self.replica, kv_tokens=kv_tokens)  # it may have been changed meanwhile
            self._tell(ReplicaUp(self.replica))
        elif self.is_up:
            self._mark_down("it failed a call and then produced no token")

    async def _is_fit(self) -> bool:
        """Whether the engine is healthy and serves what it should. What does not fit is logged once."""
        if not await self.engine.is_healthy():
            return False
        mismatch = await self.engine.mismatch() or await self._short_context()
        if mismatch and mismatch != self._mismatch:
            log.warning("replica %s takes no calls: %s", self.replica.name, mismatch)
        self._mismatch = mismatch
        return not mismatch

    async def _short_context(self) -> str:
        said = await self.engine.max_model_len() if self._min_context else None
        is_short = said is not None and said < self._min_context
        return f"its context is {said:,} tokens, it should be {self._min_context:,}" if is_short else ""

    async def _check(self) -> None:
        is_stalled = False
        try:
            is_healthy = await self.engine.is_healthy()
            if is_healthy and (self._failed_checks or self._clock() - self._life_at >= LIFE_S):
                await self._look_for_restart()
            is_stalled = is_healthy and await self.is_stalled()
        except EngineLost as unreadable:
            log.warning("a probe of replica %s failed: %s", self.replica.name, unreadable)
            is_healthy = False
        self._failed_checks = 0 if is_healthy else self._failed_checks + 1
        if self._failed_checks >= MAX_FAILED_CHECKS:
            self._mark_down(f"{MAX_FAILED_CHECKS} health checks failed in a row")
        elif is_stalled:
            self._mark_down(f"calls are aboard and it made no progress for {self._stall_s:g} s")

    async def _look_for_restart(self) -> None:
        """Tell that the engine has lost its cache if it was started again."""
        self._life_at = self._clock()
        with suppress(EngineLost):  # whether it is healthy is not asked here
            if life := await self.engine.life():
                if is_another_life(self._life, life):
                    log.info("replica %s was started again", self.replica.name)
                    self._tell(ReplicaCacheLost(self.replica.name))
                self._life = life

    async def is_stalled(self) -> bool:
        """Whether calls of this gateway are aboard and the engine makes no progress. Raises EngineLost if its counters
        cannot be read."""
        if not self._aboard(self.replica.name):
            return False
        now = self._clock()
        if now - max(self._moved_at, self.engine.pulse.at) < min(self._stall_s, self._interval_s):
            return False  # bytes are arriving: no need to read the counters
        counters = await self.engine.progress()
        if counters != self._counters:
            self._counters = counters
            self._moved_at = now
        return now - max(self._moved_at, self.engine.pulse.at) >= self._stall_s

    def _mark_down(self, why: str) -> None:
        log.warning("replica %s is down: %s", self.replica.name, why)
        self.is_up = False
        self._tell(ReplicaDown(self.replica.name))


def is_another_life(before: tuple[float, ...], now: tuple[float, ...]) -> bool:
    """Whether an engine that said this before was started again since then."""
    return bool(before) and (now[0] != before[0] or any(map(float.__lt__, now[1:], before[1:])))
