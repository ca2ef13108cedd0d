"""Runs the gateway's background tasks: a task that fails is logged, counted and started again. Measures the event loop.

Without this, a task that raises ends in silence: asyncio keeps the error until somebody asks for it, and nobody does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

log = logging.getLogger("headway.tasks")

FIRST_WAIT_S = 0.1  # before the first restart; doubled with each failure in a row
MAX_WAIT_S = 10.0
STEADY_S = 5.0  # a task that has run this long has recovered
# A task that fails this often in a row does not do its work, although it is started again and again.
MAX_FAILURES = 3
# A longer pause of the event loop is always seen, of shorter ones a share. To be woken costs a gateway with few streams
# more than a token does, so this is done no more often than gateway/floors.py looks.
LAG_S = 0.25


@dataclass(slots=True)
class _Supervised:
    matters: bool
    restarts: int = 0
    failures: int = 0  # in a row
    began_at: float = 0.0
    is_waiting: bool = False  # for its restart

    def is_well(self, now: float) -> bool:
        is_steady = not self.is_waiting and now - self.began_at >= STEADY_S
        return self.failures < MAX_FAILURES or is_steady


class Supervisor:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._supervised: dict[str, _Supervised] = {}

    def start(self, name: str, run: Callable[[], Awaitable[None]], *, matters: bool = False) -> asyncio.Task[None]:
        """Run a task until it returns, and again whenever it fails. Without a task that `matters` the gateway is not
        ready. The owner cancels the task that this returns."""
        self._supervised[name] = supervised = _Supervised(matters)
        task = asyncio.get_running_loop().create_task(self._keep_running(name, run, supervised))
        task.add_done_callback(lambda _: self._forget(name, supervised))
        return task

    @property
    def is_well(self) -> bool:
        now = self._clock()
        return all(task.is_well(now) for task in self._supervised.values() if task.matters)

    def restarts(self) -> dict[str, int]:
        """How often each running task was started again."""
        return {name: task.restarts for name, task in self._supervised.items()}

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]], task: _Supervised) -> None:
        while True:
            task.began_at, task.is_waiting = self._clock(), False
            try:
                return await run()
            except Exception as error:
                # Whatever it is, the work has to go on, and what failed is told.
                if self._clock() - task.began_at >= STEADY_S:
                    task.failures = 0
                task.restarts += 1
                task.failures += 1
                task.is_waiting = True
                wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(task.failures - 1, 64))
                log.error("the task %s failed and is started again in %.1f s", name, wait_s, exc_info=error)
            await asyncio.sleep(wait_s)

    def _forget(self, name: str, supervised: _Supervised) -> None:
        if self._supervised.get(name) is supervised:
            del self._supervised[name]


async def measure_lag(observe: Callable[[float], None]) -> None:
    """Tell how late the event loop is: whatever runs on it for long holds up every stream."""
    clock = asyncio.get_running_loop().time
    while True:
        due_at = clock() + LAG_S
        await asyncio.sleep(LAG_S)
        observe(max(0.0, clock() - due_at))
