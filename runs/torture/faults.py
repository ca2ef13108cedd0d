"""Causes the faults of a plan, each when a given number of streams has begun.

Several run at once, as many as the cell can survive: at_engines.py, at_relays.py and at_stores.py know how many.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from runs.torture.at_engines import AtEngines
from runs.torture.at_relays import AtDispatchers, AtRelays
from runs.torture.at_stores import AtStores
from runs.torture.callers import Callers
from runs.torture.cell import TortureCell
from runs.torture.judge import Done
from runs.torture.plan import Fault

Cause = Callable[[str, Fault, random.Random], Awaitable[Done]]


class Faults:
    def __init__(self, cell: TortureCell, callers: Callers) -> None:
        self.done: list[Done] = []
        self.engines = AtEngines(cell)
        self._callers = callers
        self.relays = relays = AtRelays(cell)
        dispatchers = AtDispatchers(cell)
        stores = AtStores(cell, relays.lock)
        self._causes: dict[str, Cause] = {
            "engine": self.engines.cause,
            "relay": relays.cause,
            "link": relays.at_link,
            "leader": dispatchers.cause,
            "standby": dispatchers.cause,
            "database": stores.at_database,
            "balancer": stores.at_balancer,
            "names": stores.at_names,
            "certificate": stores.at_certificate,
            "configuration": stores.at_configuration,
            "key": stores.at_key,
        }

    async def run(self, plan: list[Fault]) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                while self._callers.started < fault.at and not self._callers.is_over:
                    await asyncio.sleep(0.01)
                if self._callers.is_over:
                    return
                group.create_task(self._cause(fault))

    async def _cause(self, fault: Fault) -> None:
        family, _, what = fault.kind.partition(" ")
        self.done.append(await self._causes[family](what, fault, random.Random(fault.dice)))
