"""What deciding in another process costs, beside one process that does everything. See runs/relays.sh.

(a) the link      200 calls per second to a dispatcher, beside one that only boards: `Arrived` to `Board`
(b) the relays    CPU per token of two relays and of one process, each with as many streams, in turns
(c) first token   one call at a time through the one and the other, in turns
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.bench.load import quantile
from headway.local.engine_process import free_port
from runs.cell.dispatcher import Load, one_dispatcher
from runs.measure.machine import require
from runs.measure.streams import at_once, call, chat_request, cpu_seconds, gateway, scripted
from runs.measure.verdict import Verdict, at_most, finish

console = Console(width=120)
CALLS_PER_S, LINK_S, LINK_ROUNDS, REPLICAS = 200.0, 8.0, 3, 1_000
PAIRS, STREAMS, TOKENS = 21, 16, 200  # streams of each process
FIRST_TOKENS = 200
MAX_P50_MS, MAX_P99_ABOVE_MS, MAX_ADDED_MS = 0.3, 1.0, 0.4
MAX_CPU_RATIO, MAX_US_PER_CALL, GOAL_US_PER_CALL = 1.05, 60, 35


@dataclass(frozen=True)
class LinkTimes:
    boarding_s: list[float]
    us_per_call: float  # CPU of the dispatcher


async def _ask(path: Path, pid: int, *, is_asked: bool) -> LinkTimes:
    load = Load(REPLICAS)
    await load.open(path, 1, is_asked=is_asked)
    before = cpu_seconds(pid)
    await load.by_schedule(CALLS_PER_S, LINK_S, 0.0)
    used = cpu_seconds(pid) - before
    load.is_over = True
    return LinkTimes(load.boarding_s[20:], 1e6 * used / len(load.boarding_s))


def link_times(folder: Path, *kind: str) -> LinkTimes:
    path = folder / f"{time.monotonic_ns()}" / "dispatcher"
    with one_dispatcher(path, REPLICAS, 1, *kind) as process:
        return uvloop.run(_ask(path, process.pid, is_asked=not kind))


def processes_of(parent: int) -> dict[str, int]:
    """The processes of a gateway, by name; of one process, only itself."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    named = {}
    for pid in children:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        named[words[words.index(b"--name") + 1].decode() if b"--name" in words else "dispatcher"] = int(pid)
    return named or {"gateway": parent}


@dataclass(frozen=True)
class Figures:
    boarding_p50_ms: float
    boarding_p99_above_ms: float
    cpu_ratios: list[float] = field(default_factory=list)  # of pairs
    us_per_call: float = 0.0
    added_p50_ms: float = 0.0


def cpu_per_token(url: str, pids: list[int], streams: int) -> float:
    """CPU of these processes, in microseconds."""
    before = sum(map(cpu_seconds, pids))
    done, _ = uvloop.run(at_once(url, chat_request("m", TOKENS), streams))
    lost = [stream for stream in done if not stream.complete]
    if lost:
        raise SystemExit(f"{len(lost)} of {len(done)} calls did not complete (first status {lost[0].status})")
    return 1e6 * (sum(map(cpu_seconds, pids)) - before) / sum(stream.tokens for stream in done)


async def _first_tokens(one: str, many: str) -> list[float]:
    """What the second adds to the first token, in ms: pairs of calls, one after the other."""
    request, added = chat_request("m", 2), []
    for number in range(FIRST_TOKENS):
        pair = {}
        for url in (one, many) if number % 2 else (many, one):
            stream = await call(url, request)
            pair[url] = stream.first_at - stream.sent_at
        added.append(1e3 * (pair[many] - pair[one]))
    return added


