"""A gateway between hostile clients and a hostile engine, restarted in the middle. See runs/hostile.sh."""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tomlkit
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headway.config import Config
from headway.engines.scripted import Script, running
from headway.errors import HeadwayError
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.spool import Spool
from headway.ledger.verify import verify
from headway.local.engine_process import free_port
from headway.run import running_gateway
from runs.hostile.clients import HONEST, HOSTILE, Clients, Tally
from runs.hostile.engine import hostile_engine
from runs.measure.streams import process, resident_kib, scripted

OWNER, TENANTS = "hw-owner", ("hw-tenant-1", "hw-tenant-2")
SEATS = 64
# A replica that answered nonsense takes no call until its next probe. With two, most calls waited for one.
HOSTILE_REPLICAS = 8
SPOOL_BYTES = 2**28
RATE, AT_ONCE = 150.0, 256  # requests per second, and the most that run
BEHIND_S = 1.0  # how much of a pause is made up for
Counts = TypeVar("Counts", bound=tuple[int, ...])
QUIET_S = 60.0
START_S = 60.0
END_S = 60.0  # longer than the drain and the last shipping may take
SAMPLE_S = 0.02
WARM_UP = 0.1  # share of a process' requests after which its memory is taken as its size
ENDED = ("0A", "06")  # /proc/net/tcp: listening, and TIME_WAIT, which belongs to no process


class Left(NamedTuple):
    """What the gateway still has when all clients have left."""

    seats: int
    held: int
    client_sockets: int
    engine_sockets: int  # beyond one for each prober


@dataclass(frozen=True)
class LiveFigures:
    """What clients, the system and the ledger say. Counts of what should not be, unless said otherwise."""

    requests: int
    problems: dict[str, int]  # by what clients saw
    left: Left
    tracebacks: int
    restarts: int  # that succeeded
    missing: int  # honest calls that the ledger does not have, or not with their tokens
    left_in_spool: int
    ledger_problems: tuple[str, ...]
    lag_ms: float  # p99 of the gateway's loop, less that of an idle one
    grown_mb: float


@dataclass(frozen=True)
class Books:
    """The ledger of a run, in a folder of its own."""

    folder: Path

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.folder / 'books.db'}"

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def create(self) -> None:
        store = open_store(self.store_url)
        store.migrate()
        for number, secret in enumerate(TENANTS):
            store.put_key(Key(id=f"key-{number}", hash=key_hash(secret.encode())))
        store.close()

    def judge(self, served: dict[str, int]) -> tuple[int, int, tuple[str, ...]]:
        """(honest calls missing, entries not shipped, problems) after the gateway has ended."""
        store = open_store(self.store_url)
        try:
            shipped = {entry.id for entry in store.entries()}
            entries = [entry for entry in store.entries() if entry.kind == "served"]
            verdict = verify(store.entries())
        finally:
            store.close()
        found = {entry.call_id: entry.output_tokens for entry in entries}
        models = {entry.call_id: entry.model for entry in entries}
        missing = sum(found.get(call_id) != tokens for call_id, tokens in served.items())
        # An engine that reports more tokens than were asked for is billed above the reservation, and `verify` says so.
        problems = [
            problem
            for problem in verdict.problems
            if not ("billed, only" in problem and models.get(problem.partition(":")[0]) == HOSTILE)
        ]
        if verdict.open_calls:
            problems.append(f"{verdict.open_calls} calls were never closed")
        return missing, self._not_shipped(shipped, problems), tuple(problems)

    def _not_shipped(self, shipped: set[str], problems: list[str]) -> int:
        """The entries of the spool that the store does not have. (Its newest segment stays until it is full.)"""
        try:
            spool = Spool(self.spool, SPOOL_BYTES)
        except (HeadwayError, ValueError, TypeError) as error:
            problems.append(f"the spool cannot be opened: {error!r}")
            return 1
        try:
            left = len(spool.open)
            while (batch := spool.next_batch()) is not None:
                left += sum(entry.id not in shipped for entry in batch.entries)
                spool.shipped(batch)
            return left
        finally:
            spool.stop()


def config_of(port: int, honest_url: str, hostile_urls: list[str], books: Books) -> dict[str, Any]:
    price = {"input": 1.0, "output": 10.0}
    tiers: list[dict[str, Any]] = [{"name": "standard"}, {"name": "fast", "floor_tps": 1.0, "price_multiple": 2.0}]
    curve = [[1, 100.0], [SEATS, 50.0]]
    return {
        "gateway": {
            "port": port,
            "key_hashes": [key_hash(OWNER.encode())],
            "probe_interval_s": 0.2,
            "stall_s": 5.0,
            "reader_stall_s": 5.0,
            "drain_timeout_s": 5.0,
        },
        "ledger": {"store": books.store_url, "spool": str(books.spool), "spool_bytes": SPOOL_BYTES},
        "models": [
            {"name": HONEST, "price": price, "replicas": [{"url": honest_url, "seats": SEATS}]},
            {
                "name": HOSTILE,
                "price": price,
                "tiers": tiers,
                "replicas": [{"url": url, "seats": SEATS, "curve": curve} for url in hostile_urls],
            },
        ],
    }


