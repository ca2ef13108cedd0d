"""Tests the express rule on a live gateway against the replicas' own records. See runs/express-live.sh."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from headway.engines.scripted import parse_curve
from headway.engines.scripted.steps import Script
from headway.local.engine_process import free_port
from runs.express.callers import Ended, Plan, call, fast_plan, standard_plan
from runs.express.report import FAULTS, Outcome, report
from runs.measure.machine import require
from runs.measure.streams import gateway, scripted
from runs.measure.witness import Record, read_record, set_faults

console = Console(width=120)
MODEL, SEED = "m", 11
REPLICAS, SEATS = 8, 16
STEP_MS = "1:11.5,16:34"  # 10 ms plus 1.5 per stream: 3,800 tok/s from eight full replicas
FLOOR_TPS, MARGIN = 55.0, 0.1
STANDARD_CALLERS = 160  # more than the 128 seats: standard calls always wait
FAST_PER_S, FAST_CV = 8.0, 2.0
STALL_S = 3.0
READ_EVERY_S = 15.0
FAULT_EVERY = 80  # fast calls: 10 s


class Replica:
    """A scripted engine process that can be killed and restarted on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.records: list[Record] = []  # the last one read of each process that has ended
        self.faulty = asyncio.Lock()
        self._latest: Record | None = None
        self._process = ExitStack()
        self._pid = 0

    def start(self) -> None:
        # More seats than the gateway knows of, so that calls beyond its limit run and are recorded.
        engine = scripted(self.port, model=MODEL, first_token_ms=20, step_ms=STEP_MS, seats=4 * SEATS)
        self._pid = self._process.enter_context(engine)

    def stop(self) -> None:
        self._process.close()

    async def read(self) -> None:
        self._latest = await read_record(self.url)

    def is_idle(self) -> bool:
        return self._latest is not None and not self._latest.running and not self._latest.waiting

    async def kill(self) -> None:
        """Kill the process. Its record is read just before and misses what happens in between."""
        await self.read()
        os.kill(self._pid, signal.SIGKILL)
        self.end_life()
        await asyncio.to_thread(self.stop)

    def end_life(self) -> None:
        assert self._latest is not None
        self.records.append(self._latest)


@dataclass
class Run:
    """The state that load and faults share."""

    port: int
    replicas: list[Replica]
    fast_calls: int  # the load ends when these are sent
    fast_sent: int = 0
    fast: list[Ended] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (tier, how it ended) -> calls
    sent: int = 0
    cut_at: list[float] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)  # what, from, until

    async def call(self, plan: Plan) -> Ended:
        self.sent += 1
        ended = await call(self.port, MODEL, plan)
        tier = plan.tier if plan.tier == "standard" or ended.tier_served != "standard" else "fast, served as standard"
        self.counts[tier, ended.how] += 1
        if plan.tier == "fast":
            self.fast.append(ended)
        if ended.how == "cut":
            self.cut_at.append(ended.at)
        elif ended.how == "unexplained":
            self.unexplained.append(ended.words)
        return ended


# --- load ------------------------------------------------------------------------------------------------------------


async def standard_caller(run: Run, chance: random.Random) -> None:
    while run.fast_sent < run.fast_calls:
        ended = await run.call(standard_plan(chance))
        if ended.how == "refused":
            await asyncio.sleep(0.2)


async def fast_callers(run: Run, chance: random.Random) -> None:
    """Bursty arrivals that do not wait for earlier calls to end."""
    calls = set[asyncio.Task[Ended]]()
    shape = 1 / FAST_CV**2
    while run.fast_sent < run.fast_calls:
        run.fast_sent += 1
        task = asyncio.create_task(run.call(fast_plan(chance)))
        calls.add(task)
        task.add_done_callback(calls.discard)
        await asyncio.sleep(chance.gammavariate(shape, 1 / shape) / FAST_PER_S)
    await asyncio.gather(*calls)


# --- faults ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    kind: str
    at: int  # number of fast calls sent before it happens
    lasts_s: float
    replica: int
    faults: dict[str, object]  # settings sent to the replica; empty if it is killed


def plan_faults(fast_calls: int, chance: random.Random) -> Iterator[Fault]:
    """Every kind once in a random order, repeated until the load ends. Drawn in advance, so that the seed decides."""
    every = min(FAULT_EVERY, fast_calls / 8)
    at = every
    while True:
        for kind in chance.sample(FAULTS, len(FAULTS)):
            if at > fast_calls - every:
                return
            faults: dict[str, dict[str, object]] = {
                "stalls": {"hang_after_tokens": 0},
                "answers 503": {"refuse": True},
                "drops streams": {"die_after_tokens": chance.randint(0, 40), "times": chance.randint(3, 10)},
                "slow": {"slow_factor": 1.6},
            }
            lasts_s = chance.uniform(2.0, 5.0) + (STALL_S if kind == "stalls" else 0.0)  # until the gateway notices
            yield Fault(kind, round(at), lasts_s, chance.randrange(REPLICAS), faults.get(kind, {}))
            at += every * chance.uniform(0.8, 1.2)


