"""Fast mode on real vLLM under saturating standard load. See runs/fast-mode.sh.

Every part ends after a fixed number of answers, not seconds, so that a slow machine takes longer and measures the same.
Below MIN_STANDARD_TPS answers would exceed the time limit of a call; the run then reports that the machine is too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.calibrate import SpeedPoint, measure_prompts, nine_in_ten_speed
from headway.bench.client import LoadClient
from headway.engines.vllm import read_metrics
from headway.http1 import ConnectionPool, fetch
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.machine import require, too_slow
from runs.measure.streams import CALL_TIMEOUT_S, ChatRequest, Stream, call, chat_request, gateway
from runs.measure.verdict import Verdict, at_least, finish

console = Console(width=110)
SEATS, STANDARD_STREAMS = 64, 96  # more than one replica seats: while one replica is light, the rest wait
LIGHT_STREAMS = 2  # the batch that the floor is set for
FAST_TOKENS, STANDARD_TOKENS = 48, 96
FLOOR_RATIO = 1.5  # times the speed of a standard stream
MIN_KEPT, MIN_RATIO, GOAL_RATIO, MIN_SERVED, MIN_IN_FLIGHT = 0.99, 2.0, 2.5, 0.99, 48
# Minimum speed of a stream of a full engine. A caller waits for the call before it and then for its own answer.
MIN_STANDARD_TPS = 2 * STANDARD_TOKENS / CALL_TIMEOUT_S
QUESTIONS = [f"What is {a} plus {b}, and why?" for a in range(2, 7) for b in (3, 11, 20, 45)]


@dataclass
class Measured:
    points: list[SpeedPoint] = field(default_factory=list)
    prompt_tps: float = 0.0
    floor_tps: float = 0.0
    fast: list[Stream] = field(default_factory=list)
    standard: list[Stream] = field(default_factory=list)  # those during fast streams
    alone_tps: list[float] = field(default_factory=list)  # standard throughput before and after
    beside_tps: float = 0.0
    in_flight: list[float] = field(default_factory=list)  # standard streams on the engines, sampled every second
    same_text: list[bool] = field(default_factory=list)
    same_words: list[int] = field(default_factory=list)


@dataclass
class Callers:
    """Callers that call again as soon as they have their answer."""

    done: list[Stream] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def until(self, more: int) -> list[Stream]:
        """Wait for `more` further answers and return them. Re-raises the exception of a failed caller."""
        before = len(self.done)
        while len(self.done) < before + more:
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)
        return self.done[before:]


@contextlib.asynccontextmanager
async def load(url: str, request: ChatRequest, streams: int) -> AsyncIterator[Callers]:
    callers = Callers()

    async def one() -> None:
        while True:
            stream = await call(url, request)
            if stream.complete:
                callers.done.append(stream)
            else:
                await asyncio.sleep(0.1)

    callers.tasks = [asyncio.create_task(one()) for _ in range(streams)]
    try:
        yield callers
    finally:
        for task in callers.tasks:
            task.cancel()
        await asyncio.gather(*callers.tasks, return_exceptions=True)


async def measure_curve(light: str, heavy: str, into: Measured) -> None:
    """Measure the speed of a light engine while the other one is full, as in the run itself. The floor is 1.5 times the
    speed of a stream of the full engine: this kind of machine changes its speed by three quarters within seconds, so
    twice the speed, which the median fast stream easily has, cannot be promised to 99 in 100."""
    request = chat_request(MODEL_NAME, FAST_TOKENS)
    async with load(heavy, chat_request(MODEL_NAME, STANDARD_TOKENS), SEATS) as full:
        first = await full.until(SEATS)  # they began together: the engine has read 64 prompts and is full
        usual_tps = statistics.median(stream.speed_tps for stream in first)
        if usual_tps < MIN_STANDARD_TPS:
            too_slow(console, f"a stream of a full engine gets {usual_tps:.2f} tok/s of {MIN_STANDARD_TPS:.2f} needed")
        client = LoadClient(light, MODEL_NAME, seed=int(time.time()))
        into.prompt_tps = await measure_prompts(client)
        client.close()
        for batch, rounds in ((1, 12), (LIGHT_STREAMS, 12), (8, 3)):
            speeds: list[float] = []
            for _ in range(rounds):
                speeds += [s.speed_tps for s in await asyncio.gather(*[call(light, request) for _ in range(batch)])]
            into.points.append((batch, nine_in_ten_speed(speeds)))
        if len(full.done) < 2 * SEATS:  # the light engine was quick: as many answers again
            await full.until(2 * SEATS - len(full.done))
        beside = [stream.speed_tps for stream in full.done[SEATS:]]
        into.points.append((SEATS, nine_in_ten_speed(beside)))
        into.floor_tps = round(FLOOR_RATIO * statistics.median(beside), 1)


async def throughput(callers: Callers, answers: int) -> float:
    began = time.perf_counter()
    done = await callers.until(answers)
    return sum(stream.tokens for stream in done) / (time.perf_counter() - began)


async def watch(urls: list[str], fast: list[None], into: Measured) -> None:
    """Sample the number of standard streams on the engines until cancelled."""
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
    """Ask the same questions at temperature 0 as fast and as standard."""
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
                continue  # downgraded: nothing to compare
            words = list(zip(fast.split(), standard.split(), strict=False))
            into.same_text.append(fast == standard)
            into.same_words.append(next((n for n, (a, b) in enumerate(words) if a != b), len(words)))


async def measure(url: str, engines: list[str], fast_streams: int, into: Measured) -> None:
    fast_request = chat_request(MODEL_NAME, FAST_TOKENS, service_tier="fast")
    running_fast: list[None] = []
    async with load(url, chat_request(MODEL_NAME, STANDARD_TOKENS), STANDARD_STREAMS) as standard:
        await standard.until(STANDARD_STREAMS)
        into.alone_tps.append(await throughput(standard, 2 * STANDARD_STREAMS))
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("fast streams", total=fast_streams)
            # Not counted: the first fast call finds all replicas full, closes doors, waits, and may be downgraded.
            await call(url, fast_request)
            before, began = len(standard.done), time.perf_counter()

            def is_enough() -> bool:
                return len(into.fast) + len(running_fast) >= fast_streams and len(standard.done) - before >= SEATS

            async def fast_caller() -> None:
                while not is_enough():
                    running_fast.append(None)
                    stream = await call(url, fast_request)
                    running_fast.pop()
                    into.fast.append(stream)
                    progress.advance(bar)

            watching = asyncio.create_task(watch(engines, running_fast, into))
            await asyncio.gather(*[fast_caller() for _ in range(LIGHT_STREAMS)])
            into.standard = standard.done[before:]
            into.beside_tps = sum(s.tokens for s in into.standard) / (time.perf_counter() - began)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await compare_texts(url, into)
        await standard.until(STANDARD_STREAMS)  # the doors open again, and all callers are aboard
        into.alone_tps.append(await throughput(standard, 2 * STANDARD_STREAMS))


def in_time(part: Coroutine[None, None, None]) -> None:
    """Run a part of the measurement. A call that times out ends the run as too slow, not as a missed bar."""
    try:
        uvloop.run(part)
    except TimeoutError:
        too_slow(console, f"a call took longer than {CALL_TIMEOUT_S:.0f} s")


def main(fast_streams: int) -> int:
    require(console, free_cores=True)
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
            in_time(measure_curve(engines[0].url, engines[1].url, into))
        shown = [(batch, round(tps, 1)) for batch, tps in into.points]
        console.print(f"curve: {shown}; prompts {into.prompt_tps:.0f} tok/s; floor {into.floor_tps} tok/s")
        tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
        tiers += f"floor_tps = {into.floor_tps}\nmax_hold_s = 20.0\n"
        lines = f"curve = {[[batch, round(tps, 3)] for batch, tps in into.points]}\n"
        lines += f"prompt_tps = {into.prompt_tps}\n"
        port = free_port()
        urls = [engine.url for engine in engines]
        with gateway(port, folder, model=MODEL_NAME, engine_urls=urls, seats=SEATS, tiers=tiers, curve=lines):
            in_time(measure(f"http://127.0.0.1:{port}", urls, fast_streams, into))
    return report(into)


@dataclass(frozen=True)
class Figures:
    fast_calls: int
    served: int  # of these, as fast
    kept: int  # of those served, with their floor kept
    fast_tps: float  # medians of streams
    standard_tps: float
    in_flight: float  # standard streams on the engines, median


def verdict(figures: Figures) -> Verdict:
    kept = figures.kept / figures.served if figures.served else math.nan
    ratio = figures.fast_tps / figures.standard_tps
    bars = (
        at_least("floors kept", kept, MIN_KEPT, ".1%"),
        at_least("fast ÷ standard, tok/s", ratio, MIN_RATIO),
        at_least("fast calls served as fast", figures.served / figures.fast_calls, MIN_SERVED, ".1%"),
        at_least("standard streams on the engines, median", figures.in_flight, MIN_IN_FLIGHT, ".0f"),
    )
    figure = (
        f"floors kept {kept:.1%} (bar {MIN_KEPT:.0%}); fast ÷ standard {ratio:.2f} (bar {MIN_RATIO}, goal {GOAL_RATIO})"
    )
    return Verdict(figure, bars)


def median(values: Iterable[float]) -> float:
    """The median, or NaN if there are no values."""
    return statistics.median(found) if (found := list(values)) else math.nan


def report(into: Measured) -> int:
    served = [s for s in into.fast if s.proof.get("tier_served") == "fast"]
    figures = Figures(
        len(into.fast),
        len(served),
        sum(s.proof.get("kept") is True for s in served),
        median(s.speed_tps for s in served),
        median(s.speed_tps for s in into.standard),
        median(into.in_flight),
    )
    if served:
        show(into, served, figures)
    return finish(console, verdict(figures))


def show(into: Measured, served: list[Stream], figures: Figures) -> None:
    speeds, waits = [s.speed_tps for s in served], sorted(s.first_at - s.sent_at for s in served)
    fast_total_tps = sum(s.tokens for s in served) / (max(s.last_at for s in served) - min(s.sent_at for s in served))
    before_tps, after_tps = into.alone_tps
    multiple = (statistics.mean(into.alone_tps) - into.beside_tps) / fast_total_tps
    ends = f"({min(speeds):.1f} .. {max(speeds):.1f})"
    rows = [
        ("fast streams served as fast, of all", f"{len(served)} of {len(into.fast)}"),
        ("fast: median tok/s (slowest .. fastest)", f"{figures.fast_tps:.1f} {ends}"),
        ("fast: time to first token p50, p95", f"{waits[len(waits) // 2]:.2f}, {waits[int(0.95 * len(waits))]:.2f} s"),
        ("standard beside them: median tok/s", f"{figures.standard_tps:.1f}"),
        ("floor (÷ median standard)", f"{into.floor_tps:.1f} tok/s ({into.floor_tps / figures.standard_tps:.2f})"),
        ("standard streams on the engines: least, median", f"{min(into.in_flight):.0f}, {figures.in_flight:.0f}"),
        ("standard tok/s in all before, beside, after", f"{before_tps:.0f}, {into.beside_tps:.0f}, {after_tps:.0f}"),
        ("fast tok/s in all", f"{fast_total_tps:.1f}"),
        ("standard tokens lost per fast token: the price multiple", f"{multiple:.1f}"),
        ("same text at temperature 0, of all", f"{sum(into.same_text)} of {len(into.same_text)}"),
        ("first different word, median", f"{median(into.same_words):.0f}"),
    ]  # fmt: skip
    table = Table("what", "measured")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
