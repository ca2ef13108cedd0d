"""Headway beside other gateways: the same scripted engine, the same load, in turns. See runs/peers.sh.

The engine, the load client and all gateways share the machine, and a gateway that is not being measured is idle. In a
round the bare engine and every gateway take one turn each, in an order that rotates, so that the machine's drift is
everybody's. A turn ends after a number of calls or tokens, not after a time.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.core import machine
from headway.local.engine_process import free_port
from runs.gateway.tax import all_complete, percentile, spread
from runs.measure.streams import (
    ChatRequest,
    Stream,
    at_once,
    call,
    chat_request,
    cpu_seconds,
    gateway,
    on_schedule,
    scripted,
)
from runs.measure.verdict import finish
from runs.peers.haproxy import haproxy
from runs.peers.litellm import litellm
from runs.peers.peer import MODEL, Gateway, Progress
from runs.peers.rust import smg, vllm_router
from runs.peers.standings import OURS, FirstToken, Relay, Rounds, Row, verdict

console = Console(width=120)
BARE = "bare engine"
SEATS = 64
# Relaying: 8 streams at 50 tokens/s, which every gateway carries, and 64 at 1,000, more than two cores carry.
SLOW_STREAMS, SLOW_STEP_MS, SLOW_TOKENS = 8, "1:20", 200
FULL_STREAMS, FULL_STEP_MS, FULL_TOKENS = 64, "1:1", 250
# First tokens: one call after the other, and Poisson arrivals at half of the 8 slow streams (a call takes 0.4 s).
ALONE_CALLS, PAUSE_S, ALONE_TOKENS = 30, 0.05, 3
POISSON_CALLS, CALLS_PER_S, POISSON_TOKENS = 80, 10.0, 20
NOTES = (
    "CPU is that of all processes of a gateway. Headway's includes what the routers do not do: it decides at which "
    "speed and on which seat a call is served, counts its tokens and ends the answer with a proof of its speed.",
    "At 64 fast streams the engine and the client share the cores with the gateway. Where a gateway used less than a "
    "core, tokens/s is the limit of the machine, not of the gateway.",
    f"Poisson arrivals are at half load: {CALLS_PER_S:.0f} calls/s of {POISSON_TOKENS} tokens keep half as many "
    f"streams busy as there are slow ones. A round has {POISSON_CALLS} calls: one slow moment decides its p99.",
)


@dataclass(frozen=True)
class Way:
    """A way to the engine: a gateway, or the engine's own address."""

    name: str
    url: str
    pid: int


def headway() -> Gateway:
    @contextmanager
    def start(port: int, engine_url: str, folder: Path) -> Iterator[int]:
        with gateway(port, folder, model=MODEL, engine_urls=[engine_url], seats=SEATS) as pid:
            yield pid

    policy = "policy as source" if str(machine.__file__).endswith(".py") else "policy compiled"
    return Gateway(OURS, version("headway"), f"one process, {policy}, {SEATS} seats, default tiers, no ledger", start)


def all_gateways(progress: Progress) -> list[Gateway]:
    return [headway(), haproxy(), vllm_router(progress), smg(progress), litellm(progress)]


