"""What is still there some time after the last call: requests on engines, seats, held calls, tasks, sockets, files.

Compared with what the idle cell had before the first call. A process that was started again meanwhile is compared with
the first one of its name.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http.client import HTTPException

import msgspec

from runs.measure.fetch import fetch
from runs.torture.cell import ADMIN, OWNER, TortureCell

SETTLED_S = 60.0
MORE_FILES, MORE_TASKS = 8, 4  # one connection to each engine, which probes use; a task that begins just now
METRIC = re.compile(r"^(headway_\w+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


class _Page(msgspec.Struct):
    running: int
    waiting: int


class _Replica(msgspec.Struct):
    url: str
    aboard: int


class _Replicas(msgspec.Struct):
    replicas: list[_Replica]


class Idle(msgspec.Struct):
    """What an idle relay has."""

    files: int
    tasks: int


async def idle_relays(cell: TortureCell) -> dict[str, Idle]:
    found = {}
    for name, relay in cell.relays.items():
        metrics = await asyncio.to_thread(_metrics, relay.port)
        found[name] = Idle(_files(relay.pid), int(metrics["headway_tasks"]))
    return found


async def left_over(cell: TortureCell, before: Mapping[str, Idle]) -> list[str]:
    """Waits until nothing is, for a limited time."""
    checks: tuple[Callable[[], Awaitable[list[str]]], ...] = (
        lambda: _on_engines(cell),
        lambda: _in_relays(cell, before),
        lambda: _seats(cell),
    )
    deadline = time.monotonic() + SETTLED_S
    while True:
        left = [words for check in checks for words in await check()]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


async def _on_engines(cell: TortureCell) -> list[str]:
    left = []
    for url in cell.engines:
        page = msgspec.json.decode(await asyncio.to_thread(fetch, url + "/scripted/record"), type=_Page)
        if page.running + page.waiting:
            left.append(f"{page.running + page.waiting} requests on {url}")
    return left


async def _in_relays(cell: TortureCell, before: Mapping[str, Idle]) -> list[str]:
    left = []
    for name, relay in cell.relays.items():
        metrics = await asyncio.to_thread(_metrics, relay.port)
        files, tasks = _files(relay.pid) - before[name].files, int(metrics["headway_tasks"]) - before[name].tasks
        if files > MORE_FILES:
            left.append(f"{files} open files more in {name}")
        if tasks > MORE_TASKS:
            left.append(f"{tasks} tasks more in {name}")
        if sockets := int(metrics["headway_sockets"]):
            left.append(f"{sockets} WebSockets in {name}")
    return left


async def _seats(cell: TortureCell) -> list[str]:
    relay = next(iter(cell.relays.values()))
    try:
        page = await asyncio.to_thread(_ask, relay.port, "/admin/replicas", ADMIN)
    except (OSError, HTTPException) as error:
        return [f"the seats are not told: {error}"]
    replicas = msgspec.json.decode(page, type=_Replicas).replicas
    return [f"{one.aboard} seats of {one.url}" for one in replicas if one.aboard]


def _metrics(port: int) -> dict[str, float]:
    """The sum over all labels."""
    sums: dict[str, float] = {}
    for name, value in METRIC.findall(_ask(port, "/metrics", OWNER).decode()):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def _ask(port: int, path: str, key: str) -> bytes:
    return fetch(f"http://127.0.0.1:{port}{path}", key=key)


def _files(pid: int) -> int:
    with suppress(FileNotFoundError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0
