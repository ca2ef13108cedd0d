"""Fast mode on real vLLM with mixed prompts and little memory. See runs/mixed-prompts.sh.

The engines run six layers of SmolLM2-135M with random weights: the texts do not matter here, and a core without bf16
instructions reads 100 prompt tokens per second with the whole model. Scheduler, memory and attention are vLLM's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.calibrate import CurveCalibration, calibrate
from headway.core.curve import Curve, fit
from headway.engines.vllm import VLLMEngine, read_metrics
from headway.http1 import ConnectionPool, fetch
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import free_port
from runs.measure.callers import in_time, load
from runs.measure.engines import two_smollm2
from runs.measure.machine import require
from runs.measure.streams import ChatRequest, Stream, call, chat_request, gateway
from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
SEATS, STANDARD_CALLERS, FAST_CALLERS = 16, 16, 2
SHORT, LONG = 200, 4000
LONG_SHARE = 1 / 3  # of the standard calls; of the fast ones it is a half
FAST_TOKENS, STANDARD_TOKENS = 48, 96
MARGIN = 0.1
LIGHT_STREAMS = (
    3  # the floor is what so many streams with long prompts and as many with short ones get, less the margin
)
ANSWER = 300  # tokens that core expects of an answer before it has seen any
BLOCKS = 128  # of 128 tokens: three long prompts and a few short ones, of 16 seats
MODEL_FLAGS = ("--hf-overrides", '{"num_hidden_layers": 6}', "--load-format", "dummy", "--dtype", "float32")
FLAGS = (*MODEL_FLAGS, "--num-gpu-blocks-override", str(BLOCKS))
MIN_KEPT, MIN_SERVED = 0.99, 0.99
PREEMPTIONS = (b"vllm:num_preemptions_total",)
SAMPLE_S = 0.25
# The gateway estimates four bytes per token. These are a token each, with the space before them.
WORDS = ("air", "art", "car", "day", "end", "eye", "guy", "job", "law", "lot", "man", "war", "way", "men", "old", "new")

Interval = tuple[float, float]


@dataclass
class Phase:
    """Fast and standard calls through one gateway."""

    fast: dict[int, list[Stream]] = field(default_factory=lambda: {SHORT: [], LONG: []})  # by prompt
    standard: list[Stream] = field(default_factory=list)
    preempted_aboard: int = 0  # while fast streams were aboard that engine
    preempted_else: int = 0

    @property
    def calls(self) -> int:
        return sum(len(streams) for streams in self.fast.values())

    def served(self, tokens: int) -> list[Stream]:
        return [stream for stream in self.fast[tokens] if stream.proof.get("tier_served") == "fast"]

    def all_served(self) -> list[Stream]:
        return [*self.served(SHORT), *self.served(LONG)]


class Prompts:
    def __init__(self, max_tokens: int, tier: str) -> None:
        self._dice = random.Random(time.time_ns())  # a cache may still hold the prompts of the last run
        self._max_tokens, self._tier = max_tokens, tier

    def request(self, tokens: int) -> ChatRequest:
        text = " ".join(self._dice.choices(WORDS, k=tokens))
        return chat_request(MODEL_NAME, self._max_tokens, prompt=text, service_tier=self._tier)

    def mixed(self) -> ChatRequest:
        return self.request(LONG if self._dice.random() < LONG_SHARE else SHORT)


class Watch:
    """Samples the preemptions that an engine has counted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.samples: list[tuple[float, int]] = []

    async def sample(self) -> None:
        pool = ConnectionPool(self.url)
        try:
            while True:
                status, page = await fetch(pool, "/metrics", 5.0)
                if status == 200:
                    self.samples.append((time.monotonic(), int(read_metrics(page, PREEMPTIONS)[0])))
                await asyncio.sleep(SAMPLE_S)
        finally:
            pool.close()

    def count(self, within: list[Interval]) -> tuple[int, int]:
        """The preemptions between two samples that overlap one of the intervals, and the others."""
        inside = outside = 0
        for (start, before), (end, after) in itertools.pairwise(self.samples):
            if any(start <= left and boarded <= end for boarded, left in within):
                inside += after - before
            else:
                outside += after - before
        return inside, outside