@contextmanager
def all_ways(gateways: Sequence[Gateway], folder: Path, step_ms: str) -> Iterator[list[Way]]:
    """The bare engine and every gateway in front of it, started and warm."""
    port = free_port()
    engine = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        pid = stack.enter_context(scripted(port, model=MODEL, first_token_ms=20, step_ms=step_ms, seats=SEATS))
        ways = [Way(BARE, engine, pid)]
        for one in gateways:
            port = free_port()
            with console.status(f"starting {one.name}"):
                pid = stack.enter_context(one.start(port, engine, folder))
            ways.append(Way(one.name, f"http://127.0.0.1:{port}", pid))
        for way in ways:
            for _ in range(3):  # a gateway may fail calls while it is cold; in its turns they are counted
                uvloop.run(at_once(way.url, chat_request(MODEL, POISSON_TOKENS), SEATS // 4))
        yield ways


def in_turn(ways: list[Way], number: int) -> list[Way]:
    return ways[number % len(ways) :] + ways[: number % len(ways)]


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    return [pid, *[member for child in children for member in family(child)]]


def cpu_by_process(pid: int) -> dict[int, float]:
    return {member: cpu_seconds(member) for member in family(pid)}


def cpu_since(before: dict[int, float], pid: int) -> float:
    return sum(used - before.get(member, 0.0) for member, used in cpu_by_process(pid).items())


async def one_by_one(url: str, request: ChatRequest) -> list[Stream]:
    streams = []
    for _ in range(ALONE_CALLS):
        streams.append(await call(url, request))
        await asyncio.sleep(PAUSE_S)  # a gateway may have work left from the call before
    return streams


def poisson(chance: random.Random) -> list[float]:
    times = [0.0]
    while len(times) < POISSON_CALLS:
        times.append(times[-1] + chance.expovariate(CALLS_PER_S))
    return times


def first_tokens(ways: list[Way], rounds: int, *, alone: bool) -> dict[str, FirstToken]:
    """Time to first token; a gateway's is what it adds to the bare engine's percentile of the same round."""
    request, chance = chat_request(MODEL, ALONE_TOKENS if alone else POISSON_TOKENS), random.Random(1)
    times_ms: dict[str, list[list[float]]] = {way.name: [] for way in ways}
    core: dict[str, list[float]] = {way.name: [] for way in ways}
    what = "one call at a time" if alone else f"Poisson, {CALLS_PER_S:.0f} calls/s"
    for number in track(range(rounds), f"first token, {what}", console=console, transient=True):
        schedule = poisson(chance)
        for way in in_turn(ways, number):
            before = cpu_by_process(way.pid)
            streams = uvloop.run(one_by_one(way.url, request) if alone else on_schedule(way.url, request, schedule))
            all_complete(streams)
            seconds = max(s.last_at for s in streams) - streams[0].sent_at
            core[way.name].append(cpu_since(before, way.pid) / seconds)
            times_ms[way.name].append([1000 * (s.first_at - s.sent_at) for s in streams])
    bare = times_ms.pop(BARE)

    def added(calls: list[list[float]], share: float) -> Rounds:
        return tuple(percentile(b, share) - percentile(a, share) for a, b in zip(bare, calls, strict=True))

    return {
        name: FirstToken(added(calls, 0.5), added(calls, 0.99), tuple(core[name])) for name, calls in times_ms.items()
    }


def relays(ways: list[Way], rounds: int, *, full: bool) -> dict[str, Relay]:
    """CPU per relayed token. At full speed calls may fail, which is counted and shown."""
    streams = FULL_STREAMS if full else SLOW_STREAMS
    request = chat_request(MODEL, FULL_TOKENS if full else SLOW_TOKENS)
    turns: dict[str, list[tuple[float, float, float]]] = {way.name: [] for way in ways[1:]}
    failed = dict.fromkeys(turns, 0)
    what = f"relay, {streams} {'fast' if full else 'slow'} streams"
    for number in track(range(rounds), what, console=console, transient=True):
        for way in in_turn(ways[1:], number):
            before = cpu_by_process(way.pid)
            done, seconds = uvloop.run(at_once(way.url, request, streams))
            used = cpu_since(before, way.pid)
            if not full:
                all_complete(done)
            failed[way.name] += sum(not s.complete for s in done)
            relayed = sum(s.tokens if s.complete else s.pieces for s in done)
            if not relayed:
                raise SystemExit(f"{way.name} relayed nothing (first status {done[0].status})")
            turns[way.name].append((1e6 * used / relayed, relayed / seconds, used / seconds))
    columns = {name: list(zip(*figures, strict=True)) for name, figures in turns.items()}
    return {name: Relay(cpu, speed, core, failed[name]) for name, (cpu, speed, core) in columns.items()}


def show(table: Sequence[Row], gateways: Sequence[Gateway], rounds: int) -> None:
    def cell(values: Rounds, digits: int) -> str:
        return f"{statistics.median(values):,.{digits}f} ({spread(list(values), digits)})"

    versions = {one.name: f"{one.name} {one.version}" for one in gateways}
    first = Table("added first token, ms", "one at a time, p50", "Poisson, p50", "Poisson, p99", "core used")
    relay = Table("CPU per token, µs", "8 slow streams", "64 fast streams", "tokens/s", "core used", "failed")
    for row in table:
        cells = [cell(values, 2) for values in (row.alone.p50_ms, row.half_load.p50_ms, row.half_load.p99_ms)]
        first.add_row(versions[row.gateway], *cells, f"{statistics.median(row.half_load.core):.0%}")
        cells = [cell(row.slow.cpu_us, 1), cell(row.full.cpu_us, 1), cell(row.full.tokens_per_s, 0)]
        core, failed = f"{statistics.median(row.full.core):.0%}", f"{row.full.failed}"
        relay.add_row(versions[row.gateway], *cells, core, failed)
    console.print(f"median of {rounds} rounds (lowest .. highest)", first, relay, *NOTES, sep="\n")
    console.print("\nsettings", *(f"{versions[one.name]}: {one.settings}" for one in gateways), sep="\n")
    console.print("\nthe bars, and who leads by medians")


def measure(gateways: Sequence[Gateway], rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with all_ways(gateways, folder, SLOW_STEP_MS) as ways:
            alone = first_tokens(ways, rounds, alone=True)
            half_load = first_tokens(ways, rounds, alone=False)
            slow = relays(ways, rounds, full=False)
        with all_ways(gateways, folder, FULL_STEP_MS) as ways:
            full = relays(ways, rounds, full=True)
    return [Row(one.name, alone[one.name], half_load[one.name], slow[one.name], full[one.name]) for one in gateways]


def main(rounds: int) -> int:
    with console.status("environments of the peers") as status:
        gateways = all_gateways(status.update)
    table = measure(gateways, rounds)
    show(table, gateways, rounds)
    return finish(console, verdict(table))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
