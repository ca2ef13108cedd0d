"""Fast mode on real vLLM under saturating standard load. See runs/fast-mode.sh."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.calibrate import SpeedPoint, measure_prompts, nearly_all_got
from headway.bench.client import Client
from headway.engines.vllm import read_metrics
from headway.http1 import ConnectionPool, fetch
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.streams import Stream, call, chat_request, gateway

console = Console(width=110)
SEATS, STANDARD_STREAMS = 64, 96  # a full replica and more: while one replica is light, the others wait
LIGHT_STREAMS = 2  # the batch the floor is made for
FAST_TOKENS, STANDARD_TOKENS = 48, 96
FLOOR_RATIO = 1.5  # times the speed of a standard stream
MIN_KEPT, MIN_RATIO, GOAL_RATIO, MIN_IN_FLIGHT = 0.99, 2.0, 2.5, 48
QUESTIONS = [f"What is {a} plus {b}, and why?" for a in range(2, 7) for b in (3, 11, 20, 45)]


@dataclass
class Measured:
    points: list[SpeedPoint] = field(default_factory=list)
    prompt_tps: float = 0.0
    floor_tps: float = 0.0
    fast: list[Stream] = field(default_factory=list)
    standard: list[Stream] = field(default_factory=list)  # those beside fast streams
    alone_tps: list[float] = field(default_factory=list)  # standard throughput before and after
    beside_tps: float = 0.0
    in_flight: list[float] = field(default_factory=list)  # standard streams on the engines, looked at every second
    same_text: list[bool] = field(default_factory=list)
    same_words: list[int] = field(default_factory=list)


@contextlib.asynccontextmanager
async def load(url: str, request: bytes, streams: int):  # type: ignore[no-untyped-def]
    """That many callers who call again as soon as they have their answer; yields the list of what they got."""
    done: list[Stream] = []

    async def one() -> None:
        while True:
            stream = await call(url, request)
            if stream.complete:
                done.append(stream)
            else:
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(one()) for _ in range(streams)]
    try:
        yield done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure_curve(light: str, heavy: str, into: Measured) -> None:
    """What a light engine gives beside a full one, as it will be. The floor is half as much again as a stream of the
    full one gets: a machine of this kind changes its speed by three quarters within seconds, by itself, so that twice
    as much, which the median fast stream has with ease, cannot be promised to 99 in 100."""
    request = chat_request(MODEL_NAME, FAST_TOKENS)
    async with load(heavy, chat_request(MODEL_NAME, STANDARD_TOKENS), SEATS) as full:
        await asyncio.sleep(15)
        client = Client(light, MODEL_NAME, seed=int(time.time()))
        into.prompt_tps = await measure_prompts(client)
        client.close()
        for batch, rounds in ((1, 12), (LIGHT_STREAMS, 12), (8, 3)):
            speeds: list[float] = []
            for _ in range(rounds):
                speeds += [s.speed_tps for s in await asyncio.gather(*[call(light, request) for _ in range(batch)])]
            into.points.append((batch, nearly_all_got(speeds)))
        into.points.append((SEATS, nearly_all_got([s.speed_tps for s in full])))
        into.floor_tps = round(FLOOR_RATIO * statistics.median(s.speed_tps for s in full), 1)


async def throughput(done: list[Stream], seconds: float) -> float:
    before, began = len(done), time.perf_counter()
    await asyncio.sleep(seconds)
    return sum(s.tokens for s in done[before:]) / (time.perf_counter() - began)


async def watch(urls: list[str], fast: list[None], into: Measured) -> None:
    """How many standard streams the engines run, until cancelled."""
    pools = [ConnectionPool(url) for url in urls]
    try:
        while True:
            running = 0.0
            for pool in pools:
                _, page = await fetch(pool, "/metrics", 5.0)
                running += read_metrics(page, (b"vllm:num_requests_running",))[0]
            into.in_flight.append(running - len(fast))
            await asyncio.sleep(1)
    finally:
        for pool in pools:
            pool.close()


async def compare_texts(url: str, into: Measured) -> None:
    """The same questions at temperature 0 as fast and as standard."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:

        async def answer(question: str, tier: str) -> str | None:
            said = await client.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": question}], max_tokens=64, temperature=0,
                extra_body={"service_tier": tier},
            )  # fmt: skip
            return said.choices[0].message.content or "" if said.service_tier == tier else None

        for question in QUESTIONS:
            fast, standard = await asyncio.gather(answer(question, "fast"), answer(question, "default"))
            if fast is None or standard is None:
                continue  # it was downgraded: there is nothing to compare
            words = list(zip(fast.split(), standard.split(), strict=False))
            into.same_text.append(fast == standard)
            into.same_words.append(next((n for n, (a, b) in enumerate(words) if a != b), len(words)))


