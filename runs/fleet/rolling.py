"""A rolling restart by `headway drain`, of scripted replicas and of real engines. See runs/rolling-restart.sh."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from headway.engines.vllm import read_metrics
from headway.errors import ConnectionFailed
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.fetch import fetch
from runs.measure.streams import Stream, call, chat_request, gateway, scripted
from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
ADMIN_KEY = "admin-of-this-run"
SCRIPTED, SEATS = 8, 16
OPEN_S = 120.0  # for a replica to be open again


@dataclass(frozen=True)
class Load:
    """What callers ask for all the time."""

    model: str
    standard: int  # callers
    fast: int
    tokens: tuple[int, int]
    floor_tps: float
    curve: str
    seats: int


SCRIPTED_LOAD = Load("m", 40, 8, (20, 80), 25.0, "[[1, 50.0], [16, 50.0]]", SEATS)
VLLM_LOAD = Load(MODEL_NAME, 4, 1, (24, 48), 2.0, "[[1, 9.0], [8, 6.0]]", 8)


@dataclass(frozen=True)
class Figures:
    restarts: int
    served: int
    failed: int  # calls that got an error, or nothing
    cut: int  # streams that began and were not complete
    fast: int  # streams with a floor that were served as fast
    missed: int  # of these, below their floor by their proof


def verdict(of_fleets: dict[str, Figures]) -> Verdict:
    bars = []
    for fleet, figures in of_fleets.items():
        bars += [
            none_of(f"calls failed, {fleet}", figures.failed),
            none_of(f"streams cut, {fleet}", figures.cut),
            none_of(f"floors missed, {fleet}", figures.missed),
            at_least(f"fast streams, {fleet}", figures.fast, figures.restarts, "d"),
            at_least(f"restarts, {fleet}", figures.restarts, 2, "d"),
        ]
    parts = [
        f"{fleet}: {one.restarts} restarts under {one.served:,} calls: {one.failed} failed, {one.cut} cut, "
        f"{one.missed} of {one.fast} floors missed"
        for fleet, one in of_fleets.items()
    ]
    return Verdict("; ".join(parts), tuple(bars))


class Engine:
    """A replica that can be restarted on its port."""

    def __init__(self, url: str, start: Callable[[], ExitStack]) -> None:
        self.url = url
        self._start = start
        self._running = start()

    def restart(self) -> None:
        self._running.close()
        self._running = self._start()

    def stop(self) -> None:
        self._running.close()


@contextmanager
def scripted_engines(count: int) -> Iterator[list[Engine]]:
    def starting(port: int) -> Callable[[], ExitStack]:
        def start() -> ExitStack:
            stack = ExitStack()
            stack.enter_context(scripted(port, model="m", first_token_ms=20, step_ms="1:20", seats=64))
            return stack

        return start

    with ExitStack() as stack:
        engines = []
        for _ in range(count):
            port = free_port()
            engines.append(Engine(f"http://127.0.0.1:{port}", starting(port)))
            stack.callback(engines[-1].stop)
        yield engines


@contextmanager
def vllm_engines() -> Iterator[list[Engine]]:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))

    def starting(core: int, port: int) -> Callable[[], ExitStack]:
        def start() -> ExitStack:
            stack = ExitStack()
            engine = LocalEngine(cpu_vllm(python), model, MODEL_NAME, port, VLLM_LOAD.seats, on_cpu=True, core=core)
            stack.enter_context(EngineProcess(engine)).wait_ready(300)
            return stack

        return start

    with ExitStack() as stack:
        engines = []
        for core in (0, 1):
            port = free_port()
            engines.append(Engine(f"http://127.0.0.1:{port}", starting(core, port)))
            stack.callback(engines[-1].stop)
        yield engines


class Callers:
    def __init__(self, url: str, load: Load) -> None:
        self._url = url
        self._load = load
        self.served = self.failed = self.cut = self.fast = self.missed = 0
        self.failures: Counter[int] = Counter()  # by status; 0 is no answer

    async def keep_calling(self, seed: str, tier: str, until: asyncio.Event) -> None:
        dice = random.Random(seed)
        while not until.is_set():
            tokens = dice.randint(*self._load.tokens)
            try:
                stream = await call(self._url, chat_request(self._load.model, tokens, service_tier=tier))
            except (ConnectionFailed, TimeoutError):
                stream = Stream()
            if stream.status != 200:
                self.failed += 1
                self.failures[stream.status] += 1
            elif not stream.complete or stream.tokens != tokens:
                self.cut += 1
            else:
                self.served += 1
                if stream.proof.get("tier_served") == "fast":
                    self.fast += 1
                    self.missed += stream.proof.get("kept") is False


def is_open(gateway_url: str, url: str) -> bool:
    page = fetch(f"{gateway_url}/metrics", timeout_s=10)
    lines = [line for line in page.splitlines() if url.encode() in line]
    return read_metrics(b"\n".join(lines), (b"headway_replica_open",)) == (1.0,)


async def drain(gateway_url: str, url: str, *more: str) -> None:
    command = [sys.executable, "-m", "headway", "drain", url, "--gateway", gateway_url, *more]
    env = os.environ | {"HEADWAY_ADMIN_KEY": ADMIN_KEY}
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.DEVNULL)
    if await process.wait():
        raise SystemExit(f"headway drain {url} failed")


async def roll(gateway_url: str, engines: list[Engine], load: Load) -> Figures:
    callers, done = Callers(gateway_url, load), asyncio.Event()
    tiers = ["default"] * load.standard + ["fast"] * load.fast
    tasks = [asyncio.create_task(callers.keep_calling(f"{number}", tier, done)) for number, tier in enumerate(tiers)]
    for engine in engines:
        await drain(gateway_url, engine.url)
        await asyncio.to_thread(engine.restart)
        await drain(gateway_url, engine.url, "--undo")
        async with asyncio.timeout(OPEN_S):
            while not is_open(gateway_url, engine.url):
                await asyncio.sleep(0.1)
        console.print(f"{engine.url} was restarted: {callers.served:,} calls served, {callers.failed} failed")
    done.set()
    await asyncio.gather(*tasks)
    return Figures(len(engines), callers.served, callers.failed, callers.cut, callers.fast, callers.missed)


def measure(engines: list[Engine], load: Load) -> Figures:
    hashed = hashlib.sha256(ADMIN_KEY.encode()).hexdigest()
    fast = f'[[models.tiers]]\nname = "fast"\nfloor_tps = {load.floor_tps}\nmax_hold_s = 120.0\n'
    standard = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 300.0\n'
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with gateway(
            port,
            Path(folder),
            model=load.model,
            engine_urls=[engine.url for engine in engines],
            seats=load.seats,
            tiers=standard + fast,
            curve=f"curve = {load.curve}",
            timing=f'admin_key_hashes = ["{hashed}"]',
        ):
            return uvloop.run(roll(f"http://127.0.0.1:{port}", engines, load))


def main() -> int:
    found = {}
    with scripted_engines(SCRIPTED) as engines:
        found["scripted"] = measure(engines, SCRIPTED_LOAD)
    if "scripted" not in sys.argv[1:]:
        with vllm_engines() as engines:
            found["vLLM"] = measure(engines, VLLM_LOAD)
    return finish(console, verdict(found))


if __name__ == "__main__":
    sys.exit(main())
