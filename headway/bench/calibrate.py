"""Three points of a live engine's curve, and how fast it reads prompts: what a promise on it can be made from.

Measures the engine itself, not through a gateway, and expects it to be idle otherwise. A floor is promised to every
stream, so a point is not what the typical stream got but what nine in ten got at least. Texts differ and are sampled:
with speculation an engine is faster on text that repeats itself, and one that is measured on it promises too much.
Does not know: how a call is made and stamped (client.py).
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
STREAMS_PER_POINT = 12  # at least, over as many rounds as that takes
SLOW_SHARE = 0.1  # of the streams may lie below the point
SpeedPoint = tuple[int, float]  # streams, tokens per second that nine in ten of them got at least


@dataclass(frozen=True, slots=True)
class CurveCalibration:
    points: list[SpeedPoint]
    prompt_tps: float

    def config_lines(self) -> str:
        """For [[models.replicas]] in headway.toml."""
        curve = ", ".join(f"[{streams}, {tps:.2f}]" for streams, tps in self.points)
        return f"curve = [{curve}]\nprompt_tps = {self.prompt_tps:.0f}.0\n"


def batches_for(seats: int) -> list[int]:
    """One, all, and the one between them at which a curve bends most: their geometric middle."""
    return sorted({1, round(sqrt(seats)), seats})


def nearly_all_got(speeds: list[float]) -> float:
    """The speed below which no more than the slow share lies."""
    return sorted(speeds)[int(SLOW_SHARE * len(speeds))]


async def calibrate(url: str, model: str, seats: int, on_point: Callable[[int], None]) -> CurveCalibration:
    """Measure; `on_point` is called with each number of streams before it is measured."""
    client = LoadClient(url, model, seed=int(time.time()))  # a cache may still know the prompts of the last time
    try:
        prompt_tps = await measure_prompts(client)
        points = []
        for batch in batches_for(seats):
            on_point(batch)
            speeds: list[float] = []
            for _ in range(ceil(STREAMS_PER_POINT / batch)):
                calls = await asyncio.gather(*[_call(client, PROMPT_TOKENS, TOKENS) for _ in range(batch)])
                speeds += [1 / call.tpot_s for call in calls]
            points.append((batch, nearly_all_got(speeds)))
        return CurveCalibration(points, prompt_tps)
    finally:
        client.close()


async def measure_prompts(client: LoadClient) -> float:
    """Tokens of a long prompt per second until its answer's first: the slowest of three, after one to warm up."""
    calls = [await _call(client, LONG_PROMPT_TOKENS, 2) for _ in range(4)]
    return min(call.prompt_tokens / call.ttft_s for call in calls[1:])


async def _call(client: LoadClient, prompt_tokens: int, max_tokens: int) -> LoadCall:
    request = client.request(prompt_tokens, max_tokens)
    call = LoadCall(time.perf_counter(), max_tokens)
    await client.make(call, request, lambda _at, _tokens: None)
    if call.error:
        raise SetupError(f"The server cannot be measured: {call.error}")
    return call
