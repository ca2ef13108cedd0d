"""Measure a live engine's curve, at three batches and at two lengths of context, and its prompt speed, which floors are
promised from.

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
from statistics import mean, median

import msgspec

from headway.bench.client import LoadCall, LoadClient
from headway.core.curve import fit
from headway.core.types import MIN_TOKENS_FOR_PROMISE
from headway.errors import SetupError
from headway.http1 import ConnectionPool, fetch

TOKENS, PROMPT_TOKENS, LONG_PROMPT_TOKENS = 64, 16, 600
STREAMS_PER_POINT = 12  # minimum, over as many rounds as needed
SLOW_SHARE = 0.1  # of the streams that may be slower than the point
SpeedPoint = tuple[int, float]  # streams, tokens per second that nine in ten of them reach
LongSpeedPoint = tuple[int, float, int]  # the same, and the tokens of context of each stream

# Long contexts. The first stream must still decode when the last prompt has been read, in chunks of 128 tokens or more.
LONG_CONTEXT, LONG_TOKENS = 4000, 256
MIN_LONG_CONTEXT = 500  # a shorter one costs too little to be measured
SPARE_SHARE = 0.2  # of an engine's maximum length: prompts are made of words, which are one token or more
LONG_ROUNDS = 3
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CurveCalibration:
    points: list[SpeedPoint]
    prompt_tps: float
    long_point: LongSpeedPoint | None = None

    def config_lines(self, profile: str | None = None, seats: int = 0) -> str:
        """Return the lines for [[models.replicas]] in headway.toml, or the [[models.profiles]] of a profile."""
        curve = ", ".join(f"[{streams}, {tps:.2f}]" for streams, tps in self.points)
        if self.long_point is not None:
            streams, tps, context = self.long_point
            curve += f", [{streams}, {tps:.2f}, {context}]"
        header = f'[[models.profiles]]\nname = "{profile}"\nseats = {seats}\n' if profile is not None else ""
        return f"{header}curve = [{curve}]\nprompt_tps = {self.prompt_tps:.0f}.0\n"


def batches_for(seats: int) -> list[int]:
    """Return one stream, all seats, and their geometric mean, where a curve bends most."""
    return sorted({1, round(sqrt(seats)), seats})


def nine_in_ten_speed(speeds: list[float]) -> float:
    """Return the speed that all but SLOW_SHARE of the streams reach."""
    return sorted(speeds)[int(SLOW_SHARE * len(speeds))]


async def calibrate(
    url: str, model: str, seats: int, on_point: Callable[[int], None], kv_tokens: int = 0
) -> CurveCalibration:
    """Measure the curve. Calls `on_point` with each number of streams before measuring it. `kv_tokens` is how many
    tokens the engine's memory holds; 0 means unknown."""
    client = LoadClient(url, model, seed=int(time.time()))  # a cache may still hold the prompts of the last run
    try:
        prompt_tps = await measure_prompts(client)
        points = []
        for batch in batches_for(seats):
            on_point(batch)
            points.append((batch, nine_in_ten_speed(await stream_speeds(client, batch))))
        context = long_context(await max_length(url))
        batch = long_batch(seats, context, kv_tokens)
        if not batch:
            return CurveCalibration(points, prompt_tps)
        on_point(batch)
        share, held = await measure_context(client, batch, context)
        short_tps = fit([(streams, 1 / tps) for streams, tps in points]).speed_tps(batch)
        return CurveCalibration(points, prompt_tps, (batch, min(1.0, share) * short_tps, held))
    finally:
        client.close()


async def stream_speeds(
    client: LoadClient, batch: int, tokens: int = TOKENS, streams: int = STREAMS_PER_POINT
) -> list[float]:
    """Return the speeds of at least so many streams with short contexts, `batch` of them at a time."""
    speeds: list[float] = []
    for _ in range(ceil(streams / batch)):
        calls = await asyncio.gather(*[_call(client, PROMPT_TOKENS, tokens) for _ in range(batch)])
        speeds += [1 / call.tpot_s for call in calls]
    return speeds


def long_context(max_length: int) -> int:
    """Tokens of the long prompts on an engine of this maximum length; 0 if it is too short to measure them."""
    context = min(LONG_CONTEXT, int((1 - SPARE_SHARE) * (max_length - LONG_TOKENS)))
    return context if context >= MIN_LONG_CONTEXT else 0


def long_batch(seats: int, context: int, kv_tokens: int) -> int:
    """How many streams the long contexts are measured with: the geometric mean of one and all seats, or as many as fit
    into the engine's memory. 0 if there is nothing to measure."""
    if not context:
        return 0
    fitting = int((1 - SPARE_SHARE) * kv_tokens) // (context + LONG_TOKENS) if kv_tokens else seats
    return min(round(sqrt(seats)), fitting)


async def max_length(url: str) -> int:
    """The longest context that the engine accepts, prompt and answer; 0 if it does not say."""
    pool = ConnectionPool(url)
    try:
        _, body = await fetch(pool, "/v1/models", ANSWER_TIMEOUT_S)
        return max(card.max_model_len or 0 for card in msgspec.json.decode(body, type=_Models).data)
    except (msgspec.DecodeError, ValueError):
        return 0
    finally:
        pool.close()


class _Model(msgspec.Struct):
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


async def measure_context(client: LoadClient, batch: int, context: int) -> tuple[float, int]:
    """Measure streams with long contexts, after all their prompts have been read. Returns their speed as a share of the
    speed of as many streams with short contexts, and the tokens of context of each.

    Both are measured in turns and the median share is taken: the speed of a machine drifts by more than contexts cost.
    """
    shares: list[float] = []
    held: list[float] = []
    for _ in range(LONG_ROUNDS):
        short = await asyncio.gather(*[_call(client, PROMPT_TOKENS, TOKENS) for _ in range(batch)])
        speeds: list[float] = []
        given: list[list[tuple[float, int]]] = [[] for _ in range(batch)]
        calls = await asyncio.gather(*[_call(client, context, LONG_TOKENS, times) for times in given])
        start, end = max(call.first_at for call in calls), min(call.last_at for call in calls)
        for call, times in zip(calls, given, strict=True):
            tokens = sum(count for at, count in times if start < at <= end)
            if tokens < MIN_TOKENS_FOR_PROMISE:
                raise SetupError(
                    f"cannot measure long contexts: {batch} prompts of {context} tokens take longer to read than an "
                    f"answer of {LONG_TOKENS} tokens. Use fewer --seats, or larger prompt chunks."
                )
            speeds.append(tokens / (end - start))
            held.append(call.prompt_tokens + LONG_TOKENS - tokens / 2)
        shares.append(mean(speeds) * mean(call.tpot_s for call in short))
    return median(shares), round(mean(held))


async def measure_prompts(client: LoadClient) -> float:
    """Return prompt tokens per second until the first output token: the slowest of three calls after a warm-up."""
    calls = [await _call(client, LONG_PROMPT_TOKENS, 2) for _ in range(4)]
    return min(call.prompt_tokens / call.ttft_s for call in calls[1:])


async def _call(
    client: LoadClient, prompt_tokens: int, max_tokens: int, times: list[tuple[float, int]] | None = None
) -> LoadCall:
    """`times` gets when tokens came, and how many."""
    request = client.request(prompt_tokens, max_tokens)
    call = LoadCall(time.perf_counter(), max_tokens)
    await client.make(call, request, lambda at, tokens: times.append((at, tokens)) if times is not None else None)
    if call.error:
        raise SetupError(f"cannot measure the server: {call.error}")
    return call
