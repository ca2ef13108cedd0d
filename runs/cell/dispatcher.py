"""How many calls one dispatcher decides for, with a load generator that speaks the link. See runs/dispatcher.sh.

The generator is all relays at once, on the other core: it says that replicas are up, lets calls arrive, delivers and
finishes them, and reports replicas on which a stream falls behind. No token is carried. First as many calls as the
dispatcher takes, a number of them under way all the time: calls per second of its CPU time. Then half of the bar, by a
schedule: the time from `Arrived` to `Board`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

import headway.core.machine
from headway.bench.load import quantile
from headway.core.types import (
    Arrived,
    Board,
    Call,
    Delivering,
    Finished,
    ReplicaBehind,
    ReplicaRecovered,
    ReplicaUp,
    Settled,
    Tier,
)
from headway.dispatch.address import UnixAddress
from headway.dispatch.endpoints import connect
from headway.dispatch.frames import (
    PROTOCOL,
    Actions,
    Beat,
    Count,
    Counted,
    FromDispatcher,
    Hello,
    Probe,
    Reported,
    Welcome,
)
from headway.dispatch.link import Link
from headway.dispatch.relay_session import BEAT_S
from headway.errors import ConnectionFailed
from runs.cell.one_dispatcher import MODEL, relay_name, replica
from runs.measure.machine import require
from runs.measure.streams import cpu_seconds, resident_kib
from runs.measure.verdict import Verdict, at_least, at_most, finish

console = Console(width=110)
REPLICAS, RELAYS = 10_000, 64
UNDER_WAY = 20_000  # calls, all the time
ALIVE_S = 1.0  # of a call of the schedule, from its boarding to its end
SPEED_TPS, NOISE = 118.0, 0.03  # of streams: that of nearly empty replicas by their curve
PACE_REPORTS_PER_S = 500
SECONDS, WARM_UP_S = 20.0, 5.0
MIN_CALLS_PER_S, MAX_BOARDING_S = 20_000, 0.005
OPEN_S = 120.0


class OneRelay:
    """A link of the generator. `numbers` are by name of replica."""

    def __init__(self, load: Load, link: Link) -> None:
        self.link = link
        self._load = load
        link.send(Hello(PROTOCOL, relay_name(len(load.relays)), f"run-{len(load.relays)}"))
        load.relays.append(self)

    def on_message(self, message: FromDispatcher) -> None:
        if isinstance(message, Actions):
            for action in message.actions:
                if isinstance(action, Board):
                    self._load.boarded(self, action)
                elif isinstance(action, Settled):
                    self._load.settled(self)
        elif isinstance(message, Welcome):
            self.link.send(Reported())
        elif isinstance(message, Count):
            self.link.send(Counted(message.replica, 0))
            self._load.opened.add(message.replica)
        elif isinstance(message, Probe):
            for name, _ in message.replicas:
                self.link.tell(ReplicaUp(self._load.fleet[name]))

    def on_lost(self, reason: str) -> None:
        if not self._load.is_over:
            raise RuntimeError(f"a link was lost: {reason}")


class Load:
    def __init__(self, replicas: int) -> None:
        self.relays: list[OneRelay] = []
        self.fleet = {one.name: one for one in map(replica, range(replicas))}
        self.opened: set[str] = set()  # replicas that the dispatcher has asked about
        self.done = 0
        self.is_over = False
        self.boarding_s: list[float] = []
        self._names = list(self.fleet)
        self._dice = random.Random(1)
        self._number = 0
        self._arrived: dict[str, float] = {}
        self._is_closed_loop = True

    async def open(self, path: Path, relays: int, *, is_asked: bool = True) -> None:
        """Connect, and wait until the dispatcher has asked about every replica, if it does."""
        until = time.monotonic() + OPEN_S
        self._beating = asyncio.create_task(self._beat())
        while not path.exists() and time.monotonic() < until:
            await asyncio.sleep(0.05)
        while len(self.relays) < relays:
            try:
                await connect(UnixAddress(path), lambda link: OneRelay(self, link), None)
            except ConnectionFailed:
                await asyncio.sleep(0.05)
        while is_asked and len(self.opened) < len(self.fleet):
            if time.monotonic() > until:
                raise RuntimeError(f"{len(self.opened)} of {len(self.fleet)} replicas are open after {OPEN_S} s")
            await asyncio.sleep(0.05)

    # --- calls ---

    def arrive(self, relay: OneRelay) -> None:
        self._number += 1
        draw = self._number % 100
        tier: Tier = "standard" if draw < 80 else "fast" if draw < 95 else "flex"
        call = Call(f"{self._number:032x}", MODEL, tier, f"tenant-{self._number % 50}", prompt_tokens=500)
        self._arrived[call.id] = time.perf_counter()
        relay.link.tell(Arrived(call))

    def boarded(self, relay: OneRelay, action: Board) -> None:
        self.boarding_s.append(time.perf_counter() - self._arrived.pop(action.call_id))
        if action.tier == "flex":  # as remote.py does
            relay.link.tell(Delivering(action.call_id))
        finished = Finished(action.call_id, 500, 200, self._dice.gauss(SPEED_TPS, NOISE * SPEED_TPS))
        if self._is_closed_loop:
            relay.link.tell(finished)
        else:
            asyncio.get_running_loop().call_later(ALIVE_S, relay.link.tell, finished)

    def settled(self, relay: OneRelay) -> None:
        self.done += 1
        if self._is_closed_loop and not self.is_over:
            self.arrive(relay)

    async def as_many_as_it_takes(self, pid: int) -> tuple[int, float]:
        """Returns the calls that ended and the dispatcher's CPU seconds, after the warm-up."""
        for number in range(UNDER_WAY):
            self.arrive(self.relays[number % len(self.relays)])
        await asyncio.sleep(WARM_UP_S)
        done, cpu_s = self.done, cpu_seconds(pid)
        await asyncio.sleep(SECONDS)
        return self.done - done, cpu_seconds(pid) - cpu_s

    async def by_schedule(self, calls_per_s: float, seconds: float = SECONDS, warm_up_s: float = WARM_UP_S) -> None:
        self._is_closed_loop = False
        begin, sent = time.perf_counter(), 0
        while (passed := time.perf_counter() - begin) < warm_up_s + seconds:
            while sent < passed * calls_per_s:
                self.arrive(self.relays[sent % len(self.relays)])
                sent += 1
            if passed < warm_up_s:
                self.boarding_s.clear()
            await asyncio.sleep(0.001)

    async def report_paces(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            for _ in range(PACE_REPORTS_PER_S // 200):
                relay, name = self._dice.choice(self.relays), self._dice.choice(self._names)
                relay.link.tell(ReplicaBehind(name))
                relay.link.tell(ReplicaRecovered(name))

    async def _beat(self) -> None:
        number = 0
        while not self.is_over:
            for relay in self.relays:
                relay.link.send(Beat(number + 1, number))
            number += 1
            await asyncio.sleep(BEAT_S)


@dataclass(frozen=True)
class Figures:
    calls_per_cpu_s: float
    boarding_p50_s: float
    boarding_p99_s: float
    cpu_share: float  # of a core, by the dispatcher, at that rate
    generator_share: float
    bytes_per_call: float  # aboard
    bytes_per_replica: float
    is_compiled: bool


@contextmanager
def one_dispatcher(path: Path, replicas: int, relays: int, *kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """`kind` is "echo" for one that only boards."""
    command = [sys.executable, "-m", "runs.cell.one_dispatcher", str(path), str(replicas), str(relays), *kind]
    process = subprocess.Popen(command)
    os.sched_setaffinity(process.pid, {0})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


async def saturate(path: Path, pid: int, before_kib: int) -> tuple[float, float]:
    """Returns calls per second of CPU, and bytes per replica."""
    load = Load(REPLICAS)
    await load.open(path, RELAYS)
    per_replica = (resident_kib(pid) - before_kib) * 1024 / REPLICAS
    reporting = asyncio.create_task(load.report_paces())
    done, cpu_s = await load.as_many_as_it_takes(pid)
    load.is_over = True
    reporting.cancel()
    return done / cpu_s, per_replica


async def follow_schedule(path: Path, pid: int) -> tuple[list[float], tuple[float, float], float]:
    """Returns the times to board, the shares of a core of dispatcher and generator, and bytes per call aboard."""
    load = Load(REPLICAS)
    await load.open(path, RELAYS)
    before_kib = resident_kib(pid)
    reporting = asyncio.create_task(load.report_paces())
    began_at, cpu_s, own_s = time.perf_counter(), cpu_seconds(pid), time.process_time()
    await load.by_schedule(MIN_CALLS_PER_S / 2)
    took_s = time.perf_counter() - began_at
    shares = (cpu_seconds(pid) - cpu_s) / took_s, (time.process_time() - own_s) / took_s
    per_call = (resident_kib(pid) - before_kib) * 1024 / (MIN_CALLS_PER_S / 2 * ALIVE_S)
    load.is_over = True
    reporting.cancel()
    return load.boarding_s, shares, per_call


def measure() -> Figures:
    os.sched_setaffinity(0, {1})
    gc.disable()  # with that many calls under way a collection lasts up to 19 ms, which would count as boarding
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell" / "dispatcher"
        with one_dispatcher(path.with_name("empty"), 1, RELAYS) as process:
            while not path.with_name("empty").exists():
                time.sleep(0.05)
            empty_kib = resident_kib(process.pid)
        with console.status("as many calls as it takes"), one_dispatcher(path, REPLICAS, RELAYS) as process:
            calls_per_s, per_replica = uvloop.run(saturate(path, process.pid, empty_kib))
        with console.status("half of the bar, by a schedule"), one_dispatcher(path, REPLICAS, RELAYS) as process:
            boarding_s, shares, per_call = uvloop.run(follow_schedule(path, process.pid))
    is_compiled = not str(headway.core.machine.__file__).endswith(".py")
    p50, p99 = quantile(boarding_s, 0.5), quantile(boarding_s, 0.99)
    return Figures(calls_per_s, p50, p99, *shares, per_call, per_replica, is_compiled)


def verdict(figures: Figures) -> Verdict:
    bars = (
        at_least("calls per second of one core", figures.calls_per_cpu_s, MIN_CALLS_PER_S, ",.0f"),
        at_most(
            f"boarding p99 at {MIN_CALLS_PER_S // 2:,} calls/s", figures.boarding_p99_s * 1e3, MAX_BOARDING_S * 1e3,
            ",.2f", " ms",
        ),
    )  # fmt: skip
    figure = (
        f"one dispatcher, {REPLICAS:,} replicas, {RELAYS} relays: {figures.calls_per_cpu_s:,.0f} calls per second of "
        f"one core (bar {MIN_CALLS_PER_S:,}); at {MIN_CALLS_PER_S // 2:,} calls/s a seat takes "
        f"{figures.boarding_p50_s * 1e3:.2f} ms p50, {figures.boarding_p99_s * 1e3:.2f} ms p99 (bar "
        f"{MAX_BOARDING_S * 1e3:.0f}) and takes {figures.cpu_share:.0%} of a core (the generator "
        f"{figures.generator_share:.0%}); {figures.bytes_per_call / 1024:.1f} KiB per call aboard, "
        f"{figures.bytes_per_replica / 1024:.1f} KiB per replica; core "
        f"{'compiled' if figures.is_compiled else 'as source'}"
    )
    return Verdict(figure, bars)


if __name__ == "__main__":
    require(console, free_cores=True)
    sys.exit(finish(console, verdict(measure())))
