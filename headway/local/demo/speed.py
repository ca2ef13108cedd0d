"""How fast the demo's engines are: one is measured while the other one is full, as in the race, and the result is kept.

Shorter than `headway calibrate`: few streams for each point, and no long contexts. Both suffice to show the mechanism.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from headway.bench.calibrate import batches_for, measure_prompts, nine_in_ten_speed, stream_speeds
from headway.bench.client import LoadCall, LoadClient
from headway.bench.fares import FrontierPoint
from headway.local.engine_process import cache_dir

TOKENS, STREAMS_PER_POINT = 32, 4
FILLING_PROMPT_TOKENS, FILLING_TOKENS = 16, 128  # of the calls that keep the other engine full


class DemoSpeed(msgspec.Struct, frozen=True):
    depends_on: list[str]
    prompt_tps: float
    points: list[FrontierPoint]


def speed_file(depends_on: list[str]) -> Path:
    digest = hashlib.sha256("\n".join(depends_on).encode()).hexdigest()
    return cache_dir() / "demo" / f"speed-{digest[:16]}.json"


def read_speed(depends_on: list[str]) -> DemoSpeed | None:
    """What an earlier demo has measured with the same settings on the same hardware."""
    try:
        return msgspec.json.decode(speed_file(depends_on).read_bytes(), type=DemoSpeed)
    except (OSError, msgspec.DecodeError):
        return None


def keep_speed(speed: DemoSpeed) -> None:
    path = speed_file(speed.depends_on)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(speed)))
    unfinished.rename(path)


async def measure_speed(
    urls: list[str], model: str, seats: int, depends_on: list[str], on_point: Callable[[str], None]
) -> DemoSpeed:
    """Measure the first engine. `on_point` is told what is measured next."""
    clients = [LoadClient(url, model, seed=int(time.time()) + number) for number, url in enumerate(urls)]
    measured, *others = clients
    filling = [asyncio.create_task(_keep_full(other)) for other in others for _ in range(seats)]
    try:
        on_point("reading prompts")
        prompt_tps = await measure_prompts(measured)
        points = []
        for batch in batches_for(seats):
            on_point("one stream" if batch == 1 else f"{batch} streams")
            speeds = await stream_speeds(measured, batch, TOKENS, STREAMS_PER_POINT)
            points.append(FrontierPoint(batch, nine_in_ten_speed(speeds), [median(speeds)]))
        return DemoSpeed(depends_on, prompt_tps, points)
    finally:
        for task in filling:
            task.cancel()
        await asyncio.gather(*filling, return_exceptions=True)
        for client in clients:
            client.close()


async def _keep_full(client: LoadClient) -> None:
    """One of the streams of an engine that is full; what it gets is not measured."""
    while True:
        call = LoadCall(time.perf_counter(), FILLING_TOKENS)
        await client.make(call, client.request(FILLING_PROMPT_TOKENS, FILLING_TOKENS), lambda _at, _tokens: None)
        if call.error:
            return  # the engine is gone, which the measurement of the other one does not need to know
