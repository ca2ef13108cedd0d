"""Plays the phases of runs/overload.sh on a cell. It is judged when all calls have ended."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from runs.measure.growth import waited_s
from runs.measure.streams import cpu_seconds
from runs.torture.overload_callers import Callers, Made, arrivals
from runs.torture.overload_cell import FLOODING, FORBIDDEN, TENANTS, TOKENS, OverloadCell
from runs.torture.overload_judge import Phase
from runs.torture.overload_sdk import PHASE as STORM_NAME

CLOSED = {"standard": 72, "fast": 24}  # callers that keep every seat taken
CAPACITY, IDLE = Phase("capacity", 0.0, 24.0), Phase("idle", 0.0, 12.0)
PROBES_PER_S, IDLE_PROBES_PER_S = 5.0, 25.0
HALF = Phase("0.5 times", 0.5, after_s=0.0)
TEN = Phase("10 times", 10.0)
LOADS = (HALF, *(Phase(f"{times:g} times", times) for times in (1.0, 1.5, 2.0, 5.0)), TEN)
BURSTS = Phase("10 times, in bursts", 10.0, cv=4.0)
STORM = Phase(STORM_NAME, 4.0, retries=2, sdk_per_s=20.0, after_s=14.0)  # with the retries, 10 times in attempts
SLOW = Phase("slow readers", 0.4, slow=0.4)
FLOOD = Phase("one tenant's flood", 0.5, flood=10.0)
PHASES = (*LOADS, BURSTS, STORM, SLOW, FLOOD)


@dataclass(frozen=True)
class Played:
    phase: Phase
    since_s: float
    busy: float  # share of a core that the callers took
    waiting: float  # share of the time in which they had no core and wanted one
    idle: float  # share of the machine's cores that nobody used


class Used(NamedTuple):
    """Seconds since some time in the past."""

    busy: float  # of this process
    waiting: float
    idle: float  # of all cores

    @classmethod
    def now(cls) -> Used:
        ticks = int(Path("/proc/stat").read_text().split()[4])
        return cls(cpu_seconds(os.getpid()), waited_s(os.getpid()), ticks / os.sysconf("SC_CLK_TCK"))


@dataclass
class Player:
    cell: OverloadCell
    seed: int
    tell: Callable[[str], None]
    capacity: float = 0.0
    played: list[Played] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.callers = Callers(self.cell.port, self.cell.relay_ports)

    async def play(self) -> list[Made]:
        await self._measure_capacity()
        await asyncio.sleep(3.0)
        self.tell(IDLE.name)
        since_s = time.monotonic()
        await self._probe(IDLE, since_s, IDLE_PROBES_PER_S)
        for phase in PHASES:
            self.tell(phase.name)
            await self._play(phase)
        self.tell("waiting for the last calls")
        await self.callers.all_ended()
        return self.callers.made

    async def _measure_capacity(self) -> None:
        """By callers without pauses, a few more than there are seats."""
        self.tell("measuring the capacity")
        since_s = time.monotonic()
        until_s, chance = since_s + CAPACITY.for_s, random.Random(f"closed {self.seed}")

        async def one(tier: str) -> None:
            while (now := time.monotonic()) < until_s:
                made = Made(CAPACITY.name, "call", chance.choice(TENANTS), tier, chance.randint(*TOKENS), now, now)
                await self.callers.call(made)
                if made.how != "complete":
                    await asyncio.sleep(0.1)

        await asyncio.gather(*[one(tier) for tier, count in CLOSED.items() for _ in range(count)])
        from_s = since_s + CAPACITY.for_s / 4
        ended = sum(one.how == "complete" and from_s <= one.ended_s < until_s for one in self.callers.made)
        self.capacity = ended / (until_s - from_s)

    async def _play(self, phase: Phase) -> None:
        capacity = self.capacity
        sdk = await self._start_sdk(phase) if phase.sdk_per_s else None
        since_s, before = time.monotonic(), Used.now()
        if sdk is not None and sdk.stdin is not None:
            sdk.stdin.write(f"{since_s}\n".encode())
        await asyncio.gather(
            self._offer(phase, "call", since_s, phase.times * capacity - phase.sdk_per_s),
            self._offer(phase, "flood", since_s, phase.flood * capacity),
            self._offer(phase, "slow", since_s, phase.slow * capacity),
            self._probe(phase, since_s, PROBES_PER_S),
        )
        took_s = time.monotonic() - since_s
        used = Used.now()
        shares = [(now - then) / took_s for now, then in zip(used, before, strict=True)]
        self.played.append(Played(phase, since_s, shares[0], shares[1], shares[2] / len(os.sched_getaffinity(0))))
        after, ended_s = phase.after, since_s + phase.for_s
        await asyncio.gather(
            self._offer(after, "call", ended_s, after.times * capacity), self._probe(after, ended_s, PROBES_PER_S)
        )
        if sdk is not None:
            printed, _ = await sdk.communicate()
            self.callers.made += msgspec.json.decode(printed, type=list[Made])

    async def _offer(self, phase: Phase, what: str, since_s: float, per_s: float) -> None:
        tenant = FLOODING if what == "flood" else ""
        for one in arrivals(f"{self.seed} {phase.name} {what}", per_s, phase.for_s, phase.cv, tenant):
            due_s = since_s + one.at_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            made = Made(phase.name, what, one.tenant, one.tier, one.tokens, due_s, due_s)
            self.callers.start(made, phase.retries)
        await asyncio.sleep(max(0.0, since_s + phase.for_s - time.monotonic()))

    async def _probe(self, phase: Phase, since_s: float, per_s: float) -> None:
        """Calls of a key that is over its limit, at even distances."""
        for number in range(int(phase.for_s * per_s)):
            due_s = since_s + number / per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self.callers.start(Made(phase.name, "probe", FORBIDDEN, "standard", TOKENS[0], due_s, due_s))

    async def _start_sdk(self, phase: Phase) -> asyncio.subprocess.Process:
        words = [self.cell.port, f"{self.seed} sdk", phase.sdk_per_s, phase.for_s]
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "runs.torture.overload_sdk",
            *map(str, words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await asyncio.sleep(6.0)  # it imports the SDK
        return started
