"""Headway beside LiteLLM's proxy: the same scripted engine, the same load, in turns. See runs/peers.sh.

What LiteLLM is set to is said in runs/peers/litellm.py. Each gateway is one process; the engine, the client and both
gateways share the box, and a gateway that is not being measured is idle. A round takes bare engine, Headway and
LiteLLM one after the other, in an order that rotates.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.local.engine_process import free_port
from runs.gateway.tax import Verdict, all_complete, percentile, spread
from runs.measure.streams import Stream, at_once, call, chat_request, cpu_seconds, gateway, on_schedule, scripted
from runs.peers.litellm import VERSION, ensure_litellm, litellm

console = Console(width=110)
BARE, OURS, PEER = "bare engine", "Headway", f"LiteLLM {VERSION}"
MAX_ADDED_SHARE, MAX_CPU_SHARE = 1 / 5, 1 / 15
SEATS = 64
# One call after the other, and calls at Poisson times that leave LiteLLM mostly idle (its share of a core is printed).
CALLS, PAUSE_S, ALONE_TOKENS = 40, 0.05, 5
CALLS_PER_S, SCHEDULE_S, POISSON_TOKENS = 4.0, 10.0, 20
# Steady load that both carry: 8 streams at 50 tokens/s for 5 s.
STREAMS, STEADY_STEP, STEADY_TOKENS = 8, "1:20", 250
# More than either carries: 64 streams at 1,000 tokens/s.
FULL_STEP, FULL_TOKENS, MAX_FULL_ROUNDS = "1:1", 500, 3


@dataclass
class Way:
    """A way to the engine; `pid` is the gateway's process, None where there is none."""

    url: str
    pid: int | None = None
    first_token_ms: list[list[float]] = field(default_factory=list)
    cpu_share: list[float] = field(default_factory=list)


@contextmanager
def three_ways(command: Path, folder: Path, step_ms: str) -> Iterator[dict[str, Way]]:
    engine_port, our_port, peer_port = free_port(), free_port(), free_port()
    engine = f"http://127.0.0.1:{engine_port}"
    with ExitStack() as stack:
        stack.enter_context(scripted(engine_port, model="m", first_token_ms=20, step_ms=step_ms, seats=SEATS))
        ours = stack.enter_context(gateway(our_port, folder, model="m", engine_urls=[engine], seats=SEATS))
        with console.status("starting LiteLLM (about 15 s)"):
            peer = stack.enter_context(litellm(command, peer_port, folder, model="m", engine_url=engine))
        ways = {BARE: Way(engine), OURS: Way(f"http://127.0.0.1:{our_port}", ours)}
        ways[PEER] = Way(f"http://127.0.0.1:{peer_port}", peer)
        for way in ways.values():
            for _ in range(5):
                all_complete(uvloop.run(at_once(way.url, chat_request("m", POISSON_TOKENS), 4))[0])  # warm
        yield ways


def in_turn(ways: dict[str, Way], number: int) -> list[tuple[str, Way]]:
    items = list(ways.items())
    return items[number % len(items) :] + items[: number % len(items)]


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    return [pid, *[member for child in children for member in family(child)]]


def cpu_of(pid: int) -> float:
    return sum(cpu_seconds(member) for member in family(pid))


async def one_by_one(url: str, request: bytes) -> list[Stream]:
    streams = []
    for _ in range(CALLS):
        streams.append(await call(url, request))
        await asyncio.sleep(PAUSE_S)  # a gateway may have work left from the call before
    return streams


def poisson(chance: random.Random) -> list[float]:
    times = [0.0]
    while times[-1] < SCHEDULE_S:
        times.append(times[-1] + chance.expovariate(CALLS_PER_S))
    return times