@contextlib.asynccontextmanager
async def watching(urls: list[str]) -> AsyncIterator[list[Watch]]:
    watches = [Watch(url) for url in urls]
    tasks = [asyncio.create_task(watch.sample()) for watch in watches]
    try:
        yield watches
        await asyncio.sleep(2 * SAMPLE_S)  # counts the last interval
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def express_aboard(record: Path) -> dict[str, list[Interval]]:
    """By replica: when calls with a floor boarded and left, by the gateway's own record."""
    aboard: dict[str, list[Interval]] = {}
    boarded: dict[str, tuple[str, float]] = {}
    for line in record.read_bytes().splitlines()[1:]:
        now, _, event, actions = msgspec.json.decode(line, type=tuple[float, str, dict[str, Any], list[Any]])
        if (ended := boarded.pop(event.get("call_id", ""), None)) is not None and "output_tokens" not in event:
            boarded[event["call_id"]] = ended  # it goes on: not Finished or Left
        elif ended is not None:
            aboard.setdefault(ended[0], []).append((ended[1], now))
        for kind, action in actions:
            if kind == "Board" and action["floor_tps"]:
                boarded[action["call_id"]] = action["replica"], now
    for replica, since in boarded.values():
        aboard.setdefault(replica, []).append((since, math.inf))
    return aboard


@dataclass
class Straight:
    """One engine at its full seats without a gateway, while the other one is calibrated."""

    calibration: CurveCalibration
    answers: list[Stream]
    preempted: int


async def measure_curve(light: str, full: str) -> Straight:
    engine = VLLMEngine("light", light, MODEL_NAME)
    kv_tokens = await engine.kv_tokens()
    engine.close()
    async with watching([full]) as [watch], load(full, Prompts(STANDARD_TOKENS, "default").mixed, SEATS) as callers:
        await callers.until(SEATS)  # the engine is full
        measured = await calibrate(light, MODEL_NAME, SEATS, lambda _: None, kv_tokens)
    return Straight(measured, callers.done, watch.count([])[1])


def curve_of(measured: CurveCalibration) -> Curve:
    assert measured.long_point is not None, "the engines' memory and maximum length allow long contexts"
    batch, tps, context = measured.long_point
    return fit([(streams, 1 / speed) for streams, speed in measured.points], [(batch, 1 / tps, context)])


def floor_of(measured: CurveCalibration) -> float:
    context = LIGHT_STREAMS * (LONG + SHORT + 2 * ANSWER)
    return round(1 / curve_of(measured).seconds_per_token(2 * LIGHT_STREAMS, context) / (1 + MARGIN), 1)