async def measure(url: str, engines: list[str], fast_streams: int, into: Measured) -> None:
    fast_request = chat_request(MODEL_NAME, FAST_TOKENS, service_tier="fast")
    running_fast: list[None] = []
    async with load(url, chat_request(MODEL_NAME, STANDARD_TOKENS), STANDARD_STREAMS) as standard:
        await asyncio.sleep(20)
        into.alone_tps.append(await throughput(standard, 45))
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("fast streams", total=fast_streams)

            async def fast_caller() -> None:
                while len(into.fast) + len(running_fast) < fast_streams:
                    running_fast.append(None)
                    stream = await call(url, fast_request)
                    running_fast.pop()
                    into.fast.append(stream)
                    progress.advance(bar)

            # The first fast call finds a full fleet: it closes a door and waits, and may be downgraded. Not counted.
            await call(url, fast_request)
            before, began = len(standard), time.perf_counter()
            watching = asyncio.create_task(watch(engines, running_fast, into))
            await asyncio.gather(*[fast_caller() for _ in range(LIGHT_STREAMS)])
            into.standard = standard[before:]
            into.beside_tps = sum(s.tokens for s in into.standard) / (time.perf_counter() - began)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await compare_texts(url, into)
        await asyncio.sleep(30)  # the doors open again
        into.alone_tps.append(await throughput(standard, 45))


def main(fast_streams: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    into = Measured()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [
            stack.enter_context(
                EngineProcess(
                    LocalEngine(cpu_vllm(python), model, MODEL_NAME, free_port(), SEATS, on_cpu=True, core=core)
                )
            )
            for core in (0, 1)
        ]
        with console.status("starting two engines (about a minute)"):
            for engine in engines:
                engine.wait_ready(300)
        with console.status("measuring the curve of a light engine beside a full one (about three minutes)"):
            uvloop.run(measure_curve(engines[0].url, engines[1].url, into))
        shown = [(batch, round(tps, 1)) for batch, tps in into.points]
        console.print(f"curve: {shown}; prompts {into.prompt_tps:.0f} tok/s; floor {into.floor_tps} tok/s")
        tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
        tiers += f"floor_tps = {into.floor_tps}\nmax_hold_s = 20.0\n"
        lines = f"curve = {[[batch, round(tps, 3)] for batch, tps in into.points]}\n"
        lines += f"prompt_tps = {into.prompt_tps}\n"
        port = free_port()
        urls = [engine.url for engine in engines]
        with gateway(port, folder, model=MODEL_NAME, engine_urls=urls, seats=SEATS, tiers=tiers, curve=lines):
            uvloop.run(measure(f"http://127.0.0.1:{port}", urls, fast_streams, into))
    return report(into)


def report(into: Measured) -> int:
    served = [s for s in into.fast if s.proof.get("tier_served") == "fast"]
    kept = sum(s.proof.get("kept") is True for s in served) / max(1, len(served))
    speeds = [s.speed_tps for s in served]
    if not served:
        console.print(f"none of {len(into.fast)} fast calls was served as fast: floors kept 0 %")
        return 1
    fast_tps, standard_tps = statistics.median(speeds), statistics.median(s.speed_tps for s in into.standard)
    alone_tps = statistics.mean(into.alone_tps)
    took_s = max(s.last_at for s in served) - min(s.sent_at for s in served)
    fast_total_tps = sum(s.tokens for s in served) / took_s
    in_flight = sorted(into.in_flight)
    waits = sorted(s.first_at - s.sent_at for s in served)
    before_tps, after_tps = into.alone_tps
    multiple = (alone_tps - into.beside_tps) / fast_total_tps
    rows = [
        ("fast streams served as fast, of all", f"{len(served)} of {len(into.fast)}"),
        ("fast: median tok/s (slowest .. fastest)", f"{fast_tps:.1f} ({min(speeds):.1f} .. {max(speeds):.1f})"),
        ("fast: time to first token p50, p95", f"{waits[len(waits) // 2]:.2f}, {waits[int(0.95 * len(waits))]:.2f} s"),
        ("standard beside them: median tok/s", f"{standard_tps:.1f}"),
        ("floor (÷ median standard)", f"{into.floor_tps:.1f} tok/s ({into.floor_tps / standard_tps:.2f})"),
        ("standard streams on the engines: least, median", f"{in_flight[0]:.0f}, {statistics.median(in_flight):.0f}"),
        ("standard tok/s in all before, beside, after", f"{before_tps:.0f}, {into.beside_tps:.0f}, {after_tps:.0f}"),
        ("fast tok/s in all", f"{fast_total_tps:.1f}"),
        ("standard tokens lost per fast token: the price multiple", f"{multiple:.1f}"),
        ("same text at temperature 0, of all", f"{sum(into.same_text)} of {len(into.same_text)}"),
        ("first different word, median", f"{statistics.median(into.same_words or [0]):.0f}"),
    ]  # fmt: skip
    table = Table("what", "measured")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    ratio = fast_tps / standard_tps
    holds = (
        kept >= MIN_KEPT
        and ratio >= MIN_RATIO
        and len(served) >= 0.99 * len(into.fast)
        and statistics.median(in_flight) >= MIN_IN_FLIGHT
    )
    console.print(
        f"floors kept {kept:.1%} (bar {MIN_KEPT:.0%}); fast ÷ standard {ratio:.2f} (bar {MIN_RATIO}, goal {GOAL_RATIO})"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
