"""Measures how much a new call's long prompt delays the streams aboard. See runs/long-prompts.sh."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.measure.token_times import TimedStream, chat, timed_call
from runs.measure.verdict import Verdict, at_least, at_most, finish

console = Console(width=150)
SEATS, CORE = 32, 1  # vLLM needs at least as many tokens per step as seats
EXPRESS_STREAMS, EXPRESS_TOKENS = 2, 96
TOKENS_BEFORE_PROMPT = 8  # both streams decode when the first prompt arrives
PAUSE_S = 1.2  # an engine's processes spin for a second after their last work and would disturb the next turn
# Maximum tokens per step, which is the chunk size of a prompt. A fourth engine would need 20 GB in all.
CHUNKS = (2048, 512, 128)
# By name: the lengths of the prompts sent one after another in a turn. 2,000 and both streams fit into 2,048.
SHORT, LONG = "5 x 200", "1 x 2000"
PROMPTS = {"none": [], SHORT: [200] * 5, LONG: [2000]}
# By chunk size: limits of the p99 gap and of the prompt's own first token, relative to the largest chunk size.
LIMITS = {512: (0.6, 1.2), 128: (0.25, 1.4)}
MIN_DELAY, MIN_SHORT_DELAY = 0.5, 0.4
ORDINARY_TOKENS = range(100, 49_000)  # the model's vocabulary without special tokens


@dataclass
class Turns:
    """All turns of one kind on one engine, one per round."""

    streams: list[list[TimedStream]] = field(default_factory=list)
    prompts: list[list[TimedStream]] = field(default_factory=list)

    def durations_s(self) -> list[float]:
        return [statistics.mean(stream.duration_s for stream in turn) for turn in self.streams]

    def speeds_tps(self) -> list[float]:
        return [stream.speed_tps for turn in self.streams for stream in turn]

    def gaps_ms(self) -> list[float]:
        return sorted(gap * 1000 for turn in self.streams for stream in turn for gap in stream.gaps_s)

    def longest_gaps_ms(self) -> list[float]:
        return [max(stream.gaps_s) * 1000 for turn in self.streams for stream in turn]

    def first_tokens_s(self) -> list[float]:
        return [prompt.first_token_s for prompts in self.prompts for prompt in prompts]

    def excess_s(self) -> list[float]:
        """By round: the total by which a stream's gaps during the prompts exceed its usual gap.

        On a noisy machine this varies less than the difference to another turn.
        """
        turns = zip(self.streams, self.prompts, strict=True)
        return [statistics.mean(_excess_s(stream, prompts) for stream in turn) for turn, prompts in turns]


def _excess_s(stream: TimedStream, prompts: list[TimedStream]) -> float:
    usual_s = statistics.median(stream.gaps_s)
    touched = [
        after - before
        for before, after in itertools.pairwise(at for at, _ in stream.arrivals)
        if any(before < prompt.arrivals[0][0] and after > prompt.sent_at for prompt in prompts)
    ]
    return sum(gap - usual_s for gap in touched)


Results = dict[tuple[int, str], Turns]


def unseen_prompt(tokens: int, dice: random.Random) -> dict[str, object]:
    # Token ids instead of text: the length is exact, and the prefix cache has none of it.
    return {"prompt": [dice.choice(ORDINARY_TOKENS) for _ in range(tokens)]}


async def turn(url: str, lengths: list[int], dice: random.Random, turns: Turns) -> None:
    """Run the express streams once, and send the prompts while they decode."""
    express = [TimedStream() for _ in range(EXPRESS_STREAMS)]
    story = chat("Tell me a long story about a bus.")
    calls = [asyncio.create_task(timed_call(url, EXPRESS_TOKENS, story, stream)) for stream in express]
    while min(len(stream.arrivals) for stream in express) < TOKENS_BEFORE_PROMPT:
        await asyncio.sleep(0.01)
    prompts = [await timed_call(url, 1, unseen_prompt(length, dice)) for length in lengths]
    if any(call.done() for call in calls):
        raise RuntimeError("A prompt outlasted a stream: its cost is not all in the stream's time.")
    turns.streams.append(list(await asyncio.gather(*calls)))
    turns.prompts.append(prompts)
    await asyncio.sleep(PAUSE_S)


async def measure(urls: dict[int, str], rounds: int) -> Results:
    dice = random.Random(1)
    kinds = list(itertools.product(urls, PROMPTS))
    results: Results = defaultdict(Turns)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("turns", total=len(kinds) * (rounds + 1))
        for number in range(rounds + 1):
            dice.shuffle(kinds)  # so that a drift of the machine affects all kinds
            for chunk, name in kinds:
                # The first round is a warm-up and is not counted.
                await turn(urls[chunk], PROMPTS[name], dice, results[chunk, name] if number else Turns())
                progress.advance(bar)
    return results


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def divided(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def delays_s(results: Results, chunk: int, name: str) -> list[float]:
    """By round: the delay of a stream per 1,000 prompt tokens of others, from its own gaps."""
    return [excess / sum(PROMPTS[name]) * 1000 for excess in results[chunk, name].excess_s()]


def slowdowns(results: Results, chunk: int, name: str) -> list[float]:
    """By round: a stream's speed while prompts arrive ÷ its speed without."""
    return divided(results[chunk, "none"].durations_s(), results[chunk, name].durations_s())


