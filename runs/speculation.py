"""Whether n-gram speculation pays, by batch and by text. See runs/speculation.sh."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from token_times import TimedStream, chat, timed_call

from headway.errors import SetupError
from headway.fleet.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.fleet.local import EngineProcess, LocalEngine, cpu_vllm, free_port

console = Console(width=170)
SEATS, TOKENS = 32, 64
PAUSE_S = 1.2  # an engine's processes spin for a second after their last work, and would disturb the other's turn
BATCHES = (1, 2, 8, 16)
SCHEDULED_BATCHES = (2, 4, 5, 8)  # both sides of where the schedule below ends speculation
NGRAM: dict[str, object] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
# First batch, last batch, tokens to draft.
SCHEDULED = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 64, 0]]}
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
COLOURS = ("red", "green", "blue", "white", "black", "brown", "grey", "pink", "orange", "violet")
THINGS = (
    *("lamp", "chair", "kettle", "bus", "clock", "piano", "ladder", "basket"),
    *("mirror", "bottle", "hammer", "candle", "violin", "pillow", "wagon", "anchor"),
)


def repetitive(number: int) -> dict[str, object]:
    """A list to say again, each its own; so small a model copies it badly, but then repeats itself."""
    dice = random.Random(number)
    lines = [
        f"{at}. {dice.choice(COLOURS)} {dice.choice(THINGS)}, {dice.randint(10, 99)} pieces" for at in range(1, 16)
    ]
    listed = "\n".join(lines)
    return {"prompt": f"The list:\n{listed}\n\nA copy of the list:\n1."}


def story(number: int) -> dict[str, object]:
    return chat(f"Tell me a long story about a {THINGS[number]}.")


TEXTS = {"repetitive": repetitive, "story": story}
TEXTS_OF_A_KIND = len(THINGS)


@dataclass
class Pair:
    """The same streams on both engines, a few seconds apart."""

    plain: list[TimedStream]
    speculative: list[TimedStream]
    counted: dict[str, int]  # what the speculative engine's counters grew by

    @property
    def ratio(self) -> float:
        return median_tps(self.speculative) / median_tps(self.plain)

    @property
    def step_ratio(self) -> float:
        """How much longer a speculative step takes: what is left of the ratio besides the tokens of a step."""
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
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    names = {name: f"vllm:spec_decode_num_{name}_total{{" for name in COUNTERS}
    return {
        name: int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start)))
        for name, start in names.items()
    }


async def turn(url: str, text: str, batch: int, first: int = 0) -> list[TimedStream]:
    """That many streams at once, of the texts from `first` on; after the last one comes the first again."""
    numbers = [(first + at) % TEXTS_OF_A_KIND for at in range(batch)]
    streams = await asyncio.gather(*[timed_call(url, TOKENS, TEXTS[text](number)) for number in numbers])
    await asyncio.sleep(PAUSE_S)
    return list(streams)


async def pair(plain: str, speculative: str, text: str, batch: int, number: int) -> Pair:
    # Some texts are easier to guess than others: small batches shall not always get the same ones.
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
    kinds: list[tuple[str, int]],
    rounds: int,
    into: Pairs,
    progress: Progress,
    bar: TaskID,
) -> None:
    for url in (plain, speculative):  # the first batch of a size is slower, and the prompts shall be in the cache
        for text in {text for text, _ in kinds}:
            for batch in (1, TEXTS_OF_A_KIND):
                await turn(url, text, batch)
    for _ in range(rounds):
        for text, batch in kinds:
            found = into.setdefault((text, batch), [])
            found.append(await pair(plain, speculative, text, batch, len(found)))
            progress.advance(bar)


@contextlib.contextmanager
def two_engines(
    python: Path, model: str, config: dict[str, object], plain_core: int
) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """The plain one and the speculative one, on a core each."""
    flags = ("--speculative-config", json.dumps(config))
    with contextlib.ExitStack() as stack:
        plain, speculative = (
            stack.enter_context(
                EngineProcess(
                    LocalEngine(
                        cpu_vllm(python),
                        model,
                        MODEL_NAME,
                        free_port(),
                        SEATS,
                        on_cpu=True,
                        core=core,
                        extra_args=extra,
                    )
                )
            )
            for core, extra in ((plain_core, ()), (1 - plain_core, flags))
        )
        for engine in (plain, speculative):
            engine.wait_ready(300)
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


def figure(pairs: Pairs) -> str:
    parts = []
    for text in TEXTS:
        ratios = {
            batch: statistics.median(one.ratio for one in found) for (t, batch), found in pairs.items() if t == text
        }
        parts.append(f"{text}: " + ", ".join(f"{ratio:.2f} at {batch}" for batch, ratio in ratios.items()))
    return "speculative ÷ plain, tok/s of a stream: " + "; ".join(parts)


def measure_schedule(python: Path, model: str, rounds: int, progress: Progress) -> tuple[Pairs, str]:
    """Whether vLLM takes a schedule by batch, and follows it; (what was measured, what to say)."""
    kinds = [("repetitive", batch) for batch in SCHEDULED_BATCHES]
    bar = progress.add_task("speculation by batch", total=rounds * len(kinds))
    pairs: Pairs = {}
    try:
        with two_engines(python, model, SCHEDULED, 0) as (plain, scheduled):
            uvloop.run(compare(plain.url, scheduled.url, kinds, rounds, pairs, progress, bar))
    except (SetupError, RuntimeError, OSError) as error:  # that it does not start or does not last is a result too
        return pairs, f"an engine with num_speculative_tokens_per_batch_size failed: {error}"
    drafted = {batch: sum(one.counted["draft_tokens"] for one in found) for (_, batch), found in pairs.items()}
    says = ", ".join(f"{count} at {batch}" for batch, count in drafted.items())
    return pairs, f"with {json.dumps(SCHEDULED['num_speculative_tokens_per_batch_size'])} tokens drafted: {says}"


def main(rounds: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    kinds = [(text, batch) for text in TEXTS for batch in BATCHES]
    pairs: Pairs = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("plain and speculative in turns", total=2 * rounds * len(kinds))
        for plain_core in (0, 1):  # each has each core for half of the pairs: the cores are not alike
            with two_engines(python, model, NGRAM, plain_core) as (plain, speculative):
                uvloop.run(compare(plain.url, speculative.url, kinds, rounds, pairs, progress, bar))
        console.print(table_of("n-gram speculation, 4 tokens", pairs))
        scheduled, says = measure_schedule(python, model, rounds, progress)
    console.print(table_of("n-gram speculation up to 4 streams, by num_speculative_tokens_per_batch_size", scheduled))
    sample = next(iter(pairs.values()))[0].speculative[0].text
    console.print(f"a repetitive stream begins: {sample[:100]!r}")
    console.print(says, soft_wrap=True)
    console.print(figure(pairs), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
