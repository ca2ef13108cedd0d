"""Causes one fault in a cell whose engines Ray holds, and ends it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from headway.errors import SetupError
from runs.failover.callers import Callers
from runs.failover.cell import REPLICAS
from runs.failover.faults import Faults
from runs.failover.judge import Done
from runs.failover.plan import Fault
from runs.fleet.held_cell import HeldCell
from runs.fleet.ray_nodes import Placed

RELAYS = ("relay-1", "relay-2")
ENGINE = "runs.fleet.journal_engine"
ENOUGH = REPLICAS * 2 // 3  # open replicas, before the next fault

# Share of each kind, in per cent.
KINDS = {
    "engine killed": 28,
    "actor killed": 15,
    "engine stopped": 12,
    "raylet killed": 6,
    "node killed": 4,
    "head killed": 4,
    "node cut off": 7,
    "engine drained": 10,
    "scaled in, then out": 4,
    "leader killed": 5,
    "relay killed": 5,
}


def plan(seed: int, faults: int) -> list[Fault]:
    chance = random.Random(f"fleet {seed}")
    drawn = chance.choices(list(KINDS), list(KINDS.values()), k=faults)
    return [Fault(kind, chance.choice(RELAYS), chance.uniform(0.5, 5.0), chance.uniform(0.0, 1.0)) for kind in drawn]


@dataclass
class FleetFaults:
    cell: HeldCell
    callers: Callers
    seed: int
    done: list[Done] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"whom {self.seed}")
        self._in_cell = Faults(self.cell, self.callers)

    async def cause(self, fault: Fault) -> None:
        kind = fault.kind
        from_s = time.monotonic()
        if kind in ("leader killed", "relay killed"):
            await self._in_cell.cause(fault)
            self.done.append(self._in_cell.done[-1])
            self.stuck += self._in_cell.stuck
            self._in_cell.stuck = []
        else:
            who = await self._cause(kind, fault.lasts_s)
            self.done.append(Done(kind, who, from_s, time.monotonic()))
        if not await self.cell.until_open(min(ENOUGH, self.cell.count)):
            self.stuck.append(f"{kind}: too few replicas are open")
        await asyncio.sleep(fault.then_s)

    async def _cause(self, kind: str, lasts_s: float) -> str:
        """Returns whom: URLs for engines, addresses for nodes."""
        nodes = self.cell.nodes.nodes
        running = [node for node in nodes if node.is_running]
        if kind in ("engine killed", "engine stopped", "actor killed"):
            if (engine := self._any_engine()) is None:
                return "nobody"
            with suppress(ProcessLookupError):
                if kind == "engine stopped":
                    os.kill(engine.engine_pid, signal.SIGSTOP)
                    await asyncio.sleep(lasts_s)
                    os.kill(engine.engine_pid, signal.SIGCONT)
                else:
                    os.kill(engine.holder_pid if kind == "actor killed" else engine.engine_pid, signal.SIGKILL)
            return engine.url
        if kind == "head killed":
            nodes[0].kill()
            await asyncio.sleep(lasts_s)
            return nodes[0].address
        if kind in ("raylet killed", "node killed", "node cut off"):
            node = self._chance.choice([one for one in running if one.number] or nodes[1:])
            if kind == "raylet killed":
                node.signal("raylet/raylet", signal.SIGKILL)
            elif kind == "node killed":
                node.kill()
            else:
                node.cut(is_cut=True)
            await asyncio.sleep(lasts_s)
            node.cut(is_cut=False)
            return node.address
        if kind == "engine drained":
            return await self._drain(lasts_s)
        self.cell.write_fleet(REPLICAS - 4)
        await self.cell.place()
        await asyncio.sleep(lasts_s)
        self.cell.write_fleet(REPLICAS)
        await self.cell.place()
        return "fleet"

    def _any_engine(self) -> Placed | None:
        found = [one for node in self.cell.nodes.nodes for one in node.placed(ENGINE, _port_of) if one.holder_pid]
        return self._chance.choice(sorted(found, key=lambda one: one.url)) if found else None

    async def _drain(self, lasts_s: float) -> str:
        try:
            rows = await self.cell.rows()
            open_now = sorted(url for url, state in rows.items() if state == "open")
            url = self._chance.choice(open_now)
            await self.cell.drain(url, is_undone=False)
            await asyncio.sleep(lasts_s)
            await self.cell.drain(url, is_undone=True)
        except SetupError:
            return "nobody"
        return url


def _port_of(command: list[str]) -> int:
    """An engine's arguments begin with a folder, its address and its port."""
    return int(command[command.index(ENGINE) + 3])
