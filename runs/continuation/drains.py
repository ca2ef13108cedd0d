"""Engines are drained and restarted under streams, which move to the other engine."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from rich.console import Console

from runs.continuation.service import ADMIN, TOPICS, Service, Told

STREAMS = 32  # on the engine that drains
TOKENS = 96
BEGUN = 4  # pieces of each answer that its client has, before the engine is drained
CALLERS = 8  # of the rolling restart
GIVE_UP_S = 180.0


@dataclass
class Drained:
    streams: int = 0
    took_s: float = float("nan")
    failed: int = 0


async def drain_one(service: Service, console: Console) -> Drained:
    """Fill one engine while the other takes no calls, open that one again, and drain the first."""
    await drain(service, 1)
    topics, answers = cycle(TOPICS), [Told(TOKENS) for _ in range(STREAMS)]
    asking = [asyncio.create_task(service.ask_into(told, next(topics), 1.0)) for told in answers]
    async with asyncio.timeout(GIVE_UP_S):
        while min(told.chunks for told in answers) < BEGUN:
            await asyncio.sleep(0.05)
    await drain(service, 1, "--undo")
    drained = Drained(await _streams(service, 0))
    began = time.monotonic()
    await drain(service, 0, "--no-wait")
    with suppress(TimeoutError):
        await until(partial(_streams, service, 0), 0)
        drained.took_s = time.monotonic() - began
    await asyncio.gather(*asking)
    drained.failed = failed(answers)
    moved = sum(one.moves for one in answers)
    console.print(f"drained of {drained.streams} streams in {drained.took_s:.1f} s, {moved} moved", highlight=False)
    await drain(service, 0, "--undo")
    return drained


async def rolling_restart(service: Service, console: Console) -> Drained:
    """Drain, stop, start and open one engine after the other, under callers that call all the time."""
    answers: list[Told] = []
    is_over = asyncio.Event()

    async def call(topics: Iterator[str]) -> None:
        while not is_over.is_set():
            answers.append(await service.ask(next(topics), TOKENS, 1.0))

    callers = [asyncio.create_task(call(cycle(TOPICS[number:] + TOPICS[:number]))) for number in range(CALLERS)]
    began = time.monotonic()
    for number in range(len(service.engines)):
        await drain(service, number)
        await until(partial(_streams, service, number), 0)
        await asyncio.to_thread(service.engines[number].stop)
        await asyncio.to_thread(service.start_again, number)
        await drain(service, number, "--undo")
        while await service.open_replicas() < len(service.engines):
            await asyncio.sleep(0.2)
    is_over.set()
    await asyncio.gather(*callers)
    restarted = Drained(len(answers), time.monotonic() - began, failed(answers))
    console.print(
        f"both restarted in {restarted.took_s:.0f} s under {len(answers)} calls, {restarted.failed} failed",
        highlight=False,
    )
    return restarted


def failed(answers: list[Told]) -> int:
    return sum(bool(one.error) or not one.is_exact for one in answers)


async def drain(service: Service, number: int, *more: str) -> None:
    command = [sys.executable, "-m", "headway", "drain", service.engines[number].url, "--gateway", service.url, *more]
    env = os.environ | {"HEADWAY_ADMIN_KEY": ADMIN}
    done = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.DEVNULL)
    if await done.wait():
        raise SystemExit(f"`{' '.join(command)}` failed")


async def _streams(service: Service, number: int) -> int:
    streams: int = (await service.replicas())[service.engines[number].url]["aboard"]
    return streams


async def until(count: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while await count() != wanted:
            await asyncio.sleep(0.05)
