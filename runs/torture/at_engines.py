"""Faults of engines, and of the ways to them. Each engine has one at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial

import msgspec

from runs.measure.fetch import fetch
from runs.measure.witness import set_faults
from runs.torture.cell import TortureCell
from runs.torture.engine_lies import KINDS as LIES
from runs.torture.judge import Done
from runs.torture.links import FaultyLink, break_for_a_while
from runs.torture.plan import Fault
from runs.torture.processes import stand, start_until_listening

AT_ONCE = 3


class AtEngines:
    def __init__(self, cell: TortureCell) -> None:
        self.died_s: dict[str, list[float]] = {}
        self._cell = cell
        self._free = asyncio.Semaphore(AT_ONCE)
        self._busy = set[str]()

    async def cause(self, what: str, fault: Fault, chance: random.Random) -> Done:
        async with self._free:
            url = chance.choice([url for url in self._cell.engines if url not in self._busy])
            self._busy.add(url)
            from_s = time.monotonic()
            if what.startswith("link"):
                effects = ["stands"]  # what is under way there arrives late
                effects += ["lies"] if what == "link corrupt" else []
                await self._at_link(url, what, fault, chance)
            elif what == "killed":
                effects = ["dies"]
                await self._kill(url)
            elif what == "stopped":
                effects = ["stands"]
                await stand(self._cell.engines[url], fault.lasts_s)
            elif what in LIES:
                effects = ["fails"]  # which calls it lies to, it writes down itself
                await self._lie(url, what, fault, chance)
            else:
                effects = ["fails"]
                await self._set(url, what, fault, chance)
            self._busy.discard(url)
            return Done(fault.kind, [url], effects, from_s, time.monotonic())

    async def _kill(self, url: str) -> None:
        engine = self._cell.engines[url]
        await engine.kill()
        self.died_s.setdefault(url, []).append(time.monotonic())
        await start_until_listening(engine)

    async def _at_link(self, url: str, what: str, fault: Fault, chance: random.Random) -> None:
        causes: dict[str, Callable[[FaultyLink], None]] = {
            "link closed": FaultyLink.close,
            "link frozen": FaultyLink.freeze,
            "link slow": partial(
                FaultyLink.slow,
                delay_s=chance.uniform(0.0, 0.05),
                bytes_per_s=chance.uniform(5_000, 100_000),
                split=chance.randint(1, 50),
            ),
            "link truncated": partial(FaultyLink.truncate, after_bytes=chance.randint(0, 4_000)),
            "link corrupt": partial(FaultyLink.corrupt, chance=chance, rate=1 / chance.randint(500, 5_000)),
        }
        await break_for_a_while([self._cell.engine_links[url]], causes[what], fault.lasts_s)

    async def _lie(self, url: str, what: str, fault: Fault, chance: random.Random) -> None:
        lie = {"kind": what, "share": chance.uniform(0.1, 1.0), "seed": fault.dice}
        for told in (lie, {}):
            await asyncio.to_thread(fetch, f"{url}/scripted/lie", msgspec.json.encode(told))
            await asyncio.sleep(fault.lasts_s)

    async def _set(self, url: str, what: str, fault: Fault, chance: random.Random) -> None:
        settings: dict[str, dict[str, object]] = {
            "slow": {"slow_factor": chance.uniform(1.3, 3.0)},
            "drops streams": {"die_after_tokens": chance.randint(1, 20), "times": chance.randint(1, 6)},
            "dies before answers": {"die_after_tokens": 0, "times": chance.randint(1, 4)},
            "hangs": {"hang_after_tokens": chance.randint(0, 10)},
            "refuses": {"refuse": True},
        }
        await set_faults(url, **settings[what])
        await asyncio.sleep(fault.lasts_s)
        await set_faults(url)
