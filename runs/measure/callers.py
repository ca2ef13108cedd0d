"""Callers that keep a server under load: each calls again as soon as it has its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from runs.measure.streams import ChatRequest, Stream, call


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