# --- a gateway in a process of its own -------------------------------------------------------------------------------


class GatewayProcess:
    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.port: int = config["gateway"]["port"]
        self._config = folder / f"gateway-{self.port}.toml"
        self._config.write_text(tomlkit.dumps(config))
        self._replicas = sum(len(model["replicas"]) for model in config["models"])
        self.log = folder / f"gateway-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> bool:
        """Start it and wait until all its replicas take calls. Returns False if it ends instead."""
        command = [sys.executable, "-m", "headway", "serve", "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError, http.client.HTTPException):
                if (await self.metrics())["headway_replica_open"] == self._replicas:
                    return True
            await asyncio.sleep(0.05)
        return False

    async def metrics(self) -> Counter[str]:
        """Each metric, summed over its labels."""
        page = await asyncio.to_thread(_get, self.port, "/metrics")
        totals: Counter[str] = Counter()
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
            totals[name] += float(value)  # type: ignore[assignment]
        return totals

    async def end(self, number: int) -> bool:
        """Send it a signal and wait for its end. Returns False if it had to be killed."""
        ended, self._process = self._process, None
        if ended is not None:
            ended.send_signal(number)
            try:
                await asyncio.to_thread(ended.wait, END_S)
            except subprocess.TimeoutExpired:
                ended.kill()
                await asyncio.to_thread(ended.wait)
                return False
        return True

    def memory_mb(self) -> float:
        return resident_kib(self.pid) / 1024

    def sockets(self, ports: set[int]) -> int:
        """Its open connections to or from any of these ports."""
        inodes = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            here, there = (int(address.split(":")[1], 16) for address in fields[1:3])
            if fields[3] not in ENDED and (here in ports or there in ports):
                inodes.add(f"socket:[{fields[9]}]")
        found = 0
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with suppress(FileNotFoundError):
                found += os.readlink(f"/proc/{self.pid}/fd/{name}") in inodes
        return found


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"x-api-key": OWNER})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{path}: {answer.status}")
        return answer.read().decode()
    finally:
        connection.close()


# --- the lag of its loop, beside that of an idle gateway -------------------------------------------------------------


@contextmanager
def sampled_lag(ports: tuple[int, int]) -> Iterator[Callable[[], float]]:
    """Time GET /health of both gateways by turns, in another process. Gives the difference of their p99 in ms."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sampler = context.Process(target=_sample, args=(ports, theirs), daemon=True)
    sampler.start()

    def finish() -> float:
        ours.send(None)
        busy, idle = (sorted(times) for times in ours.recv())
        return 1e3 * float(busy[int(0.99 * len(busy))] - idle[int(0.99 * len(idle))])

    try:
        yield finish
    finally:
        sampler.terminate()
        sampler.join()


def _sample(ports: tuple[int, int], stop: Connection) -> None:
    times: tuple[list[float], list[float]] = ([], [])
    sockets: list[socket.socket | None] = [None, None]
    while not stop.poll(SAMPLE_S):
        for number, port in enumerate(ports):
            try:
                open_socket = sockets[number] or socket.create_connection(("127.0.0.1", port), 10)
                sockets[number] = open_socket
                began = time.perf_counter()
                open_socket.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                answer = open_socket.recv(65536)
                if not answer.endswith(b"ok\n"):
                    raise OSError
                times[number].append(time.perf_counter() - began)
            except OSError:  # it is being restarted
                sockets[number] = None
    stop.send(times)


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Clients that go on while the gateway is restarted. None connects while it is away."""

    clients: Clients
    up: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, count: int, on_done: Callable[[], None]) -> None:
        """Requests come at random, RATE per second on average, so that the loop's lag shows what a request does and not
        how many clients wait. While AT_ONCE of them have not ended, the next one waits."""
        loop, chance, room = asyncio.get_running_loop(), random.Random(count), asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            try:
                await self.up.wait()
                await self.clients.one()
            finally:
                room.release()
                on_done()

        at = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                await room.acquire()
                at = max(at, loop.time() - BEHIND_S) + chance.expovariate(RATE)
                await asyncio.sleep(at - loop.time())
                tasks.create_task(one())


async def measure(requests: int, seed: int, console: Console) -> tuple[LiveFigures, Tally]:
    folder = Path(tempfile.mkdtemp(prefix="headway-hostile-"))
    books, idle_books = Books(folder), Books(folder / "idle")
    for one in (books, idle_books):
        one.create()
    honest_port, idle_engine, *hostile_ports = (free_port() for _ in range(2 + HOSTILE_REPLICAS))
    hostile_urls = [f"http://127.0.0.1:{port}" for port in hostile_ports]
    with ExitStack() as stack:
        for port in (honest_port, idle_engine):
            stack.enter_context(scripted(port, model=HONEST, first_token_ms=2, step_ms="1:1", seats=4 * SEATS))
        command = [sys.executable, "-m", "runs.hostile.engine", str(seed * 1_000), *map(str, hostile_ports)]
        stack.enter_context(process(command, f"http://127.0.0.1:{hostile_ports[-1]}/health"))
        gateway = GatewayProcess(folder, config_of(free_port(), f"http://127.0.0.1:{honest_port}", hostile_urls, books))
        idle_config = config_of(free_port(), f"http://127.0.0.1:{idle_engine}", hostile_urls, idle_books)
        idle_config["models"] = idle_config["models"][:1]
        idle = GatewayProcess(folder, idle_config)
        try:
            if not (await gateway.start() and await idle.start()):
                raise SystemExit(f"a gateway does not start: see {folder}")
            lag = stack.enter_context(sampled_lag((gateway.port, idle.port)))
            return await _storm(gateway, books, {honest_port, *hostile_ports}, requests, seed, lag, console)
        finally:
            for one_gateway in (gateway, idle):
                await one_gateway.end(signal.SIGTERM)


