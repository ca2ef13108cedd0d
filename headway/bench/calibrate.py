"""Measure three points of a live engine's curve and its prompt speed, which floors are promised from.

Measures the engine directly, without a gateway, and expects no other load. A floor is promised to every stream, so a
point is the speed that nine in ten streams reach, not the median. Prompts differ and answers are sampled: speculative
decoding is faster on repetitive text, so a curve measured on it would promise too much.
Does not know: how a call is sent and timed (client.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

from headway.bench.client import LoadCall, LoadClient
from headway.errors import SetupError

TOKENS, PROMPT_TOKENS, LONG_PROMPT_TOKENS = 64, 16, 600
STREAMS_PER_POINT = 12  # minimum, over as many rounds as needed
SLOW_SHARE = 0.1  # of the streams that may be slower than the point
SpeedPoint = tuple[int, float]  # streams, tokens per second that nine in ten of them reach


@dataclass(frozen=True, slots=True)
class CurveCalibration:
    points: list[SpeedPoint]
    prompt_tps: float

    def config_lines(self) -> str:
        """Return the lines for [[models.replicas]] in headway.toml."""
        curve = ", ".join(f"[{streams}, {tps:.2f}]" for streams, tps in self.points)
        return f"curve = [{curve}]\nprompt_tps = {self.prompt_tps:.0f}.0\n"


def batches_for(seats: int) -> list[int]:
    """Return one stream, all seats, and their geometric mean, where a curve bends most."""
    return sorted({1, round(sqrt(seats)), seats})


def nine_in_ten_speed(speeds: list[float]) -> float:
    """Return the speed that all but SLOW_SHARE of the streams reach."""
    return sorted(speeds)[int(SLOW_SHARE * len(speeds))]


async def calibrate(url: str, model: str, seats: int, on_point: Callable[[int], None]) -> CurveCalibration:
    """Measure the curve. Calls `on_point` with each number of streams before measuring it."""
    client = LoadClient(url, model, seed=int(time.time()))  # a cache may still hold the prompts of the last run
    try:
        prompt_tps = await measure_prompts(client)
        points = []
        for batch in batches_for(seats):
            on_point(batch)
            speeds: list[float] = []
            for _ in range(ceil(STREAMS_PER_POINT / batch)):
                calls = await asyncio.gather(*[_call(client, PROMPT_TOKENS, TOKENS) for _ in range(batch)])
                speeds += [1 / call.tpot_s for call in calls]
            points.append((batch, nine_in_ten_speed(speeds)))
        return CurveCalibration(points, prompt_tps)
    finally:
        client.close()


async def measure_prompts(client: LoadClient) -> float:
    """Return prompt tokens per second until the first output token: the slowest of three calls after a warm-up."""
    calls = [await _call(client, LONG_PROMPT_TOKENS, 2) for _ in range(4)]
    return min(call.prompt_tokens / call.ttft_s for call in calls[1:])


async def _call(client: LoadClient, prompt_tokens: int, max_tokens: int) -> LoadCall:
    request = client.request(prompt_tokens, max_tokens)
    call = LoadCall(time.perf_counter(), max_tokens)
    await client.make(call, request, lambda _at, _tokens: None)
    if call.error:
        raise SetupError(f"cannot measure the server: {call.error}")
    return call
