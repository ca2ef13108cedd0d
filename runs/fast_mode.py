"""Fast mode on real vLLM under saturating standard load. See runs/fast-mode.sh."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from streams import Stream, call, chat_request, gateway

from headway.core.curve import Curve, fit
from headway.fleet.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.fleet.local import EngineProcess, LocalEngine, cpu_vllm, free_port

console = Console(width=110)
SEATS, STANDARD_STREAMS = 32, 64  # of the standard streams half is aboard when one replica is light; the others wait
LIGHT_STREAMS = 2  # the batch the floor is made for
FAST_TOKENS, STANDARD_TOKENS = 48, 96
MIN_KEPT, MIN_RATIO, GOAL_RATIO = 0.99, 2.0, 2.5
MARGIN = 0.1  # as in core


async def keep_busy(url: str, request: bytes, streams: int, done: list[Stream]) -> None:
    """That many callers who call again as soon as they have their answer, until cancelled."""

    async def one() -> None:
        while True:
            stream = await call(url, request)
            if stream.complete:
                done.append(stream)
            else:
                await asyncio.sleep(0.1)

    await asyncio.gather(*[one() for _ in range(streams)])


@contextlib.asynccontextmanager
async def load(url: str, request: bytes, streams: int):  # type: ignore[no-untyped-def]
    done: list[Stream] = []
    task = asyncio.create_task(keep_busy(url, request, streams, done))
    try:
        yield done
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def calibrate_in_company(light: str, heavy: str) -> tuple[Curve, list[tuple[int, float]]]:
    """Points of the light engine's curve while the other is full, as it will be; the full one gives the last point."""
    request = chat_request(MODEL_NAME, FAST_TOKENS)
    async with load(heavy, chat_request(MODEL_NAME, STANDARD_TOKENS), SEATS) as full:
        await asyncio.sleep(15)
        points = []
        for batch in (1, LIGHT_STREAMS, 8):
            speeds: list[float] = []
            for _ in range(4 if batch <= LIGHT_STREAMS else 2):
                speeds += [s.speed_tps for s in await asyncio.gather(*[call(light, request) for _ in range(batch)])]
            points.append((batch, statistics.median(speeds)))
        points.append((SEATS, statistics.median([s.speed_tps for s in full])))
    return fit([(batch, 1 / tps) for batch, tps in points]), points


async def measure(url: str, fast_streams: int) -> tuple[list[Stream], list[Stream], float, float]:
    """(fast streams, standard streams beside them, standard tok/s before, standard tok/s beside)."""
    standard_request = chat_request(MODEL_NAME, STANDARD_TOKENS)
    fast_request = chat_request(MODEL_NAME, FAST_TOKENS, service_tier="fast")
    fast: list[Stream] = []
    async with load(url, standard_request, STANDARD_STREAMS) as standard:
        await asyncio.sleep(20)
        before, began = len(standard), time.perf_counter()
        await asyncio.sleep(40)
        alone_tps = sum(s.tokens for s in standard[before:]) / (time.perf_counter() - began)
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("fast streams", total=fast_streams)

            async def fast_caller(count: int) -> None:
                for _ in range(count):
                    fast.append(await call(url, fast_request))
                    progress.advance(bar)

            # The first fast call finds a full fleet: it closes a door and may wait or be downgraded. It is not counted.
            await call(url, fast_request)
            await asyncio.sleep(12)
            before, began = len(standard), time.perf_counter()
            await asyncio.gather(*[fast_caller(fast_streams // LIGHT_STREAMS) for _ in range(LIGHT_STREAMS)])
        beside = standard[before:]
        beside_tps = sum(s.tokens for s in beside) / (time.perf_counter() - began)
    return fast, beside, alone_tps, beside_tps


def main(fast_streams: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
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
        with console.status("measuring the curve of a light engine beside a full one (about a minute)"):
            curve, points = uvloop.run(calibrate_in_company(engines[0].url, engines[1].url))
        floor_tps = round(curve.speed_tps(LIGHT_STREAMS) / (1 + MARGIN) - 0.05, 1)
        console.print(f"curve: {[(batch, round(tps, 1)) for batch, tps in points]}; floor {floor_tps} tok/s")
        tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
        tiers += f"floor_tps = {floor_tps}\nmax_hold_s = 20.0\n"
        line = f"curve = {[[batch, round(curve.speed_tps(batch), 3)] for batch in (1, LIGHT_STREAMS, 8, SEATS)]}"
        port = free_port()
        urls = [engine.url for engine in engines]
        with gateway(port, folder, model=MODEL_NAME, engine_urls=urls, seats=SEATS, tiers=tiers, curve=line):
            fast, standard, alone_tps, beside_tps = uvloop.run(measure(f"http://127.0.0.1:{port}", fast_streams))
    return report(fast, standard, floor_tps, alone_tps, beside_tps)


def report(fast: list[Stream], standard: list[Stream], floor_tps: float, alone_tps: float, beside_tps: float) -> int:
    served = [s for s in fast if s.proof.get("tier_served") == "fast"]
    kept = sum(s.proof.get("kept") is True for s in served) / max(1, len(served))
    fast_tps, standard_tps = (statistics.median(s.speed_tps for s in group) for group in (served, standard))
    fast_total_tps = fast_tps * LIGHT_STREAMS
    table = Table("what", "measured")
    table.add_row("fast streams served as fast, of all", f"{len(served)} of {len(fast)}")
    speeds = [s.speed_tps for s in served]
    table.add_row("fast: median tok/s (slowest .. fastest)", f"{fast_tps:.1f} ({min(speeds):.1f} .. {max(speeds):.1f})")
    table.add_row("standard beside them: median tok/s", f"{standard_tps:.1f}")
    table.add_row("floor, tok/s", f"{floor_tps:.1f}")
    table.add_row("standard throughput without and with fast streams, tok/s", f"{alone_tps:.0f}, {beside_tps:.0f}")
    lost = alone_tps - beside_tps
    table.add_row("standard tokens lost for each fast token: the price of speed", f"{lost / fast_total_tps:.1f}")
    console.print(table)
    ratio = fast_tps / standard_tps
    holds = kept >= MIN_KEPT and ratio >= MIN_RATIO and len(served) >= 0.99 * len(fast)
    console.print(
        f"floors kept {kept:.1%} (bar {MIN_KEPT:.0%}); fast ÷ standard {ratio:.2f} (bar {MIN_RATIO}, goal {GOAL_RATIO})"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