def first_token(ways: dict[str, Way], rounds: int, *, alone: bool) -> float:
    """Prints the added time to first token; returns Headway's added p50 ÷ LiteLLM's.

    The added p50 is taken inside each round, and the median of the rounds counts. The p99 is that of all rounds' calls
    together: a round has too few for one of its own.
    """
    tokens, chance = ALONE_TOKENS if alone else POISSON_TOKENS, random.Random(1)
    request = chat_request("m", tokens)
    what = "one call at a time" if alone else f"Poisson, {CALLS_PER_S:.0f} calls/s"
    for way in ways.values():
        way.first_token_ms, way.cpu_share = [], []
    for number in track(range(rounds), f"first token, {what}", console=console, transient=True):
        times = poisson(chance)
        for _, way in in_turn(ways, number):
            before = cpu_of(way.pid) if way.pid else 0.0
            streams = uvloop.run(one_by_one(way.url, request) if alone else on_schedule(way.url, request, times))
            all_complete(streams)
            seconds = max(s.last_at for s in streams) - streams[0].sent_at
            way.cpu_share.append((cpu_of(way.pid) - before) / seconds if way.pid else 0.0)
            way.first_token_ms.append([1000 * (s.first_at - s.sent_at) for s in streams])
    table = Table("first token, ms", "calls", "p50", "p99", "added p50", "rounds", "added p99", "core used")
    added, bare = {}, ways[BARE]
    bare_all = [one for calls in bare.first_token_ms for one in calls]
    for name, way in ways.items():
        pooled = [one for calls in way.first_token_ms for one in calls]
        row = [name, f"{len(pooled)}", f"{statistics.median(pooled):.2f}", f"{percentile(pooled, 0.99):.2f}"]
        if way.pid:
            pairs = zip(bare.first_token_ms, way.first_token_ms, strict=True)
            gains = [statistics.median(b) - statistics.median(a) for a, b in pairs]
            added[name] = statistics.median(gains)
            p99 = percentile(pooled, 0.99) - percentile(bare_all, 0.99)
            row += [f"{added[name]:.2f}", spread(gains, 2), f"{p99:.2f}", f"{statistics.median(way.cpu_share):.0%}"]
        table.add_row(*row)
    console.print(f"time to first token, {what}, {tokens} tokens out, {rounds} rounds", table, sep="\n")
    return added[OURS] / added[PEER]


def relay_cpu(
    ways: dict[str, Way], rounds: int, *, tokens: int, streams: int, what: str, beyond: bool = False
) -> dict[str, float]:
    """Prints tokens/s and the gateways' CPU time under `streams` calls at once; returns the µs per token by name.

    `beyond` is a load beyond what is carried: there calls may fail, which is counted and shown.
    """
    request = chat_request("m", tokens)
    gateways = {name: way for name, way in ways.items() if way.pid}
    per_token: dict[str, list[float]] = {name: [] for name in gateways}
    speeds: dict[str, list[float]] = {name: [] for name in gateways}
    shares: dict[str, list[float]] = {name: [] for name in gateways}
    failed = dict.fromkeys(gateways, 0)
    for number in track(range(rounds), what, console=console, transient=True):
        for name, way in in_turn(gateways, number):
            assert way.pid
            before = cpu_of(way.pid)
            done, seconds = uvloop.run(at_once(way.url, request, streams))
            used = cpu_of(way.pid) - before
            if not beyond:
                all_complete(done)
            failed[name] += sum(not s.complete for s in done)
            relayed = sum(s.tokens for s in done)
            per_token[name].append(1e6 * used / relayed)
            speeds[name].append(relayed / seconds)
            shares[name].append(used / seconds)
    table = Table("gateway", "tokens/s", "rounds", "core used", "CPU µs per token", "rounds", "failed")
    for name in gateways:
        speed, cost = statistics.median(speeds[name]), statistics.median(per_token[name])
        row = [f"{speed:,.0f}", spread(speeds[name], 0), f"{statistics.median(shares[name]):.0%}"]
        table.add_row(name, *row, f"{cost:,.1f}", spread(per_token[name], 1), f"{failed[name]}")
    console.print(f"{what}, {tokens} tokens each, {rounds} rounds", table, sep="\n")
    return {name: statistics.median(values) for name, values in per_token.items()}


def main(rounds: int) -> int:
    with console.status("LiteLLM's environment") as status:
        command = ensure_litellm(status.update)
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with three_ways(command, folder, "1:10") as ways:
            for alone in (True, False):
                share = first_token(ways, rounds, alone=alone)
                what = f"added first token p50, {'one at a time' if alone else 'Poisson'}, Headway ÷ LiteLLM"
                verdicts.append(Verdict(what, f"1/{1 / share:.1f}", "<= 1/5", 0 < share <= MAX_ADDED_SHARE))
        with three_ways(command, folder, STEADY_STEP) as ways:
            cost = relay_cpu(ways, rounds, tokens=STEADY_TOKENS, streams=STREAMS, what="8 streams at 50 tokens/s")
            share = cost[OURS] / cost[PEER]
            verdicts.append(
                Verdict("CPU per token, Headway ÷ LiteLLM", f"1/{1 / share:.1f}", "<= 1/15", share <= MAX_CPU_SHARE)
            )
        with three_ways(command, folder, FULL_STEP) as ways:
            relay_cpu(
                ways,
                min(rounds, MAX_FULL_ROUNDS),
                tokens=FULL_TOKENS,
                streams=SEATS,
                what="the most each relays, 64 streams",
                beyond=True,
            )
    table = Table("what", "measured", "bar", "")
    for verdict in verdicts:
        table.add_row(verdict.what, verdict.measured, verdict.bar, "holds" if verdict.holds else "MISSED")
    console.print(f"Headway beside {PEER}", table, sep="\n")
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