def streams_table(results: Results) -> Table:
    table = Table("chunk", "prompts", "gap p50 ms", "p99", "longest of a stream, median", "longest of all")
    table.title = f"{EXPRESS_STREAMS} streams of {EXPRESS_TOKENS} tokens, and prompts that come while they decode"
    table.add_column("stream tok/s (slowest .. fastest)")
    table.add_column("speed ÷ without prompts, by round")
    for name, chunk in itertools.product(PROMPTS, CHUNKS):
        turns = results[chunk, name]
        gaps = turns.gaps_ms()
        table.add_row(
            *(str(chunk), name, f"{percentile(gaps, 0.5):.0f}", f"{percentile(gaps, 0.99):.0f}"),
            *(f"{statistics.median(turns.longest_gaps_ms()):.0f}", f"{gaps[-1]:.0f}", spread(turns.speeds_tps(), 1)),
            spread(slowdowns(results, chunk, name)),
        )
    return table


def prompts_table(results: Results) -> Table:
    table = Table("chunk", "prompts", "prompt's first token s", "prompt tok/s", title="What the prompts get, and cost")
    table.add_column("delay of a stream, s per 1,000 prompt tokens")
    table.add_column(f"÷ that at {CHUNKS[0]}, by round")
    table.add_column("the delay by comparing turns")
    for name, chunk in itertools.product((name for name in PROMPTS if PROMPTS[name]), CHUNKS):
        turns, tokens = results[chunk, name], sum(PROMPTS[name])
        pairs = zip(turns.durations_s(), results[chunk, "none"].durations_s(), strict=True)
        delays = delays_s(results, chunk, name)
        table.add_row(
            *(str(chunk), name, spread(turns.first_tokens_s())),
            f"{statistics.median(PROMPTS[name][0] / first_s for first_s in turns.first_tokens_s()):.0f}",
            *(spread(delays), spread(divided(delays, delays_s(results, CHUNKS[0], name)))),
            spread([(beside - without) / tokens * 1000 for beside, without in pairs]),
        )
    return table


@dataclass(frozen=True)
class Row:
    """One chunk size, medians of rounds."""

    gap_p99_ms: float  # during one prompt of 2,000
    speed: float  # ÷ without prompts
    delay_s: float  # of a stream, per 1,000 tokens of one prompt of 2,000
    short_delay_s: float  # the same during five prompts of 200
    first_token_s: float  # of the prompt of 2,000 itself


Figures = dict[int, Row]  # by chunk size


def figures_of(results: Results) -> Figures:
    return {
        chunk: Row(
            percentile(results[chunk, LONG].gaps_ms(), 0.99),
            statistics.median(slowdowns(results, chunk, LONG)),
            statistics.median(delays_s(results, chunk, LONG)),
            statistics.median(delays_s(results, chunk, SHORT)),
            statistics.median(results[chunk, LONG].first_tokens_s()),
        )
        for chunk in CHUNKS
    }


def verdict(figures: Figures) -> Verdict:
    """docs/explanation/fast-mode.md: small chunks shorten the gaps, not the total delay, and cost the prompt little."""
    whole, bars = figures[CHUNKS[0]], []
    for chunk, (max_gap, max_first) in LIMITS.items():
        row = figures[chunk]
        beside = f"chunk {chunk} ÷ {CHUNKS[0]}"
        bars += [
            at_most(f"p99 gap, {beside}", row.gap_p99_ms / whole.gap_p99_ms, max_gap),
            at_least(f"delay of a stream, {beside}", row.delay_s / whole.delay_s, MIN_DELAY),
            at_most(f"first token of the prompt, {beside}", row.first_token_s / whole.first_token_s, max_first),
        ]
    short = statistics.median(row.short_delay_s / row.delay_s for row in figures.values())
    bars.append(at_least("delay beside five short prompts ÷ one long, per token", short, MIN_SHORT_DELAY))
    parts = [
        f"chunk {chunk}: {row.delay_s:.2f} s, p99 gap {row.gap_p99_ms:.0f} ms, speed x {row.speed:.2f}"
        for chunk, row in figures.items()
    ]
    figure = f"delay of each stream aboard per 1,000 prompt tokens; 96 tokens beside 2,000: {'; '.join(parts)}"
    return Verdict(figure, tuple(bars))


def main(rounds: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    with contextlib.ExitStack() as stack:
        urls = {}
        for chunk in CHUNKS:
            flags = ("--max-num-batched-tokens", str(chunk))
            engine = LocalEngine(
                cpu_vllm(python), model, MODEL_NAME, free_port(), SEATS, on_cpu=True, core=CORE, extra_args=flags
            )
            process = stack.enter_context(EngineProcess(engine))
            with console.status(f"starting an engine with {' '.join(flags)}"):
                process.wait_ready(300)
            urls[chunk] = process.url
        results = uvloop.run(measure(urls, rounds))
    console.print(streams_table(results), prompts_table(results))
    return finish(console, verdict(figures_of(results)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
