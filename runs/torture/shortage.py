"""What a process needs runs short while it runs: file descriptors, memory, CPU. Each ends with its block."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count, islice
from pathlib import Path

PERIOD_S = 0.1  # of a slow process: it runs for a part of each


@contextmanager
def few_descriptors(pid: int, spare: int = 2) -> Iterator[None]:
    """Let a process open only a few more descriptors. It keeps those that it has, and can reuse most that it closes."""
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    free = (number for number in count() if number not in taken)
    with _limit(pid, resource.RLIMIT_NOFILE, next(islice(free, spare, None))):
        yield


@contextmanager
def little_memory(pid: int, spare_bytes: int = 4 * 2**20) -> Iterator[None]:
    """Let a process map no more memory than it has, and a little."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    with _limit(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + spare_bytes):
        yield


@asynccontextmanager
async def slow_process(pid: int, share: float) -> AsyncIterator[None]:
    """Let a process run for this share of the time."""

    async def alternate() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(PERIOD_S * (1 - share))
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(PERIOD_S * share)

    task = asyncio.create_task(alternate())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ProcessLookupError):
            await task
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def _limit(pid: int, kind: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may not have survived
            resource.prlimit(pid, kind, before)
