"""Clients that come and go: what is left of them afterwards. See runs/leaks.sh."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import resource
import sys
import urllib.request

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.config import Config
from headway.local.engine_process import free_port
from headway.run import make_auto, make_gateway, make_gateway_server
from runs.measure.streams import chat_request, scripted

console = Console(width=110)
MODEL = "m"
SEATS = 16
AT_ONCE = 48  # three times the seats, so that many leave while they are held
SEED = 7

# Where a client leaves, and how often: before the answer begins, in its head, in the middle, or not at all.
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


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def engine_record(url: str) -> dict[str, int]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url + "/scripted/record", timeout=10) as answer:
        record: dict[str, int] = json.loads(answer.read())
        return record


async def measure(cycles: int, engine_url: str) -> bool:
    config = Config.model_validate(
        {"gateway": {"port": 0}, "models": [{"name": MODEL, "replicas": [{"url": engine_url, "seats": SEATS}]}]}
    )
    gateway = make_gateway(config)
    server = make_gateway_server(config, gateway, make_auto(config, gateway))
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server.on_listening = listening.set_result
    gateway.start()
    serving = asyncio.create_task(server.serve())
    port = await listening
    pool = gateway.machine.pools[MODEL]
    while not pool.open_replicas:
        await asyncio.sleep(0.01)
    chance = random.Random(SEED)
    request = chat_request(MODEL, 40)
    await asyncio.gather(*[come_and_go(port, chance, request) for _ in range(AT_ONCE)])  # warm
    await settle(engine_url)
    tasks, files, memory = len(asyncio.all_tasks()), open_files(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    left: collections.Counter[str] = collections.Counter()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("clients", total=cycles)

        async def keep_coming(count: int) -> None:
            for _ in range(count):
                left[await come_and_go(port, chance, request)] += 1
                progress.advance(bar)

        await asyncio.gather(*[keep_coming(cycles // AT_ONCE) for _ in range(AT_ONCE)])
    record = await settle(engine_url)
    await asyncio.sleep(6)  # idle connections to the engine are closed by it after 5 s
    rows = [
        ("calls in core", gateway.machine.calls, 0),
        ("seats taken", pool.aboard(engine_url), 0),
        ("calls held", pool.waiting.held, 0),
        ("requests on the engine", record["running"] + record["waiting"], 0),
        ("tasks more than before", len(asyncio.all_tasks()) - tasks, 0),
        ("sockets and files more than before", open_files() - files, 0),
    ]
    table = Table("what is left", "measured", "at most")
    for name, value, most in rows:
        table.add_row(name, str(value), str(most))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    console.print(table)
    console.print("clients left: " + ", ".join(f"{count:,} {point}" for point, count in left.most_common()))
    # A seat is given on as soon as its client is gone; the engine learns of that a moment later.
    console.print(f"most requests the engine had at once: {record['highest_running']}, with {SEATS} seats")
    console.print(f"highest memory grew by {grown:.1f} MiB; seed {SEED}")
    server.should_exit = True
    await serving
    await gateway.stop()
    holds = all(value <= most for _, value, most in rows)
    console.print(f"{sum(left.values()):,} clients came and went: {'nothing' if holds else 'SOMETHING'} is left")
    return holds


async def settle(engine_url: str) -> dict[str, int]:
    """Wait until gateway and engine say they are idle, for at most 10 s."""
    for _ in range(200):
        record = await asyncio.to_thread(engine_record, engine_url)
        if not record["running"] and not record["waiting"]:
            break
        await asyncio.sleep(0.05)
    return record


def main(cycles: int) -> int:
    port = free_port()
    with scripted(port, model=MODEL, first_token_ms=10, step_ms="1:2", seats=64):
        return 0 if uvloop.run(measure(cycles, f"http://127.0.0.1:{port}")) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_032))
