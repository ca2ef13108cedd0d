"""Three points of a live engine's curve: how fast it gives tokens to each of 1, a middle number and all of its streams.

Measures the engine itself, not through a gateway, and expects it to be idle otherwise. Speeds are taken per stream from
its first token to its last, and the median stream counts; the fit and what follows from it are core/curve.py's.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from math import sqrt

import msgspec

from headway.engines.http import EnginePool
from headway.errors import SetupError

TOKENS = 64
PROMPT = "Tell me a long story about a bus."
SpeedPoint = tuple[int, float]  # streams, tokens per second of each


def batches_for(seats: int) -> list[int]:
    """One, all, and the one between them at which a curve bends most: their geometric middle."""
    return sorted({1, round(sqrt(seats)), seats})


async def calibrate(url: str, model: str, seats: int, on_point: Callable[[int], None]) -> list[SpeedPoint]:
    """Measure the points; `on_point` is called with each number of streams before it is measured."""
    pool = EnginePool(url)
    try:
        await _speed_of_one(pool, model)  # warm
        points = []
        for batch in batches_for(seats):
            on_point(batch)
            speeds = await asyncio.gather(*[_speed_of_one(pool, model) for _ in range(batch)])
            points.append((batch, statistics.median(speeds)))
        return points
    finally:
        pool.close()


async def _speed_of_one(pool: EnginePool, model: str) -> float:
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    answer = await pool.request(b"POST", "/v1/completions", msgspec.json.encode(body))
    try:
        if answer.status != 200:
            said = (await answer.read()).decode(errors="replace")[:300]
            raise SetupError(f"The engine refused to be measured (status {answer.status}): {said}")
        stamps: list[float] = []

        def stamp(data: bytes) -> None:
            if b'"text":"' in data:
                stamps.append(time.perf_counter())

        await answer.pipe(stamp)
    finally:
        answer.close()
    if len(stamps) < 2:
        raise SetupError("The engine did not stream: nothing can be measured.")
    return (TOKENS - 1) / (stamps[-1] - stamps[0])
