"""Measures the gateway's overhead against the bare engine. See runs/tax.sh.

Every round and pair has a fixed number of calls and tokens, so a slow machine takes longer and measures the same.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.machine import require, too_slow
from runs.measure.streams import Stream, at_once, chat_request, cpu_seconds, gateway, on_schedule, process, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish

console = Console(width=110)
MIN_RATIO = 0.97
TOKENS_ON_VLLM = 32
MAX_ADDED_P50_MS, MAX_ADDED_P99_MS = 1.0, 5.0
MIN_TOKENS_PER_CPU_S, GOAL_TOKENS_PER_CPU_S = 30_000, 60_000
ARRIVALS = 320  # of a round of (b): five seconds of them
# Headway adds about three times what a program adds that only copies bytes (runs/gateway/forwarder.py). Where that one
# adds more than this, missing the bars on the first token says more about the machine than about Headway.
MAX_FORWARDER_MS = 0.35
FIRST_TOKEN = "added first token"


@dataclass(frozen=True)
class Figures:
    """Medians of rounds and pairs."""

    throughput: dict[int, float]  # tok/s through the gateway ÷ bare, by streams
    added_p50_ms: float
    added_p99_ms: float
    forwarder_p50_ms: float
    tokens_per_cpu_s: float


def verdict(figures: Figures) -> Verdict:
    bars = [
        at_least(f"throughput ÷ bare, {streams} streams", ratio, MIN_RATIO, ".3f")
        for streams, ratio in figures.throughput.items()
    ]
    bars += [
        at_most(f"{FIRST_TOKEN} p50", figures.added_p50_ms, MAX_ADDED_P50_MS, unit=" ms"),
        at_most(f"{FIRST_TOKEN} p99", figures.added_p99_ms, MAX_ADDED_P99_MS, unit=" ms"),
        at_least("tokens per CPU-second", figures.tokens_per_cpu_s, MIN_TOKENS_PER_CPU_S, ",.0f"),
    ]
    figure = (
        f"throughput ÷ bare {min(figures.throughput.values()):.3f} at the least; added first token p50 "
        f"{figures.added_p50_ms:.2f} ms, p99 {figures.added_p99_ms:.2f} ms (copying the bytes: p50 "
        f"{figures.forwarder_p50_ms:.2f} ms); {figures.tokens_per_cpu_s:,.0f} tokens per CPU-second "
        f"(goal {GOAL_TOKENS_PER_CPU_S:,})"
    )
    return Verdict(figure, tuple(bars))


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def spread(values: list[float], digits: int = 3) -> str:
    return f"{min(values):,.{digits}f} .. {max(values):,.{digits}f}"


def all_complete(streams: list[Stream]) -> None:
    lost = [s for s in streams if not s.complete]
    if lost:
        raise SystemExit(f"{len(lost)} of {len(streams)} calls did not complete (first status {lost[0].status})")


def relay_cpu(folder: Path, rounds: int) -> float:
    """(c) Tokens relayed per CPU-second of the gateway: 64 streams at 100 tokens/s each, one token per event."""
    engine_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    request = chat_request("m", 500)
    per_cpu_s = []
    with (
        scripted(engine_port, model="m", first_token_ms=20, step_ms="1:10", seats=64),
        gateway(port, folder, model="m", engine_urls=[f"http://127.0.0.1:{engine_port}"], seats=64) as pid,
    ):
        uvloop.run(at_once(url, request, 64))  # warm
        for _ in track(range(rounds), "(c) relay", console=console, transient=True):
            before = cpu_seconds(pid)
            streams, _ = uvloop.run(at_once(url, request, 64))
            used = cpu_seconds(pid) - before
            all_complete(streams)
            per_cpu_s.append(sum(s.tokens for s in streams) / used)
    table = Table("streams", "tokens/s each", "tokens per CPU-second, median", "lowest .. highest", "µs per token")
    middle = statistics.median(per_cpu_s)
    table.add_row("64", "100", f"{middle:,.0f}", spread(per_cpu_s, 0), f"{1e6 / middle:.1f}")
    console.print(f"(c) the gateway's CPU, scripted engine, {rounds} rounds of 64 x 500 tokens", table, sep="\n")
    return middle


@dataclass(frozen=True)
class AddedTimes:
    """Medians of rounds, in ms."""

    p50: float
    p99: float
    forwarder_p50: float


def added_first_token(folder: Path, rounds: int) -> AddedTimes:
    """(b) Added time to first token at half load: Poisson arrivals that keep 32 of 64 seats busy on average.

    The bare engine, the gateway and a forwarder of bytes take turns with the same arrivals. The added percentiles are
    computed per round and the median over the rounds counts, so that one disturbed round does not decide.
    """
    engine_port, port, copy_port = free_port(), free_port(), free_port()
    bare, ours, copied = (f"http://127.0.0.1:{one}" for one in (engine_port, port, copy_port))
    names = {"bare engine": bare, "through Headway": ours, "bytes copied": copied}
    request = chat_request("m", 50)
    seconds_per_call = 0.02 + 49 * 0.01
    chance = random.Random(1)
    times: dict[str, list[list[float]]] = {url: [] for url in names.values()}
    forwarder = [sys.executable, "-m", "runs.gateway.forwarder", str(copy_port), str(engine_port)]
    with (
        scripted(engine_port, model="m", first_token_ms=20, step_ms="1:10", seats=64),
        gateway(port, folder, model="m", engine_urls=[bare], seats=64),
        process(forwarder, f"{copied}/health"),
    ):
        for url in times:
            all_complete(uvloop.run(at_once(url, request, 32))[0])  # warm
        for number in track(range(2 * rounds), "(b) first token", console=console, transient=True):
            schedule = [0.0]
            while len(schedule) < ARRIVALS:
                schedule.append(schedule[-1] + chance.expovariate(32 / seconds_per_call))
            first = number % len(times)
            for url in [*list(times)[first:], *list(times)[:first]]:
                streams = uvloop.run(on_schedule(url, request, schedule))
                all_complete(streams)
                times[url].append([1000 * (s.first_at - s.sent_at) for s in streams])
    table = Table("time to first token, ms", "calls", "p50", "p90", "p99")
    for name, url in names.items():
        pooled = [one for calls in times[url] for one in calls]
        table.add_row(name, f"{len(pooled):,}", *[f"{percentile(pooled, share):.2f}" for share in (0.5, 0.9, 0.99)])
    medians = {}
    for name, url in list(names.items())[1:]:
        added = {
            share: [percentile(b, share) - percentile(a, share) for a, b in zip(times[bare], times[url], strict=True)]
            for share in (0.5, 0.9, 0.99)
        }
        medians[url] = {share: statistics.median(values) for share, values in added.items()}
        table.add_row(f"added, {name}: median of rounds", "", *[f"{one:.2f}" for one in medians[url].values()])
        table.add_row("lowest .. highest", "", *[spread(values, 2) for values in added.values()])
    console.print(f"(b) added time to first token, scripted engine at half load, {2 * rounds} rounds", table, sep="\n")
    return AddedTimes(medians[ours][0.5], medians[ours][0.99], medians[copied][0.5])


def throughput_on_vllm(folder: Path, rounds: int) -> dict[int, float]:
    """(a) Tokens per second through the gateway ÷ bare, on real vLLM.

    The engine's speed on a shared machine drifts by a tenth and more within minutes. So the two take turns in short
    pairs, a few seconds apart, and the median over many pairs counts, with a bootstrap interval.
    """
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    port, pairs = free_port(), 4 * rounds
    engine = LocalEngine(cpu_vllm(python), model, MODEL_NAME, free_port(), 32, on_cpu=True, core=0)
    table = Table("streams", "bare tok/s", "Headway tok/s", "ratio", "95 % interval", "pairs, lowest .. highest")
    medians = {}
    with EngineProcess(engine) as process:
        with console.status("starting vLLM (about 40 s)"):
            process.wait_ready(300)
        bare, ours = process.url, f"http://127.0.0.1:{port}"
        with gateway(port, folder, model=MODEL_NAME, engine_urls=[bare], seats=32):
            for streams in (1, 8, 32):
                request = chat_request(MODEL_NAME, TOKENS_ON_VLLM)
                speeds: dict[str, list[float]] = {bare: [], ours: []}
                for url in (bare, ours):
                    uvloop.run(at_once(url, request, streams))  # warm
                for number in track(range(pairs), f"(a) {streams} streams", console=console, transient=True):
                    for url in (bare, ours) if number % 2 else (ours, bare):
                        done, seconds = uvloop.run(at_once(url, request, streams))
                        all_complete(done)
                        speeds[url].append(sum(s.tokens for s in done) / seconds)
                ratios = [b / a for a, b in zip(speeds[bare], speeds[ours], strict=True)]
                medians[streams] = statistics.median(ratios)
                tps = [f"{statistics.median(speeds[url]):.1f}" for url in (bare, ours)]
                table.add_row(str(streams), *tps, f"{medians[streams]:.3f}", interval_of_median(ratios), spread(ratios))
    console.print(f"(a) real vLLM, SmolLM2-135M, {TOKENS_ON_VLLM} tokens out, {pairs} pairs each", table, sep="\n")
    return medians


def interval_of_median(values: list[float]) -> str:
    chance = random.Random(2)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return f"{medians[50]:.3f} .. {medians[1949]:.3f}"


def main(rounds: int) -> int:
    require(console, fast_cores=True, free_cores=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens_per_cpu_s = relay_cpu(folder, rounds)
        added = added_first_token(folder, rounds)
        throughput = throughput_on_vllm(folder, rounds)
    figures = Figures(throughput, added.p50, added.p99, added.forwarder_p50, tokens_per_cpu_s)
    judged = verdict(figures)
    code = finish(console, judged)
    is_first_token_only = all(bar.holds or bar.what.startswith(FIRST_TOKEN) for bar in judged.bars)
    if not judged.ok and is_first_token_only and figures.forwarder_p50_ms > MAX_FORWARDER_MS:
        too_slow(console, f"copying bytes adds {figures.forwarder_p50_ms:.2f} ms, {MAX_FORWARDER_MS} is allowed")
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