def carry(folder: Path) -> tuple[list[float], list[float], dict[int, float]]:
    """Returns the ratios of CPU per token, what is added to first tokens, and CPU per token by number of relays."""
    engine_port, port, relay_port, four_port = (free_port() for _ in range(4))
    engine = [f"http://127.0.0.1:{engine_port}"]
    with ExitStack() as stack:
        stack.enter_context(scripted(engine_port, model="m", first_token_ms=5, step_ms="1:10", seats=128))
        one = stack.enter_context(gateway(port, folder, model="m", engine_urls=engine, seats=128))
        many = stack.enter_context(gateway(relay_port, folder, model="m", engine_urls=engine, seats=128, relays=2))
        url, relay_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{relay_port}"
        relays = [pid for name, pid in processes_of(many).items() if name.startswith("relay")]
        alone_us: list[float] = []
        relays_us: list[float] = []
        for number in track(range(PAIRS + 1), "(b) CPU per token", console=console, transient=True):
            turns = [(alone_us, url, [one], STREAMS), (relays_us, relay_url, relays, 2 * STREAMS)]
            for into, where, pids, streams in turns if number % 2 else reversed(turns):
                into.append(cpu_per_token(where, pids, streams))
        ratios = [b / a for a, b in zip(alone_us[1:], relays_us[1:], strict=True)]  # the first pair warms them
        added = uvloop.run(_first_tokens(url, relay_url))
        four = stack.enter_context(gateway(four_port, folder, model="m", engine_urls=engine, seats=128, relays=4))
        pids = [pid for name, pid in processes_of(four).items() if name.startswith("relay")]
        four_url = f"http://127.0.0.1:{four_port}"
        four_us = [cpu_per_token(four_url, pids, 4 * STREAMS) for _ in range(4)][1:]
    by_relays = {1: statistics.median(alone_us), 2: statistics.median(relays_us), 4: statistics.median(four_us)}
    return ratios, added, by_relays


def verdict(figures: Figures) -> Verdict:
    ratio = statistics.median(figures.cpu_ratios)
    bars = (
        at_most("Arrived to Board p50", figures.boarding_p50_ms, MAX_P50_MS, unit=" ms"),
        at_most("Arrived to Board p99, above one that only boards", figures.boarding_p99_above_ms, MAX_P99_ABOVE_MS,
                unit=" ms"),
        at_most("CPU per token, relay ÷ one process", ratio, MAX_CPU_RATIO, ".3f"),
        at_most("dispatcher's CPU per call", figures.us_per_call, MAX_US_PER_CALL, ".0f", " us"),
        at_most("added first token p50", figures.added_p50_ms, MAX_ADDED_MS, unit=" ms"),
    )  # fmt: skip
    low, high = quantile(figures.cpu_ratios, 0.25), quantile(figures.cpu_ratios, 0.75)
    figure = (
        f"a seat from a dispatcher takes {figures.boarding_p50_ms:.2f} ms p50 (bar {MAX_P50_MS}), p99 "
        f"{figures.boarding_p99_above_ms:.2f} ms above one that only boards (bar {MAX_P99_ABOVE_MS}); a relay's CPU "
        f"per token is {ratio:.3f} times that of one process (half of {len(figures.cpu_ratios)} pairs {low:.3f} .. "
        f"{high:.3f}, bar {MAX_CPU_RATIO}); {figures.us_per_call:.0f} us of the dispatcher's CPU per call (bar "
        f"{MAX_US_PER_CALL}, goal {GOAL_US_PER_CALL}); first token {figures.added_p50_ms:+.2f} ms (bar {MAX_ADDED_MS})"
    )
    return Verdict(figure, bars)


def main() -> int:
    require(console, free_cores=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = [
            (link_times(folder), link_times(folder, "echo"))
            for _ in track(range(LINK_ROUNDS), "(a) the link", console=console, transient=True)
        ]
        ratios, added, by_relays = carry(folder)
    p50 = [1e3 * quantile(decided.boarding_s, 0.5) for decided, _ in rounds]
    above = [
        1e3 * (quantile(decided.boarding_s, 0.99) - quantile(echoed.boarding_s, 0.99)) for decided, echoed in rounds
    ]
    table = Table("relays", "CPU per token of all relays, median")
    for relays, us in by_relays.items():
        table.add_row("one process" if relays == 1 else str(relays), f"{us:.1f} us")
    console.print(table)
    us_per_call = statistics.median(decided.us_per_call for decided, _ in rounds)
    p50_ms, above_ms = statistics.median(p50), statistics.median(above)
    return finish(console, verdict(Figures(p50_ms, above_ms, ratios, us_per_call, statistics.median(added))))


if __name__ == "__main__":
    sys.exit(main())
