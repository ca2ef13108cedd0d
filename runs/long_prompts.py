"""What a neighbour's long prompt costs the streams aboard. See runs/long-prompts.sh."""

from __future__ import annotations

import asyncio
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
from token_times import TimedStream, chat, timed_call

from headway.fleet.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.fleet.local import EngineProcess, LocalEngine, cpu_vllm, free_port

console = Console(width=160)
SEATS = 32
EXPRESS_STREAMS, EXPRESS_TOKENS = 2, 96
TOKENS_BEFORE_PROMPT = 8  # both streams are in full swing when the first prompt comes
PAUSE_S = 0.5
# By setting: the most prompt tokens in one step, and vLLM's flags. The last two should be the same thing said twice.
SETTINGS = {
    "2048": ("--max-num-batched-tokens", "2048"),
    "512": ("--max-num-batched-tokens", "512"),
    "128": ("--max-num-batched-tokens", "128"),
    "2048, threshold 128": ("--max-num-batched-tokens", "2048", "--long-prefill-token-threshold", "128"),
}
# By name: the lengths of the prompts sent one after the other during one turn. 2,000 and both streams fit in 2,048.
PROMPTS = {"none": [], "5 x 200": [200] * 5, "1 x 2000": [2000]}
ORDINARY_TOKENS = range(100, 49_000)  # of the model's vocabulary, the special ones left out


@dataclass
class Turns:
    """All turns of one kind on one engine."""

    streams: list[list[TimedStream]] = field(default_factory=list)  # by round
    prompts: list[list[tuple[int, TimedStream]]] = field(default_factory=list)  # by round, with their lengths

    def speeds_tps(self) -> list[float]:
        return [stream.speed_tps for turn in self.streams for stream in turn]

    def gaps_ms(self) -> list[float]:
        return sorted(gap * 1000 for turn in self.streams for stream in turn for gap in stream.gaps_s)

    def longest_gap_ms(self) -> float:
        """Of a stream; the median of all streams."""
        return statistics.median(max(stream.gaps_s) * 1000 for turn in self.streams for stream in turn)


def unseen_prompt(tokens: int, dice: random.Random) -> dict[str, object]:
    # Token numbers instead of text: the length is exact, and nothing is found in the prefix cache.
    return {"prompt": [dice.choice(ORDINARY_TOKENS) for _ in range(tokens)]}


async def turn(url: str, lengths: list[int], dice: random.Random, turns: Turns) -> None:
    """The express streams once, and the prompts while they decode."""
    express = [TimedStream() for _ in range(EXPRESS_STREAMS)]
    story = chat("Tell me a long story about a bus.")
    calls = [asyncio.create_task(timed_call(url, EXPRESS_TOKENS, story, stream)) for stream in express]
    while min(len(stream.arrivals) for stream in express) < TOKENS_BEFORE_PROMPT:
        await asyncio.sleep(0.01)
    prompts = [(length, await timed_call(url, 1, unseen_prompt(length, dice))) for length in lengths]
    if any(call.done() for call in calls):
        raise RuntimeError("A prompt outlasted a stream: its cost is not all in the stream's time.")
    turns.streams.append(list(await asyncio.gather(*calls)))
    turns.prompts.append(prompts)
    await asyncio.sleep(PAUSE_S)


async def measure(url: str, rounds: int, name: str) -> dict[str, Turns]:
    dice = random.Random(name)
    kinds = list(PROMPTS)
    for lengths in PROMPTS.values():  # the first of its shape is slower
        await turn(url, lengths, dice, Turns())
    found: dict[str, Turns] = defaultdict(Turns)
    with Progress(console=console, transient=True) as progress:
        for number in progress.track(range(rounds), description=f"chunk {name}"):
            # Another kind comes first every time, so that a drift of the machine falls on all of them.
            for at in range(len(kinds)):
                kind = kinds[(number + at) % len(kinds)]
                await turn(url, PROMPTS[kind], dice, found[kind])
    return found


