"""Checks what the gateway still holds after many clients have disconnected. See runs/leaks.sh."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from headway.config import Config
from headway.deciding import decide_here
from headway.local.engine_process import free_port
from headway.run import make_auto, make_gateway, make_gateway_server
from runs.measure.fetch import fetch
from runs.measure.streams import CHAT_PATH, chat_request, scripted
from runs.measure.verdict import Bar, Verdict, at_most, finish, none_of

console = Console(width=110)
MODEL = "m"
SEATS = 16
AT_ONCE = 48  # three times the seats, so that many disconnect while they are held
SEED = 7
# The prober reads the engine's metrics every second over the connection used last. The engine closes the others after
# 5 idle seconds.
PROBERS = 1
GIVE_UP_S = 60.0
LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp

# The point at which a client disconnects, and its weight.
POINTS = {"before the first byte": 4, "after some bytes": 4, "in the middle of a token": 1, "at the end": 1}


async def come_and_go(port: int, chance: random.Random, request: bytes) -> str:
    point = chance.choices(list(POINTS), list(POINTS.values()))[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if point == "before the first byte":
            await asyncio.sleep(chance.expovariate(1 / 0.02))
        elif point == "after some bytes":
            await reader.readuntil(b"data: ")
            await reader.read(chance.randint(1, 4000))
        elif point == "in the middle of a token":
            await reader.readuntil(b'"content":"')
        else:
            await reader.read()
    except asyncio.IncompleteReadError:
        point = "refused"
    finally:
        writer.transport.abort()
    return point


@dataclass(frozen=True)
class Sockets:
    """The open files of this process, in which gateway and clients run."""

    to_engine: int
    with_clients: int  # counts both ends
    others: int


def open_files(engine_port: int, port: int) -> Sockets:
    ports = {}  # local and remote port of each TCP socket
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] != LISTENS:
            ports[f"socket:[{fields[9]}]"] = [int(address.split(":")[1], 16) for address in fields[1:3]]
    counts: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this directory listing is closed by now
            pair = ports.get(os.readlink(f"/proc/self/fd/{name}"), [])
            counts["engine" if engine_port in pair else "clients" if port in pair else "others"] += 1
    return Sockets(counts["engine"], counts["clients"], counts["others"])


def engine_record(url: str) -> dict[str, int]:
    record: dict[str, int] = json.loads(fetch(url + "/scripted/record"))
    return record


@dataclass(frozen=True)
class Figures:
    """What the gateway still holds when all clients have disconnected."""

    clients: int
    calls_in_core: int
    seats_taken: int
    calls_held: int
    on_engine: int
    tasks_more: int  # than before
    files_more: int  # than before, without sockets to the engine and to clients
    sockets: Sockets


def verdict(figures: Figures) -> Verdict:
    bars = (
        Bar("clients came and went", f"{figures.clients:,}", ">= 1", figures.clients > 0),
        none_of("calls in core", figures.calls_in_core),
        none_of("seats taken", figures.seats_taken),
        none_of("calls held", figures.calls_held),
        none_of("requests on the engine", figures.on_engine),
        at_most("tasks more than before", figures.tasks_more, 0, ".0f"),
        none_of("connections with clients", figures.sockets.with_clients),
        at_most("connections to the engine: the prober's", figures.sockets.to_engine, PROBERS, ".0f"),
        at_most("other files more than before", figures.files_more, 0, ".0f"),
    )
    is_clean = all(bar.holds for bar in bars)
    return Verdict(f"{figures.clients:,} clients came and went: {'nothing' if is_clean else 'SOMETHING'} is left", bars)


async def measure(cycles: int, engine_port: int) -> Figures:
    engine_url = f"http://127.0.0.1:{engine_port}"
    config = Config.model_validate(
        {"gateway": {"port": 0}, "models": [{"name": MODEL, "replicas": [{"url": engine_url, "seats": SEATS}]}]}
    )
    gateway = make_gateway(config, decide_here(config))
    server, _ = make_gateway_server(config, gateway, make_auto(config, gateway))
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server.on_listening = listening.set_result
    gateway.start()
    serving = asyncio.create_task(server.serve())
    port = await listening
    pool = gateway.machine.pools[MODEL]
    while not pool.open_replicas:
        await asyncio.sleep(0.01)
    chance, body = random.Random(SEED), chat_request(MODEL, 40).body
    head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body

    async def left_now(clients: int, tasks: int = 0, files: int = 0) -> Figures:
        record = await asyncio.to_thread(engine_record, engine_url)
        sockets = open_files(engine_port, port)
        return Figures(
            clients,
            gateway.machine.calls,
            pool.aboard(engine_url),
            pool.waiting.held,
            record["running"] + record["waiting"],
            len(asyncio.all_tasks()) - tasks,
            sockets.others - files,
            sockets,
        )

    await asyncio.gather(*[come_and_go(port, chance, request) for _ in range(AT_ONCE)])  # warm
    before = await quiet(lambda: left_now(AT_ONCE), lambda one: not (one.calls_in_core or one.sockets.with_clients))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    left = await many(cycles, lambda: come_and_go(port, chance, request))
    clients = sum(left.values())
    after = await quiet(lambda: left_now(clients, before.tasks_more, before.files_more), lambda one: verdict(one).ok)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    console.print("clients left: " + ", ".join(f"{count:,} {point}" for point, count in left.most_common()))
    # A seat is reused as soon as its client disconnects; the engine notices a moment later.
    highest = (await asyncio.to_thread(engine_record, engine_url))["highest_running"]
    console.print(f"most requests the engine had at once: {highest}, with {SEATS} seats")
    console.print(f"highest memory grew by {grown:.1f} MiB; seed {SEED}")
    server.stop()
    await serving
    await gateway.stop()
    return after


async def many(cycles: int, one: Callable[[], Awaitable[str]]) -> Counter[str]:
    """Run `cycles` clients, AT_ONCE at a time. Counts the points at which they disconnect."""
    left: Counter[str] = Counter()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("clients", total=cycles)

        async def keep_coming(count: int) -> None:
            for _ in range(count):
                left[await one()] += 1
                progress.advance(bar)

        await asyncio.gather(*[keep_coming(cycles // AT_ONCE) for _ in range(AT_ONCE)])
    return left


async def quiet(look: Callable[[], Awaitable[Figures]], is_quiet: Callable[[Figures], bool]) -> Figures:
    """Poll until nothing is left. Whatever remains after GIVE_UP_S has leaked, however slow the machine is."""
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        figures = await look()
        if is_quiet(figures) or time.monotonic() > deadline:
            return figures
        await asyncio.sleep(0.1)


def main(cycles: int) -> int:
    port = free_port()
    with scripted(port, model=MODEL, first_token_ms=10, step_ms="1:2", seats=64):
        figures = uvloop.run(measure(cycles, port))
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_032))
