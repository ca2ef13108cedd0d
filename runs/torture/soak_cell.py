"""The cell of the soak, its callers with a steady rate, and what its processes look like from outside.

The processes of Headway are started each for itself, not forked from one that has imported everything: so their
resident memory is their own. Nothing is preloaded into them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from runs.failover.cell import Member
from runs.failover.plan import DISPATCHERS, RELAYS
from runs.failover.ports import free_ports
from runs.measure.fetch import fetch
from runs.measure.growth import buckets_of, open_files, rollup_mib, sum_of, threads
from runs.torture.callers import Callers, Ended
from runs.torture.cell import OWNER, TortureCell
from runs.torture.workload import draw

BALANCER, DATABASE = "HAProxy", "PostgreSQL"
PROCESSES = (*RELAYS, *DISPATCHERS, BALANCER, DATABASE)
LAG = b"headway_loop_lag_seconds"
GIVE_UP_S = 240.0


class SoakCell(TortureCell):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in (*RELAYS, *DISPATCHERS):
            self._forkers.pop(name).remove()
        self.metrics_ports = dict(zip(DISPATCHERS, free_ports(len(DISPATCHERS)), strict=True))

    def pids(self) -> dict[str, list[int]]:
        """All processes under test. HAProxy runs without a master, PostgreSQL has a process for each connection."""
        named = {**self.relays, **self.dispatchers, BALANCER: self.balancer}
        return {name: [member.pid] for name, member in named.items()} | {DATABASE: self.database.pids()}

    def metrics_urls(self) -> dict[str, str]:
        ports = {name: relay.port for name, relay in self.relays.items()} | self.metrics_ports
        return {name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()}

    def _member(self, name: str, command: Callable[[int], list[str]], port: int) -> Member:
        return Member(name, command, port, self._log(name))

    def _dispatch_command(self, name: str, port: int) -> Callable[[int], list[str]]:
        command = super()._dispatch_command(name, port)
        return lambda number: [*command(number), "--metrics", f"127.0.0.1:{self.metrics_ports[name]}"]


@dataclass(kw_only=True)
class SteadyCallers(Callers):
    """Poisson arrivals, whatever becomes of the calls. They are written to a file, so that memory stays bounded."""

    calls_per_s: float
    for_s: float
    file: Path
    ends: Counter[str] = field(default_factory=Counter)
    _is_over: bool = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def run(self) -> None:
        loop, chance = asyncio.get_running_loop(), random.Random(f"soak {self.seed}")
        at = loop.time()
        until = at + self.for_s
        with self.file.open("wb") as file:

            async def one() -> None:
                ended = await self.call(draw(chance))
                self.ends[ended.how] += 1
                file.write(msgspec.json.encode(ended) + b"\n")

            async with asyncio.TaskGroup() as group:
                while at < until:
                    group.create_task(one())
                    at += chance.expovariate(self.calls_per_s)
                    await asyncio.sleep(at - loop.time())
        self._is_over = True

    def read_ended(self) -> None:
        """For the judge, when the load is over."""
        read = msgspec.json.Decoder(Ended).decode
        with self.file.open("rb") as file:
            self.ended = [read(line) for line in file]


class Look(msgspec.Struct):
    """One process at one time; PostgreSQL's are added up."""

    memory_mib: float
    shared_mib: float  # PostgreSQL's buffers, which are configured and fill up
    files: int
    threads: int
    tasks: int = 0


class Sample(msgspec.Struct):
    minutes: float  # since the load began
    of: dict[str, Look]
    seats: int  # taken, says the leader
    held: int  # calls


class Watched:
    """Looks at all processes of the cell from a thread, so that the load goes on meanwhile."""

    def __init__(self, cell: SoakCell) -> None:
        self._cell = cell
        self._began_s = time.monotonic()

    def load_begins(self) -> None:
        self._began_s = time.monotonic()

    async def sample(self) -> Sample:
        return await asyncio.to_thread(self._sample)

    async def lags(self) -> dict[str, dict[float, float]]:
        """Each process' histogram up to now."""
        pages = await asyncio.to_thread(self._pages)
        return {name: buckets_of(page, LAG) for name, page in pages.items()}

    async def settled(self, for_s: float) -> Sample:
        """When for so long no seat was taken, no call held, and the numbers of files and tasks did not change."""
        deadline = time.monotonic() + GIVE_UP_S
        before, since_s = await self.sample(), time.monotonic()
        while time.monotonic() < min(deadline, since_s + for_s):
            await asyncio.sleep(0.5)
            now = await self.sample()
            if now.seats or now.held or _counts(now) != _counts(before):
                since_s = time.monotonic()
            before = now
        return before

    def _pages(self) -> dict[str, bytes]:
        return {name: fetch(url, key=OWNER) for name, url in self._cell.metrics_urls().items()}

    def _sample(self) -> Sample:
        pages = self._pages()
        looks = {name: _look(name, pids) for name, pids in self._cell.pids().items()}
        for name, page in pages.items():
            looks[name].tasks = int(sum_of(page, b"headway_tasks"))
        leaders = [pages[name] for name in DISPATCHERS]  # the standby's pages have neither
        seats, held = (
            sum(sum_of(page, name, missing=0.0) for page in leaders) for name in (b"headway_aboard", b"headway_held")
        )
        return Sample((time.monotonic() - self._began_s) / 60, looks, int(seats), int(held))


def _counts(sample: Sample) -> list[tuple[int, int]]:
    return [(look.files, look.tasks) for name, look in sample.of.items() if name != DATABASE]


def _look(name: str, pids: list[int]) -> Look:
    found = Look(0.0, 0.0, 0, 0)
    for pid in pids:
        with suppress(ProcessLookupError, FileNotFoundError):  # a worker of PostgreSQL that has ended
            memory = rollup_mib(pid)
            # PostgreSQL's processes are forked and share pages, which count once; its buffers count apart.
            own = memory["Pss"] - memory["Pss_Shmem"] if name == DATABASE else memory["Rss"]
            found.memory_mib += own
            found.shared_mib += memory["Pss_Shmem"]
            found.files += open_files(pid)
            found.threads += threads(pid)
    return found
