"""Measures whether n-gram speculation is faster, by batch size and kind of text. See runs/speculation.sh."""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from headway.errors import SetupError
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from runs.engine.pairs import Pairs, Text, compare, table_of, two_engines
from runs.measure.token_times import chat
from runs.measure.verdict import Bar, Verdict, at_least, finish

console = Console(width=170)
TOKENS = 64
BATCHES = (1, 2, 8, 16)
SCHEDULED_BATCHES = (2, 4, 5, 8)  # below and above the last drafting batch of the schedule
NGRAM: dict[str, object] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
LAST_DRAFTING = 4  # streams
# First batch, last batch, draft tokens.
SCHEDULED = {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, LAST_DRAFTING, 4], [LAST_DRAFTING + 1, 64, 0]]}
MIN_GAIN, STORY_GAINS = 1.5, (0.75, 1.3)
COLOURS = ("red", "green", "blue", "white", "black", "brown", "grey", "pink", "orange", "violet")
THINGS = (
    *("lamp", "chair", "kettle", "bus", "clock", "piano", "ladder", "basket"),
    *("mirror", "bottle", "hammer", "candle", "violin", "pillow", "wagon", "anchor"),
)


def repetitive(number: int) -> dict[str, object]:
    """A request to copy a list, different for each number. So small a model copies badly, but then repeats itself."""
    dice = random.Random(number)
    lines = [
        f"{at}. {dice.choice(COLOURS)} {dice.choice(THINGS)}, {dice.randint(10, 99)} pieces" for at in range(1, 16)
    ]
    listed = "\n".join(lines)
    return {"prompt": f"The list:\n{listed}\n\nA copy of the list:\n1."}


def story(number: int) -> dict[str, object]:
    return chat(f"Tell me a long story about a {THINGS[number]}.")


TEXTS = {name: Text(asked, len(THINGS), TOKENS) for name, asked in (("repetitive", repetitive), ("story", story))}


@dataclass(frozen=True)
class Figures:
    gains: dict[tuple[str, int], float]  # speculative ÷ plain, tok/s of a stream, by text and streams
    drafted: dict[int, int]  # tokens, by streams, on an engine whose schedule ends at 4 streams; empty if it failed


def verdict(figures: Figures) -> Verdict:
    """docs/explanation/fast-mode.md: speculation is faster on repetitive text and not on stories."""
    bars = []
    for (text, batch), gain in figures.gains.items():
        what = f"{text}, {batch} streams: times the plain speed"
        if text == "repetitive":
            bars.append(at_least(what, gain, MIN_GAIN))
        else:
            low, high = STORY_GAINS
            bars.append(Bar(what, f"{gain:.2f}", f"{low} .. {high}", low <= gain <= high))
    for batch in SCHEDULED_BATCHES:
        count = figures.drafted.get(batch)
        drafts = batch <= LAST_DRAFTING
        holds = count is not None and (count > 0) == drafts
        bars.append(Bar(f"tokens drafted by schedule, {batch} streams", f"{count}", ">= 1" if drafts else "0", holds))
    parts = []
    for text in TEXTS:
        gains = [f"{gain:.2f} at {batch}" for (t, batch), gain in figures.gains.items() if t == text]
        parts.append(f"{text}: {', '.join(gains)}")
    return Verdict(f"speculative ÷ plain, tok/s of a stream: {'; '.join(parts)}", tuple(bars))


def measure_schedule(python: Path, model: str, rounds: int, progress: Progress) -> Pairs:
    """Check that vLLM accepts a schedule by batch size and follows it. Returns what was measured until it failed."""
    texts = {"repetitive": TEXTS["repetitive"]}
    bar = progress.add_task("speculation by batch", total=rounds * len(SCHEDULED_BATCHES))
    pairs: Pairs = {}
    try:
        with two_engines(python, model, MODEL_NAME, SCHEDULED, 0) as (plain, scheduled):
            uvloop.run(compare(plain.url, scheduled.url, texts, SCHEDULED_BATCHES, rounds, pairs, progress, bar))
    except (SetupError, RuntimeError, OSError) as error:  # an engine that does not start or crashes is a result too
        console.print(f"an engine with num_speculative_tokens_per_batch_size failed: {error}", soft_wrap=True)
    return pairs


def main(rounds: int) -> int:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    pairs: Pairs = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("plain and speculative in turns", total=2 * rounds * len(TEXTS) * len(BATCHES))
        for plain_core in (0, 1):  # each engine gets each core for half of the pairs: the cores differ
            with two_engines(python, model, MODEL_NAME, NGRAM, plain_core) as (plain, speculative):
                uvloop.run(compare(plain.url, speculative.url, TEXTS, BATCHES, rounds, pairs, progress, bar))
        console.print(table_of("n-gram speculation, 4 tokens", pairs))
        scheduled = measure_schedule(python, model, rounds, progress)
    console.print(table_of("n-gram speculation up to 4 streams, by num_speculative_tokens_per_batch_size", scheduled))
    sample = next(iter(pairs.values()))[0].speculative[0].text
    console.print(f"a repetitive stream begins: {sample[:100]!r}")
    gains = {cell: statistics.median(one.ratio for one in found) for cell, found in pairs.items()}
    drafted = {batch: sum(one.counted["draft_tokens"] for one in found) for (_, batch), found in scheduled.items()}
    return finish(console, verdict(Figures(gains, drafted)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
