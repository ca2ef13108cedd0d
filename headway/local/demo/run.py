"""The order of the demo's steps: engines, their speed, the gateway, the race, calls to paste, and serving until Ctrl-C.

Knows: when each step starts and how everything ends. Does not know: how the gateway is made. The caller passes that as
`open_gateway`, which takes the path of the configuration and runs a gateway on the current event loop.

Invariant: the engines are stopped, however the demo ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from headway.gateway.serve import Gateway
from headway.local.demo.calls import calls_to_paste
from headway.local.demo.engines import DemoEngines, cpu_engines, gpu_engines
from headway.local.demo.offer import DemoOffer, config_text, offer_for, stage_for
from headway.local.demo.progress import Steps
from headway.local.demo.speed import DemoSpeed, keep_speed, measure_speed, read_speed, speed_file
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, cache_dir, require_free_port, wait_all_ready
from headway.local.race.loop import race_on, screen_for

OpenConfigured = Callable[[Path], AbstractAsyncContextManager[tuple[Gateway, int]]]

ROUNDS = 3  # if no number is given
INTERRUPTED_EXIT_CODE = 130  # what a shell reports for Ctrl-C


@dataclass(frozen=True, slots=True)
class DemoOptions:
    model: str | None  # None: SmolLM2 with a CPU engine that is installed on first use
    port: int
    engine_port: int | None
    seats: int
    rounds: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Engines that run and are measured, and the configuration of a gateway in front of them."""

    engines: DemoEngines
    urls: list[str]
    offer: DemoOffer
    config_path: Path
    admin_key: str


def run_demo(options: DemoOptions, console: Console, open_gateway: OpenConfigured) -> int:
    """Returns the exit code: 0 if the demo served until it was ended."""
    is_serving = False
    try:
        require_free_port(options.port, "--port")  # fail now, not after minutes of installing
        with ExitStack() as stack:
            prepared = _prepare(options, Steps(console, total=5 if options.model is None else 3), stack)
            is_serving = True
            uvloop.run(_race_and_serve(prepared, options.rounds or ROUNDS, console, open_gateway))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped. Nothing is left running. Finished steps are kept for the next start.")
    return 0 if is_serving else INTERRUPTED_EXIT_CODE


def prepare_demo(console: Console) -> None:
    """Install the engine and the model without starting anything, for container images and CI."""
    _install(Steps(console, total=2))


def _install(steps: Steps) -> tuple[Path, Path]:
    with steps.step("Engine environment", "first time: 3.6 GB, about 3 minutes") as say:
        python = ensure_cpu_engine(say)
    with steps.step(f"Model {MODEL_NAME}", "first time: 269 MB, half a minute") as say:
        return python, ensure_smollm2(python, say)


def _prepare(options: DemoOptions, steps: Steps, stack: ExitStack) -> Prepared:
    if options.model is None:
        engines = cpu_engines(*_install(steps), options.engine_port, options.seats)
    else:
        engines = gpu_engines(options.model, options.engine_port, options.seats)
    urls = _start(engines, steps, stack)
    speed = _speed(engines, urls, steps)
    offer = offer_for(speed.points)
    steps.announce(
        f"Start the gateway: standard at {offer.standard_tps:.1f} tok/s on a full engine, fast with a floor of "
        f"{offer.floor_tps:g} for {offer.price_multiple:g} times the price"
    )
    admin_key = secrets.token_urlsafe(24)
    text = config_text(
        offer, speed, engines.model, engines.seats, urls, options.port, hashlib.sha256(admin_key.encode()).hexdigest()
    )
    path = cache_dir() / "demo" / "headway.toml"
    path.write_text(text, encoding="utf-8")
    return Prepared(engines, urls, offer, path, admin_key)


def _start(engines: DemoEngines, steps: Steps, stack: ExitStack) -> list[str]:
    """Start all engines at the same time. They stop when the stack ends. Returns their URLs."""
    count = len(engines.engines)
    with steps.step(f"Start {count} vLLM engine{'s' if count > 1 else ''}", engines.start_hint, lines=count) as say:
        processes = [stack.enter_context(EngineProcess(engine)) for engine in engines.engines]
        wait_all_ready(processes, engines.start_timeout_s, lambda number, message: say(message, line=number))
    return [process.url for process in processes]


def _speed(engines: DemoEngines, urls: list[str], steps: Steps) -> DemoSpeed:
    depends_on = engines.speed_depends_on()
    kept = read_speed(depends_on)
    if kept is not None:
        path = speed_file(depends_on)
        steps.announce("Their speed, as an earlier start has measured it", f"delete {path} to measure again")
        return kept
    with steps.step("Measure their speed", "first time: one to two minutes") as say:
        speed = uvloop.run(measure_speed(urls, engines.model, engines.seats, depends_on, say))
    keep_speed(speed)
    return speed


async def _race_and_serve(prepared: Prepared, rounds: int, console: Console, open_gateway: OpenConfigured) -> None:
    this, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert this is not None
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    async with open_gateway(prepared.config_path) as (gateway, port):
        # A gateway reads its configuration again at this signal. Here it says that the terminal was closed.
        loop.add_signal_handler(signal.SIGHUP, this.cancel)
        if prepared.engines.why_one:
            console.print(prepared.engines.why_one)
        else:
            await _race(prepared, gateway, port, rounds, console)
        loop.add_signal_handler(signal.SIGINT, this.cancel)
        _show_calls(prepared, port, console)
        await asyncio.Event().wait()  # until cancelled


async def _race(prepared: Prepared, gateway: Gateway, port: int, rounds: int, console: Console) -> None:
    """Ctrl-C ends the race and nothing else."""
    engines = prepared.engines
    stage = stage_for(prepared.offer, engines.model, engines.seats, engines.note)
    race = asyncio.create_task(race_on(stage, gateway, port, prepared.urls, screen_for(console, stage), rounds))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, race.cancel)
    try:
        await race
    except asyncio.CancelledError:
        this = asyncio.current_task()
        assert this is not None
        if this.cancelling():  # by SIGTERM: everything ends
            raise


def _show_calls(prepared: Prepared, port: int, console: Console) -> None:
    url = f"http://127.0.0.1:{port}"
    # Nothing is wrapped: a line broken at the width of the terminal would not run.
    console.print(
        f"\nThe gateway serves on {url}, without load now: both speeds are the engine's own. "
        "Paste one of these into another terminal:",
        highlight=False,
        soft_wrap=True,
    )
    for title, command in calls_to_paste(prepared.engines.model, port).items():
        console.print(f"\n{title}", style="bold", markup=False, highlight=False)
        console.print(command, markup=False, highlight=False, soft_wrap=True)
    for line in (
        f"\nConsole: {url}/console#key={prepared.admin_key}",
        f"The configuration is {prepared.config_path}. Ctrl-C stops the gateway and the engines.",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