async def one_fault(run: Run, fault: Fault) -> None:
    replica = run.replicas[fault.replica]
    async with replica.faulty:  # one at a time
        began = time.monotonic()
        if fault.faults:
            await set_faults(replica.url, **fault.faults)
            await asyncio.sleep(fault.lasts_s)
            await set_faults(replica.url)
        else:
            await replica.kill()
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(replica.start)
        run.faults.append((fault.kind, began, time.monotonic()))


async def faults(run: Run, chance: random.Random) -> None:
    async with asyncio.TaskGroup() as group:
        for fault in plan_faults(run.fast_calls, chance):
            while run.fast_sent < fault.at:
                await asyncio.sleep(0.05)
            group.create_task(one_fault(run, fault))


# --- the run ---------------------------------------------------------------------------------------------------------


async def read_now_and_then(run: Run) -> None:
    """Read the records regularly, in case a replica dies by itself; those that we kill are read just before."""
    while True:
        await asyncio.sleep(READ_EVERY_S)
        for replica in run.replicas:
            if not replica.faulty.locked():
                with suppress(OSError, HTTPException):  # it was killed while it was read
                    await replica.read()


async def show_progress(run: Run) -> None:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=run.fast_calls)
        while True:
            what = f"{run.counts.total():,} calls ended, {len(run.faults)} faults"
            progress.update(bar, completed=run.fast_sent, description=what)
            await asyncio.sleep(0.5)


async def load_and_faults(port: int, replicas: list[Replica], fast_calls: int) -> Run:
    run = Run(port, replicas, fast_calls)
    async with AsyncExitStack() as stack:
        for background in (read_now_and_then(run), show_progress(run)):
            stack.callback(asyncio.create_task(background).cancel)
        async with asyncio.TaskGroup() as group:
            for number in range(STANDARD_CALLERS):
                group.create_task(standard_caller(run, random.Random(f"standard {number} {SEED}")))
            group.create_task(fast_callers(run, random.Random(f"fast {SEED}")))
            group.create_task(faults(run, random.Random(f"faults {SEED}")))
    for replica in replicas:
        with suppress(TimeoutError):
            async with asyncio.timeout(60):  # an engine that is not idle by then is in the report
                while True:
                    await replica.read()
                    if replica.is_idle():
                        break
                    await asyncio.sleep(0.1)
        replica.end_life()
    return run


def express_limit() -> int:
    """The largest batch that keeps the floor with its margin, from the replicas' script, not the gateway's code."""
    script = Script(step_s=parse_curve(STEP_MS))
    return max(batch for batch in range(1, SEATS + 1) if 1 / script.step_time_s(batch) >= FLOOR_TPS * (1 + MARGIN))


def main(fast_calls: int) -> int:
    # A gateway that does not run cannot stamp tokens in time, and its proofs would differ from the replicas' records.
    require(console, free_cores=True)
    script = Script(step_s=parse_curve(STEP_MS))
    curve = f"curve = {[[batch, round(1 / script.step_time_s(batch), 4)] for batch in (1, 4, 8, SEATS)]}"
    tiers = '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "fast"\n'
    tiers += f"floor_tps = {FLOOR_TPS}\nmax_hold_s = 1.5\n"
    replicas = [Replica() for _ in range(REPLICAS)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with console.status(f"starting {REPLICAS} replicas and a gateway"):
            for replica in replicas:
                replica.start()
                stack.callback(replica.stop)
            port, urls = free_port(), [replica.url for replica in replicas]
            timing = f"stall_s = {STALL_S}\ndrain_timeout_s = 5.0"
            stack.enter_context(
                gateway(
                    port, folder, model=MODEL, engine_urls=urls, seats=SEATS, tiers=tiers, curve=curve, timing=timing
                )
            )
        run = uvloop.run(load_and_faults(port, replicas, fast_calls))
    records = [record for replica in replicas for record in replica.records]
    left_over = sum(replica.records[-1].running + replica.records[-1].waiting for replica in replicas)
    outcome = Outcome(run.sent, run.counts, run.fast, run.cut_at, run.unexplained, run.faults, records, left_over)
    console.print(
        f"{fast_calls:,} fast calls, {len(run.faults)} faults, seed {SEED}; {REPLICAS} replicas of {SEATS} seats, "
        f"{STEP_MS} ms a step"
    )
    return report(console, outcome, FLOOR_TPS, express_limit(), SEATS, STALL_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_400))
