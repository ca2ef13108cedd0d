"""Runs a plain and a speculative engine in turns with the same streams, for the runs about speculation.

The machine is noisy, so every result is a ratio of two turns a few seconds apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID
from rich.table import Table

from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.fetch import fetch
from runs.measure.token_times import TimedStream, timed_call

SEATS = 32
PAUSE_S = 1.2  # an engine's processes spin for a second after their last work and would disturb the other's turn
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")


@dataclass(frozen=True)
class Text:
    """A kind of text: the request of the first, second, .. stream, and the maximum number of output tokens."""

    asked: Callable[[int], dict[str, object]]
    kinds: int  # number of different requests, repeated in order
    tokens: int


@dataclass
class Pair:
    """The same streams on both engines, a few seconds apart."""

    plain: list[TimedStream]
    speculative: list[TimedStream]
    counted: dict[str, int]  # increase of the speculative engine's counters

    @property
    def ratio(self) -> float:
        return median_tps(self.speculative) / median_tps(self.plain)

    @property
    def step_ratio(self) -> float:
        """The time of a speculative step ÷ that of a plain step."""
        return median_step_s(self.speculative) / median_step_s(self.plain)

    @property
    def same_texts(self) -> int:
        return sum(a.text == b.text for a, b in zip(self.plain, self.speculative, strict=True))


Pairs = dict[tuple[str, int], list[Pair]]


def median_tps(streams: list[TimedStream]) -> float:
    return statistics.median(stream.speed_tps for stream in streams)


def median_step_s(streams: list[TimedStream]) -> float:
    return statistics.median(stream.duration_s / max(1, len(stream.arrivals) - 1) for stream in streams)


def counters(url: str) -> dict[str, int]:
    lines = fetch(f"{url}/metrics").decode().splitlines()
    names = {name: f"vllm:spec_decode_num_{name}_total{{" for name in COUNTERS}
    return {
        name: int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start)))
        for name, start in names.items()
    }


async def turn(url: str, text: Text, batch: int, first: int = 0) -> list[TimedStream]:
    """Run `batch` concurrent streams, starting with request number `first` of the text."""
    numbers = [(first + at) % text.kinds for at in range(batch)]
    streams = await asyncio.gather(*[timed_call(url, text.tokens, text.asked(number)) for number in numbers])
    await asyncio.sleep(PAUSE_S)
    return list(streams)


async def pair(plain: str, speculative: str, text: Text, batch: int, number: int) -> Pair:
    # Some texts are easier to draft than others, so small batches must not always get the same ones.
    first = number * batch
    plain_streams = await turn(plain, text, batch, first) if number % 2 == 0 else []
    before = counters(speculative)
    streams = await turn(speculative, text, batch, first)
    after = counters(speculative)
    plain_streams = plain_streams or await turn(plain, text, batch, first)
    return Pair(plain_streams, streams, {name: after[name] - before[name] for name in COUNTERS})


async def compare(
    plain: str,
    speculative: str,
    texts: dict[str, Text],
    batches: Sequence[int],
    rounds: int,
    into: Pairs,
    progress: Progress,
    bar: TaskID,
) -> None:
    for url in (plain, speculative):  # the first batch of a size is slower, and the prompts must be in the cache
        for text in texts.values():
            for batch in (1, max(batches)):
                await turn(url, text, batch)
    for _ in range(rounds):
        for name, text in texts.items():
            for batch in batches:
                found = into.setdefault((name, batch), [])
                found.append(await pair(plain, speculative, text, batch, len(found)))
                progress.advance(bar)


@contextlib.contextmanager
def two_engines(
    python: Path, model: str, name: str, config: dict[str, object], plain_core: int
) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """Start the plain and the speculative engine, one per core."""

    def engine(core: int, speculation: dict[str, object] | None) -> EngineProcess:
        return EngineProcess(
            LocalEngine(
                cpu_vllm(python), model, name, free_port(), SEATS, on_cpu=True, core=core, speculation=speculation
            )
        )

    with engine(plain_core, None) as plain, engine(1 - plain_core, config) as speculative:
        for one in (plain, speculative):
            one.wait_ready(300)
        yield plain, speculative


def table_of(title: str, pairs: Pairs) -> Table:
    table = Table("text", "streams", "plain tok/s", "speculative tok/s", "ratio, median of pairs (lowest .. highest)")
    table.title = title
    for column in (
        "tokens per step",
        "step ÷ plain step",
        "drafted per token",
        "accepted of drafted",
        "texts the same",
    ):
        table.add_column(column)
    for (text, batch), found in pairs.items():
        ratios, step_ratios = [one.ratio for one in found], [one.step_ratio for one in found]
        tokens = sum(stream.tokens for one in found for stream in one.speculative)
        drafted, accepted = (sum(one.counted[name] for one in found) for name in COUNTERS[1:])
        table.add_row(
            text,
            str(batch),
            f"{statistics.median(median_tps(one.plain) for one in found):.1f}",
            f"{statistics.median(median_tps(one.speculative) for one in found):.1f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})",
            f"{statistics.mean(stream.tokens_per_event for one in found for stream in one.speculative):.2f}",
            f"{statistics.median(step_ratios):.2f} ({min(step_ratios):.2f} .. {max(step_ratios):.2f})",
            f"{drafted / tokens:.2f}",
            f"{accepted / drafted:.0%}" if drafted else "-",
            f"{sum(one.same_texts for one in found)} of {batch * len(found)}",
        )
    return table
