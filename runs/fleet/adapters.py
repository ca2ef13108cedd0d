"""Two LoRA adapters and their base on the seats of one real vLLM engine. See runs/adapters.sh."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from headway.engines.vllm import STREAM_METRICS, read_metrics
from headway.http1 import ConnectionPool
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.fetch import fetch
from runs.measure.streams import call, chat_request, process
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
ADAPTERS = ("adapter-one", "adapter-two")
MODELS = (MODEL_NAME, *ADAPTERS)
# The floor is low: this is about who shares what, on any machine.
SEATS, CALLERS, CALLS, FLOOR_TPS = 8, 15, 90, 0.5
LOOK_S = 0.05


@dataclass(frozen=True)
class Figures:
    served: dict[str, int]  # by model
    failed: int
    missed: int  # floors, by the proofs
    fast: int
    most_running: int  # by the engine's own count: running and waiting
    same_answers: int  # pairs of models that gave the same greedy answer
    told_apart: int  # models that gave, through the gateway, what their engine gives itself


def verdict(figures: Figures) -> Verdict:
    bars = (
        at_most("streams on the engine at once, by its own count", figures.most_running, SEATS, "d"),
        at_least("streams on the engine at once, by its own count", figures.most_running, SEATS - 1, "d"),
        none_of("calls failed", figures.failed),
        *[at_least(f"calls to {model}", figures.served.get(model, 0), 10, "d") for model in MODELS],
        at_least("fast calls", figures.fast, 5, "d"),
        none_of("floors missed", figures.missed),
        none_of("pairs of models with the same answer", figures.same_answers),
        at_least("models that answer as their engine does itself", figures.told_apart, len(MODELS), "d"),
    )
    figure = (
        f"two LoRA adapters and their base on one pool of {SEATS} seats of vLLM: {sum(figures.served.values())} calls, "
        f"at most {figures.most_running} streams at once by the engine's own count, {figures.missed} of {figures.fast} "
        f"floors missed, {figures.failed} failed"
    )
    return Verdict(figure, bars)


@contextmanager
def engine_with_adapters(folder: Path) -> Iterator[str]:
    python = ensure_cpu_engine(console.print)
    model = ensure_smollm2(python, console.print)
    script = Path(__file__).with_name("random_adapter.py")
    modules = []
    for seed, name in enumerate(ADAPTERS):
        subprocess.run([python, script, model, folder / name, str(seed)], check=True)
        modules.append(f"{name}={folder / name}")
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules", *modules)
    engine = LocalEngine(
        cpu_vllm(python), str(model), MODEL_NAME, free_port(), 2 * SEATS, on_cpu=True, extra_args=flags
    )
    with EngineProcess(engine) as running:
        running.wait_ready(300)
        yield running.url


def toml(port: int, url: str) -> str:
    tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
    tiers += f"max_hold_s = 600.0\nfloor_tps = {FLOOR_TPS}\n"
    base = f'[[models]]\nname = "{MODEL_NAME}"\n{tiers}[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\n'
    base += "curve = [[1, 9.0], [8, 4.0]]\n"
    adapters = [f'[[models]]\nname = "{name}"\nreplicas_of = "{MODEL_NAME}"\n{tiers}' for name in ADAPTERS]
    return "\n".join([f"[gateway]\nport = {port}\n", base, *adapters])


async def answers(url: str) -> list[str]:
    """Of each model to the same prompt, greedily."""
    texts = []
    for model in MODELS:
        ask = {"model": model, "prompt": "The bus driver said:", "max_tokens": 16, "temperature": 0}
        _, body = await ConnectionPool(url).exchange(b"POST", "/v1/completions", msgspec.json.encode(ask))
        texts.append(str(msgspec.json.decode(body)["choices"][0]["text"]))
    return texts


async def load(gateway_url: str, engine_url: str) -> tuple[Counter[str], int, int, int, int]:
    """Returns the calls served by model, those that failed, the fast ones, the floors missed and the most streams."""
    served: Counter[str] = Counter()
    failed = fast = missed = most = 0
    numbers = iter(range(CALLS))

    async def caller(seed: int) -> None:
        nonlocal failed, fast, missed
        dice = random.Random(seed)
        for number in numbers:
            model, tier = MODELS[number % len(MODELS)], "fast" if number % 5 == 0 else "default"
            tokens = dice.randint(16, 32)
            stream = await call(gateway_url, chat_request(model, tokens, service_tier=tier))
            if not stream.complete or stream.tokens != tokens:
                failed += 1
                continue
            served[model] += 1
            fast += stream.proof.get("tier_served") == "fast"
            missed += stream.proof.get("kept") is False

    async def watch() -> None:
        nonlocal most
        while True:
            page = await asyncio.to_thread(fetch, f"{engine_url}/metrics")
            most = max(most, round(sum(read_metrics(page, STREAM_METRICS))))
            await asyncio.sleep(LOOK_S)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*[caller(seed) for seed in range(CALLERS)])
    watching.cancel()
    return served, failed, fast, missed, most


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, engine_with_adapters(Path(folder)) as engine_url:
        port = free_port()
        config = Path(folder) / "headway.toml"
        config.write_text(toml(port, engine_url))
        gateway_url = f"http://127.0.0.1:{port}"
        with process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"{gateway_url}/ready"):
            own, through = uvloop.run(answers(engine_url)), uvloop.run(answers(gateway_url))
            served, failed, fast, missed, most = uvloop.run(load(gateway_url, engine_url))
    figures = Figures(
        served=dict(served),
        failed=failed,
        missed=missed,
        fast=fast,
        most_running=most,
        same_answers=len(MODELS) - len(set(own)),
        told_apart=sum(one == other for one, other in zip(own, through, strict=True)),
    )
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
