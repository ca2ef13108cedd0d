"""Three points of a live engine's curve, and how fast it reads prompts: what a promise on it can be made from.

Measures the engine itself, not through a gateway, and expects it to be idle otherwise. A floor is promised to every
stream, so a point is not what the typical stream got but what nine in ten got at least. Texts differ and are sampled:
with speculation an engine is faster on text that repeats itself, and one that is measured on it promises too much.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import ceil, sqrt

import msgspec

from headway.engines.http import EnginePool
from headway.errors import SetupError

TOKENS = 64
STREAMS_PER_POINT = 12  # at least, over as many rounds as that takes
SLOW_SHARE = 0.1  # of the streams may lie below the point
LONG_PROMPT_WORDS = 600
SUBJECTS = ("a bus", "the sea", "an old clock", "two sisters", "a bridge", "winter", "a small shop", "the moon")
SpeedPoint = tuple[int, float]  # streams, tokens per second that nine in ten of them got at least


@dataclass(frozen=True, slots=True)
class Calibration:
    points: list[SpeedPoint]
    prompt_tps: float


def batches_for(seats: int) -> list[int]:
    """One, all, and the one between them at which a curve bends most: their geometric middle."""
    return sorted({1, round(sqrt(seats)), seats})


def nearly_all_got(speeds: list[float]) -> float:
    """The speed below which no more than the slow share lies."""
    return sorted(speeds)[int(SLOW_SHARE * len(speeds))]


async def calibrate(url: str, model: str, seats: int, on_point: Callable[[int], None]) -> Calibration:
    """Measure; `on_point` is called with each number of streams before it is measured."""
    pool = EnginePool(url)
    engine = _Engine(pool, model)
    try:
        await engine.speed_of_one()  # warm
        points = []
        for batch in batches_for(seats):
            on_point(batch)
            speeds: list[float] = []
            for _ in range(ceil(STREAMS_PER_POINT / batch)):
                speeds += await asyncio.gather(*[engine.speed_of_one() for _ in range(batch)])
            points.append((batch, nearly_all_got(speeds)))
        return Calibration(points, min([await engine.prompt_speed() for _ in range(3)]))
    finally:
        pool.close()


class _Engine:
    def __init__(self, pool: EnginePool, model: str) -> None:
        self._pool = pool
        self._model = model
        self._number = count()

    async def speed_of_one(self) -> float:
        number = next(self._number)
        prompt = f"Story {number}. Tell me a long story about {SUBJECTS[number % len(SUBJECTS)]}."
        stamps, tokens, _ = await self._stream(prompt, TOKENS)
        return (tokens - 1) / (stamps[-1] - stamps[0])

    async def prompt_speed(self) -> float:
        """Tokens of a long prompt, which no cache has seen, per second until the first token of its answer."""
        number = next(self._number)
        began = time.perf_counter()
        stamps, _, prompt_tokens = await self._stream(" ".join([str(number + 7)] * LONG_PROMPT_WORDS), 2)
        return prompt_tokens / (stamps[0] - began)

    async def _stream(self, prompt: str, tokens: int) -> tuple[list[float], int, int]:
        """When each piece came, and how many tokens were given and read by the engine's own count."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = await self._pool.request(b"POST", "/v1/completions", msgspec.json.encode(body))
        try:
            if answer.status != 200:
                said = (await answer.read()).decode(errors="replace")[:300]
                raise SetupError(f"The engine refused to be measured (status {answer.status}): {said}")
            stamps: list[float] = []
            pieces: list[bytes] = []

            def stamp(data: bytes) -> None:
                pieces.append(data)
                if b'"text":"' in data:
                    stamps.append(time.perf_counter())

            await answer.pipe(stamp)
        finally:
            answer.close()
        if len(stamps) < 2:
            raise SetupError("The engine did not stream: nothing can be measured.")
        usage = _last_usage(b"".join(pieces))
        return stamps, usage["completion_tokens"], usage["prompt_tokens"]


def _last_usage(streamed: bytes) -> dict[str, int]:
    """The engine's own count: a piece may hold several tokens."""
    lines = [line for line in streamed.split(b"\n\n") if b'"usage":{' in line]
    if not lines:
        raise SetupError("The engine says nothing of tokens: it must accept `stream_options.include_usage`.")
    usage: dict[str, int] = msgspec.json.decode(lines[-1].removeprefix(b"data: "))["usage"]
    return usage