async def mixed_calls(
    url: str, engines: list[str], fast_streams: int, record: Path, on_answer: Callable[[], None]
) -> Phase:
    phase, prompts = Phase(), Prompts(FAST_TOKENS, "fast")

    async def fast_caller(first: int) -> None:
        for tokens in itertools.islice(itertools.cycle((first, LONG + SHORT - first)), fast_streams // FAST_CALLERS):
            phase.fast[tokens].append(await call(url, prompts.request(tokens)))
            on_answer()

    mixed = Prompts(STANDARD_TOKENS, "default").mixed
    async with watching(engines) as watches, load(url, mixed, STANDARD_CALLERS) as standard:
        await standard.until(STANDARD_CALLERS)
        # Not counted: the first fast call finds all replicas full, closes doors, waits, and may be downgraded.
        await call(url, prompts.request(SHORT))
        before = len(standard.done)
        await asyncio.gather(*[fast_caller((SHORT, LONG)[number % 2]) for number in range(FAST_CALLERS)])
        phase.standard = standard.done[before:]
    aboard = express_aboard(record)
    for watch in watches:
        inside, outside = watch.count(aboard.get(watch.url, []))
        phase.preempted_aboard += inside
        phase.preempted_else += outside
    if not aboard.keys() <= set(engines):
        raise RuntimeError(f"the record names other replicas than {engines}: {sorted(aboard)}")
    return phase


def through_gateway(what: str, urls: list[str], curve: str, floor_tps: float, fast_streams: int, folder: Path) -> Phase:
    tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
    tiers += f"floor_tps = {floor_tps}\nmax_hold_s = 30.0\n"
    port, record = free_port(), folder / "record"
    with (
        Progress(console=console, transient=True) as progress,
        gateway(port, folder, model=MODEL_NAME, engine_urls=urls, seats=SEATS, tiers=tiers, curve=curve, record=record),
    ):
        bar = progress.add_task(f"fast streams {what}", total=fast_streams)
        url = f"http://127.0.0.1:{port}"
        return in_time(console, mixed_calls(url, urls, fast_streams, record, lambda: progress.advance(bar)))


def main(fast_streams: int) -> int:
    require(console, free_cores=True)
    with tempfile.TemporaryDirectory() as name, two_smollm2(console, SEATS, FLAGS) as urls:
        folder = Path(name)
        with console.status("measuring the curve of a light engine beside a full one (about two minutes)"):
            straight = in_time(console, measure_curve(*urls))
        floor_tps = floor_of(straight.calibration)
        lines = straight.calibration.config_lines()
        console.print(f"{lines}floor {floor_tps} tok/s", highlight=False, markup=False)
        without = CurveCalibration(straight.calibration.points, straight.calibration.prompt_tps).config_lines()
        phase = through_gateway("with context in the curve", urls, lines, floor_tps, fast_streams, folder)
        control = through_gateway("without, for comparison", urls, without, floor_tps, fast_streams // 2, folder)
    return report(straight, phase, control, floor_tps)


@dataclass(frozen=True)
class Figures:
    preempted: int  # while fast streams were aboard
    straight_preempted: int  # without a gateway
    fast_calls: int
    served: int  # of these, as fast
    kept: int  # of those served, with their floor kept
    control_kept: float  # share, with a curve without context


def verdict(figures: Figures) -> Verdict:
    kept = figures.kept / figures.served if figures.served else math.nan
    bars = (
        none_of("preemptions while fast streams were aboard", figures.preempted),
        at_least("preemptions at full seats without a gateway", figures.straight_preempted, 1, ".0f"),
        at_least("floors kept", kept, MIN_KEPT, ".1%"),
        at_least("fast calls served as fast", figures.served / figures.fast_calls, MIN_SERVED, ".1%"),
    )
    figure = (
        f"prompts of {SHORT} and {LONG:,} tokens: {figures.preempted} preemptions while fast streams were aboard, "
        f"{figures.straight_preempted} at full seats without a gateway; floors kept {kept:.1%} "
        f"({figures.control_kept:.1%} with a curve without context)"
    )
    return Verdict(figure, bars)


def kept(streams: list[Stream]) -> int:
    return sum(stream.proof.get("kept") is True for stream in streams)


def share_kept(streams: list[Stream]) -> float:
    return kept(streams) / len(streams) if streams else math.nan


def report(straight: Straight, phase: Phase, control: Phase, floor_tps: float) -> int:
    table = Table("what", "with context", "without", title=f"fast streams, floor {floor_tps} tok/s")
    both = (phase, control)
    for tokens in (SHORT, LONG):
        served = [one.served(tokens) for one in both]
        rows = (
            (
                "served as fast",
                [f"{len(two)} of {len(one.fast[tokens])}" for one, two in zip(both, served, strict=True)],
            ),
            ("floors kept", [f"{share_kept(two):.1%}" for two in served]),
            ("tok/s, slowest and median", [speeds(two) for two in served]),
            (
                "seconds to the first token, median",
                [f"{median(s.first_at - s.sent_at for s in two)}" for two in served],
            ),
        )
        for what, cells in rows:
            table.add_row(f"prompts of {tokens:,}: {what}", *cells)
    table.add_row("standard beside them, tok/s, slowest and median", *[speeds(one.standard) for one in both])
    table.add_row("preemptions while fast streams were aboard", *[str(one.preempted_aboard) for one in both])
    table.add_row("preemptions else", *[str(one.preempted_else) for one in both])
    console.print(table)
    console.print(
        f"an engine at full seats without a gateway: {straight.preempted} preemptions in {len(straight.answers)} "
        f"answers, tok/s {speeds(straight.answers)}",
        highlight=False,
    )
    all_served = phase.all_served()
    return finish(
        console,
        verdict(
            Figures(
                phase.preempted_aboard,
                straight.preempted,
                phase.calls,
                len(all_served),
                kept(all_served),
                share_kept(control.all_served()),
            )
        ),
    )


def speeds(streams: list[Stream]) -> str:
    found = [stream.speed_tps for stream in streams if stream.complete]
    return f"{min(found):.1f}, {statistics.median(found):.1f}" if found else "none"


def median(values: Any) -> str:
    found = list(values)
    return f"{statistics.median(found):.1f}" if found else "none"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
