"""Callers that keep a server under load: each calls again as soon as it has its answer. And the end of a run in which
they wait for too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

import uvloop
from rich.console import Console

from runs.measure.machine import too_slow
from runs.measure.streams import CALL_TIMEOUT_S, ChatRequest, Stream, call

Result = TypeVar("Result")


@dataclass
class Callers:
    done: list[Stream] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def until(self, more: int) -> list[Stream]:
        """Wait for `more` further answers and return them. Re-raises the exception of a failed caller."""
        before = len(self.done)
        while len(self.done) < before + more:
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)
        return self.done[before:]


@contextlib.asynccontextmanager
async def load(url: str, next_request: Callable[[], ChatRequest], streams: int) -> AsyncIterator[Callers]:
    callers = Callers()

    async def one() -> None:
        while True:
            stream = await call(url, next_request())
            if stream.complete:
                callers.done.append(stream)
            else:
                await asyncio.sleep(0.1)

    callers.tasks = [asyncio.create_task(one()) for _ in range(streams)]
    try:
        yield callers
    finally:
        for task in callers.tasks:
            task.cancel()
        await asyncio.gather(*callers.tasks, return_exceptions=True)


def in_time(console: Console, part: Coroutine[None, None, Result]) -> Result:
    """Run a part of a measurement. A call that times out ends the run as too slow, not as a missed bar."""
    try:
        return uvloop.run(part)
    except TimeoutError:
        too_slow(console, f"a call took longer than {CALL_TIMEOUT_S:.0f} s")
