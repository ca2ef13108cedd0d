"""How much the steps of a real engine vary in length though its batch is the same. See runs/engine-noise.sh.

Streams of a light engine begin together and are equally long, so its batch is constant while all of them run and no
prompt is read. The other engine is full, as beside a light replica in service. The time per token in each quarter of a
second, divided by the median of all, is one factor. Rounds follow each other in data/engine_noise.csv.
"""

from __future__ import annotations

import asyncio
import csv
import statistics
import sys
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.bench.load import quantile
from headway.core.progress import LOOK_S
from headway.local.engine_env import MODEL_NAME
from runs.measure.callers import in_time, load
from runs.measure.engines import two_smollm2
from runs.measure.machine import require
from runs.measure.streams import STORY, ChatRequest, chat_request
from runs.measure.token_times import TimedStream, chat, timed_call
from runs.measure.verdict import Verdict, at_least, finish

console = Console(width=110)
FACTORS = Path(__file__).parents[2] / "data" / "engine_noise.csv"
SEATS, FULL_TOKENS = 64, 48
LIGHT_STREAMS, LIGHT_TOKENS = 4, 400
MIN_FACTORS = 1000  # four minutes of decoding


def full_request() -> ChatRequest:
    return chat_request(MODEL_NAME, FULL_TOKENS)


def times_per_token(streams: list[TimedStream]) -> list[float]:
    """The seconds per token of a stream in each LOOK_S while all streams run, averaged over the streams."""
    begin = max(stream.arrivals[0][0] for stream in streams)
    end = min(stream.arrivals[-1][0] for stream in streams)
    edges = [begin + LOOK_S * number for number in range(int((end - begin) / LOOK_S) + 1)]
    tokens = [[_tokens_at(stream, edge) for edge in edges] for stream in streams]
    mean_tokens = [statistics.mean(at_edge) for at_edge in zip(*tokens, strict=True)]
    return [LOOK_S / max(after - before, 1e-3) for before, after in pairwise(mean_tokens)]


def _tokens_at(stream: TimedStream, at: float) -> float:
    """The tokens that had come; between two events in proportion to the time."""
    after = min(len(stream.arrivals) - 1, bisect_right(stream.arrivals, at, key=lambda arrival: arrival[0]))
    (last_at, last), (next_at, following) = stream.arrivals[after - 1], stream.arrivals[after]
    return last + (following - last) * (at - last_at) / (next_at - last_at)


async def measure(light: str, full: str, rounds: int) -> list[float]:
    times: list[float] = []
    async with load(full, full_request, SEATS) as callers:
        await callers.until(SEATS)
        for _ in track(range(rounds), "measuring", console=console, transient=True):
            asked = [timed_call(light, LIGHT_TOKENS, chat(STORY)) for _ in range(LIGHT_STREAMS)]
            times += times_per_token(await asyncio.gather(*asked))
    usual = statistics.median(times)
    return [one / usual for one in times]


def verdict(factors: list[float]) -> Verdict:
    spread = statistics.pstdev(factors)
    figure = (
        f"time per token of a light engine, divided by its median, over {LOOK_S:g} s: standard deviation {spread:.3f}, "
        f"p95 {quantile(factors, 0.95):.2f}, p99 {quantile(factors, 0.99):.2f}, longest {max(factors):.2f}"
    )
    return Verdict(figure, (at_least("quarters of a second measured", len(factors), MIN_FACTORS, ",.0f"),))


def main(rounds: int) -> int:
    require(console, free_cores=True)
    with two_smollm2(console, SEATS) as (light, full):
        factors = in_time(console, measure(light, full, rounds))
    with FACTORS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["factor"])
        writer.writerows([f"{factor:.3f}"] for factor in factors)
    table = Table("quantile", "factor")
    for share in (0.01, 0.05, 0.5, 0.95, 0.99):
        table.add_row(f"{share:.0%}", f"{quantile(factors, share):.2f}")
    console.print(table)
    return finish(console, verdict(factors))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