def delays_s(quiet: Turns, disturbed: Turns, prompt_tokens: int) -> list[float]:
    """By round: how much longer a stream took from first to last token, for each 1,000 prompt tokens beside it."""

    def took(turn: list[TimedStream]) -> float:
        return statistics.mean(stream.duration_s for stream in turn)

    pairs = zip(quiet.streams, disturbed.streams, strict=True)
    return [(took(with_prompt) - took(without)) / prompt_tokens * 1000 for without, with_prompt in pairs]


def delays_inside_s(turns: Turns) -> list[float]:
    """The same from the stream alone: what its gaps during the prompts are longer than its usual gap.

    Steadier on a noisy machine, as it does not compare two turns.
    """
    return [
        statistics.mean(_excess_s(stream, prompts) for stream in turn) / sum(length for length, _ in prompts) * 1000
        for turn, prompts in zip(turns.streams, turns.prompts, strict=True)
    ]


def _excess_s(stream: TimedStream, prompts: list[tuple[int, TimedStream]]) -> float:
    usual_s = statistics.median(stream.gaps_s)
    times = [at for at, _ in stream.arrivals]
    touched = [
        after - before
        for before, after in itertools.pairwise(times)
        if any(before < prompt.arrivals[0][0] and after > prompt.sent_at for _, prompt in prompts)
    ]
    return sum(gap - usual_s for gap in touched)


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def add_rows(table: Table, name: str, found: dict[str, Turns]) -> None:
    for kind, lengths in PROMPTS.items():
        turns = found[kind]
        gaps, speeds = turns.gaps_ms(), turns.speeds_tps()
        row = [name, kind, f"{percentile(gaps, 0.5):.0f}", f"{percentile(gaps, 0.99):.0f}"]
        row += [f"{turns.longest_gap_ms():.0f}", f"{gaps[-1]:.0f}", spread(speeds, 1)]
        if lengths:
            all_prompts = [one for prompts in turns.prompts for one in prompts]
            first = [prompt.first_token_s for _, prompt in all_prompts]
            rates = [length / prompt.first_token_s for length, prompt in all_prompts]
            row += [f"{statistics.median(first):.2f}", f"{statistics.median(rates):.0f}"]
            row.append(spread(delays_s(found["none"], turns, sum(lengths)), 2))
            row.append(spread(delays_inside_s(turns), 2))
        table.add_row(*row)
    table.add_section()


def report(results: dict[str, dict[str, Turns]]) -> None:
    table = Table("chunk", "prompts", "gap p50 ms", "p99", "longest of a stream, median", "longest of all")
    for column in ("stream tok/s (slowest .. fastest)", "prompt's first token s", "prefill tok/s"):
        table.add_column(column)
    table.add_column("delay of a stream, s per 1,000 prompt tokens: against the turn without")
    table.add_column("the same, against its own gaps")
    for name, found in results.items():
        add_rows(table, name, found)
    console.print(table)
    parts = []
    for name, found in results.items():
        long = found["1 x 2000"]
        delay = statistics.median(delays_s(found["none"], long, 2000))
        slower = statistics.median(long.speeds_tps()) / statistics.median(found["none"].speeds_tps())
        inside = statistics.median(delays_inside_s(long))
        parts.append(
            f"chunk {name}: {delay:.2f} s ({inside:.2f} by its own gaps), speed x {slower:.2f}, "
            f"longest gap {long.longest_gap_ms():.0f} ms"
        )
    console.print(
        "delay of each stream aboard per 1,000 prompt tokens; a 96-token stream's speed and gap beside 2,000:"
    )
    console.print("; ".join(parts), soft_wrap=True)


def main(rounds: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    results = {}
    for name, flags in SETTINGS.items():
        engine = LocalEngine(
            cpu_vllm(python), model, MODEL_NAME, free_port(), SEATS, on_cpu=True, core=1, extra_args=flags
        )
        with EngineProcess(engine) as process:
            with console.status(f"starting an engine with {' '.join(flags)}"):
                process.wait_ready(300)
            results[name] = uvloop.run(measure(process.url, rounds, name))
    report(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