async def _storm(
    gateway: GatewayProcess,
    books: Books,
    engines: set[int],
    requests: int,
    seed: int,
    lag: Callable[[], float],
    console: Console,
) -> tuple[LiveFigures, Tally]:
    epoch, restarts, grown_mb = 0, 0, 0.0
    clients = Clients(gateway.port, (*TENANTS, OWNER), seed, lambda: epoch)
    storm = Storm(clients)
    storm.up.set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    third = requests // 3
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("requests", total=requests)
        storming = asyncio.create_task(storm.run(requests, lambda: progress.advance(bar)))

        async def until(count: float) -> None:
            while clients.tally.requests < count and not storming.done():
                await asyncio.sleep(0.05)

        for number, ending in enumerate((signal.SIGTERM, signal.SIGKILL, None)):
            await until((number + WARM_UP) * third)
            before_mb = gateway.memory_mb()
            await until((number + 1) * third if ending is not None else requests + 1)
            if ending is None:
                break
            grown_mb = max(grown_mb, gateway.memory_mb() - before_mb)
            epoch += 1
            storm.up.clear()
            has_ended = await gateway.end(ending)
            if not await gateway.start():
                storming.cancel()
                break
            restarts += has_ended
            storm.up.set()
        with suppress(asyncio.CancelledError):
            await storming
    left = Left(0, 0, 0, 0)
    if gateway.is_running:
        left = await _until_quiet(lambda: _left(gateway, engines))
        grown_mb = max(grown_mb, gateway.memory_mb() - before_mb)
    lag_ms = lag()
    await gateway.end(signal.SIGTERM)
    missing, left_in_spool, problems = await asyncio.to_thread(books.judge, clients.tally.served)
    tracebacks = gateway.log.read_bytes().count(b"Traceback (most recent call last)")
    console.print(f"the gateway's log: {gateway.log}", highlight=False, soft_wrap=True)
    figures = LiveFigures(
        clients.tally.requests,
        dict(clients.tally.problems),
        left,
        tracebacks,
        restarts,
        missing,
        left_in_spool,
        problems,
        lag_ms,
        grown_mb,
    )
    return figures, clients.tally


async def _left(gateway: GatewayProcess, engines: set[int]) -> Left:
    metrics = await gateway.metrics()
    to_clients = gateway.sockets({gateway.port}) - 1  # the sampler's
    return Left(
        int(metrics["headway_aboard"]),
        int(metrics["headway_held"]),
        max(0, to_clients),
        max(0, gateway.sockets(engines) - len(engines)),
    )


async def _until_quiet(look: Callable[[], Awaitable[Counts]]) -> Counts:
    """Look until nothing is left. What remains after QUIET_S has leaked."""
    deadline = time.monotonic() + QUIET_S
    while any(left := await look()) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    return left


# --- a small storm in one process ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InProcess:
    """What a gateway in this process still has after its clients have left."""

    tally: Tally
    calls: int
    tasks: int  # more than before
    missing: int
    left_in_spool: int
    ledger_problems: tuple[str, ...]


async def in_process(folder: Path, requests: int, seed: int) -> InProcess:
    """Gateway, engines and clients on one event loop: here its tasks can be counted."""
    books = Books(folder)
    books.create()
    script = Script(model=HONEST, first_token_s=0.002, step_s=((1, 0.001),), max_num_seqs=4 * SEATS)
    async with running(script) as honest, hostile_engine(seed) as one, hostile_engine(seed + 1) as other:
        config = Config.model_validate(config_of(0, honest.url, [one, other], books))
        async with running_gateway(config) as (gateway, port):
            pools = gateway.machine.pools
            while sum(pool.open_replicas for pool in pools.values()) < 3:
                await asyncio.sleep(0.01)
            clients = Clients(port, (*TENANTS, OWNER), seed)
            storm = Storm(clients)
            storm.up.set()
            before = _tasks()
            await storm.run(requests, lambda: None)

            async def look() -> tuple[int, int]:
                return gateway.machine.calls, max(0, _tasks() - before)

            calls, tasks = await _until_quiet(look)
    return InProcess(clients.tally, calls, tasks, *books.judge(clients.tally.served))


def _tasks() -> int:
    """All tasks but those of the hostile engines, which serve a connection each until it is idle."""
    return sum("hostile_engine" not in repr(task.get_coro()) for task in asyncio.all_tasks())
