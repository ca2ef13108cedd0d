"""Fast mode on real vLLM under saturating standard load, beside the same engines split by hand. See runs/fast-mode.sh.

Two engines, one on each core. Blocks of three minutes alternate: in one the gateway serves fast and standard calls on
both engines; in the other, the control, fast calls go straight to one engine and standard calls to the other, without a
gateway. So both meet the same changes of the machine. Each block is kept when it is done: a run that was interrupted
goes on after its last block. Floors are judged by the client's clock on both sides.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from headway.bench.calibrate import SpeedPoint, measure_prompts, nine_in_ten_speed
from headway.bench.client import LoadClient
from headway.bench.load import quantile
from headway.engines.vllm import read_metrics
from headway.http1 import ConnectionPool, fetch
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import cache_dir, free_port
from runs.measure.callers import in_time, load
from runs.measure.engines import two_smollm2
from runs.measure.kept import Stage, once
from runs.measure.machine import require, too_slow
from runs.measure.sources import Sources
from runs.measure.streams import CALL_TIMEOUT_S, ChatRequest, Stream, call, chat_request, gateway
from runs.measure.verdict import Verdict, at_least, at_most, finish

console = Console(width=110)
SEATS, STANDARD_STREAMS = 64, 96  # more than one replica seats: while one replica is light, the rest wait
LIGHT_STREAMS = 6  # fast callers: a step of six costs hardly more than one of two, and 600 streams take half the time
FAST_TOKENS, STANDARD_TOKENS = 48, 96
FLOOR_RATIO, TARGET_RATIO = 1.5, 2.75  # times the speed of a standard stream
BLOCK_S, WARM_UP_S = 180.0, 30.0
MIN_RATIO, MIN_SERVED, MAX_KEPT_LOST, MAX_FIRST_TOKEN = 2.5, 0.99, 0.02, 1.5
ONE_SIDED_95 = 1.645
# Minimum speed of a stream of a full engine. A caller waits for the call before it and then for its own answer.
MIN_STANDARD_TPS = 2 * STANDARD_TOKENS / CALL_TIMEOUT_S
QUESTIONS = [f"What is {a} plus {b}, and why?" for a in range(2, 7) for b in (3, 11, 20, 45)]


@dataclass
class Calibrated:
    points: list[SpeedPoint] = field(default_factory=list)
    prompt_tps: float = 0.0
    floor_tps: float = 0.0
    target_tps: float = 0.0


@dataclass
class Block:
    """What was measured in one block, after the warm-up."""

    seconds: float = 0.0
    fast_tps: list[float] = field(default_factory=list)  # of each fast stream that was served as fast
    first_token_s: list[float] = field(default_factory=list)
    downgraded: int = 0
    standard_tps: list[float] = field(default_factory=list)  # of each standard stream
    standard_tokens: int = 0
    in_flight: list[float] = field(default_factory=list)  # standard streams on the engines, sampled every second


@dataclass
class Place:
    """Where the calls of a block go."""

    fast: str
    standard: str
    engines: list[str]
    is_gateway: bool


def standard_request() -> ChatRequest:
    return chat_request(MODEL_NAME, STANDARD_TOKENS)


async def measure_curve(light: str, heavy: str, into: Calibrated) -> None:
    """Measure the speed of a light engine while the other one is full, as in the run itself. The floor is 1.5 times the
    speed of a stream of the full engine: this kind of machine changes its speed by three quarters within seconds, so
    twice the speed, which the median fast stream easily has, cannot be promised to 99 in 100."""
    request = chat_request(MODEL_NAME, FAST_TOKENS)
    async with load(heavy, standard_request, SEATS) as full:
        first = await full.until(SEATS)  # they began together: the engine has read 64 prompts and is full
        usual_tps = statistics.median(stream.speed_tps for stream in first)
        if usual_tps < MIN_STANDARD_TPS:
            too_slow(console, f"a stream of a full engine gets {usual_tps:.2f} tok/s of {MIN_STANDARD_TPS:.2f} needed")
        client = LoadClient(light, MODEL_NAME, seed=int(time.time()))
        into.prompt_tps = await measure_prompts(client)
        client.close()
        for batch, rounds in ((1, 8), (2, 6), (LIGHT_STREAMS, 4), (12, 2)):
            speeds: list[float] = []
            for _ in range(rounds):
                speeds += [s.speed_tps for s in await asyncio.gather(*[call(light, request) for _ in range(batch)])]
            into.points.append((batch, nine_in_ten_speed(speeds)))
        if len(full.done) < 2 * SEATS:  # the light engine was quick: as many answers again
            await full.until(2 * SEATS - len(full.done))
        beside = [stream.speed_tps for stream in full.done[SEATS:]]
        into.points.append((SEATS, nine_in_ten_speed(beside)))
        into.floor_tps, into.target_tps = (
            round(ratio * statistics.median(beside), 1) for ratio in (FLOOR_RATIO, TARGET_RATIO)
        )


async def watch(urls: list[str], fast: list[None], into: Block) -> None:
    """Sample the number of standard streams on the engines until cancelled."""
    pools = [ConnectionPool(url) for url in urls]
    try:
        while True:
            running = 0.0
            for pool in pools:
                _, page = await fetch(pool, "/metrics", 5.0)
                running += read_metrics(page, (b"vllm:num_requests_running",))[0]
            into.in_flight.append(running - len(fast))
            await asyncio.sleep(1)
    finally:
        for pool in pools:
            pool.close()


async def compare_texts(url: str) -> tuple[list[bool], list[int]]:
    """Ask the same questions at temperature 0 as fast and as standard: whether the texts are the same, and for how many
    words."""
    same_text, same_words = [], []
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:

        async def answer(question: str, tier: str) -> str | None:
            said = await client.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": question}], max_tokens=64, temperature=0,
                extra_body={"service_tier": tier},
            )  # fmt: skip
            return said.choices[0].message.content or "" if said.service_tier == tier else None

        async with load(url, standard_request, STANDARD_STREAMS):
            for question in QUESTIONS:
                fast, standard = await asyncio.gather(answer(question, "fast"), answer(question, "default"))
                if fast is None or standard is None:
                    continue  # downgraded: nothing to compare
                words = list(zip(fast.split(), standard.split(), strict=False))
                same_text.append(fast == standard)
                same_words.append(next((n for n, (a, b) in enumerate(words) if a != b), len(words)))
    return same_text, same_words


async def run_block(place: Place, fast_streams: int, seconds: float) -> Block:
    """Standard load all the time and so many fast callers; what ends after the warm-up counts."""
    into = Block()
    fast_request = chat_request(MODEL_NAME, FAST_TOKENS, **({"service_tier": "fast"} if place.is_gateway else {}))
    running_fast: list[None] = []
    # An engine that is asked without a gateway refuses what it cannot seat soon.
    streams = STANDARD_STREAMS if place.is_gateway else SEATS
    async with load(place.standard, standard_request, streams) as standard:
        await standard.until(SEATS)
        begin = time.perf_counter() + WARM_UP_S
        end = begin + seconds

        async def fast_caller() -> None:
            while time.perf_counter() < end:
                running_fast.append(None)
                stream = await call(place.fast, fast_request)
                running_fast.pop()
                if stream.sent_at >= begin:
                    _count_fast(stream, place, into)

        callers = [asyncio.create_task(fast_caller()) for _ in range(fast_streams)]
        await asyncio.sleep(begin - time.perf_counter())
        before = len(standard.done)
        watching = asyncio.create_task(watch(place.engines, running_fast, into))
        await asyncio.sleep(end - time.perf_counter())
        done = standard.done[before:]
        watching.cancel()
        await asyncio.gather(*callers)
        await asyncio.gather(watching, return_exceptions=True)
    into.seconds = seconds
    into.standard_tps = [round(stream.speed_tps, 3) for stream in done]
    into.standard_tokens = sum(stream.tokens for stream in done)
    return into


def _count_fast(stream: Stream, place: Place, into: Block) -> None:
    if not stream.complete:
        raise RuntimeError(f"a fast stream was cut off (status {stream.status})")
    if place.is_gateway and stream.proof.get("tier_served") != "fast":
        into.downgraded += 1
        return
    into.fast_tps.append(round(stream.speed_tps, 3))
    into.first_token_s.append(round(stream.first_at - stream.sent_at, 4))


# --- stages, each kept when it is done -------------------------------------------------------------------------------


def calibrate(urls: list[str]) -> dict[str, Any]:
    into = Calibrated()
    in_time(console, measure_curve(urls[0], urls[1], into))
    return asdict(into)


def one_block(place: Place, _number: int, fast_streams: int, seconds: float) -> dict[str, Any]:
    return asdict(in_time(console, run_block(place, fast_streams, seconds)))


def same_texts(place: Place) -> tuple[list[bool], list[int]]:
    return in_time(console, compare_texts(place.fast))


class Run:
    """The kept stages of one machine, and the engines that they run on."""

    def __init__(self, urls: list[str], folder: Path) -> None:
        self._urls, self._folder, self._sources = urls, folder, Sources()
        folder.mkdir(parents=True, exist_ok=True)
        self.calibrated = Calibrated(**self._once(Stage("calibrated", calibrate, 3), urls))

    def _once(self, stage: Stage, context: Any) -> Any:
        settings = [SEATS, asdict(self.calibrated) if hasattr(self, "calibrated") else None]
        return once(stage, self._folder, context, settings, self._sources, console)

    def measure(self, port: int, fast_streams: int) -> tuple[dict[str, list[Block]], list[Block], Any]:
        """Alternate blocks until each side has as many fast streams as asked for. Returns the blocks of each side,
        those without fast calls, and the comparison of texts."""
        url = f"http://127.0.0.1:{port}"
        places = {
            "ours": Place(url, url, self._urls, is_gateway=True),
            "control": Place(self._urls[0], self._urls[1], self._urls, is_gateway=False),
        }
        alone = [self._block("alone", places["ours"], 0, 0)]
        sides: dict[str, list[Block]] = {side: [] for side in places}
        while any(sum(len(block.fast_tps) for block in blocks) < fast_streams for blocks in sides.values()):
            number = len(sides["ours"])
            for side in places if number % 2 == 0 else reversed(places):
                sides[side].append(self._block(side, places[side], number, LIGHT_STREAMS))
        alone.append(self._block("alone", places["ours"], 1, 0))
        texts = self._once(Stage("texts", same_texts, 3, setup=(gateway,)), places["ours"])
        return sides, alone, texts

    def _block(self, side: str, place: Place, number: int, fast_streams: int) -> Block:
        minutes = (BLOCK_S + WARM_UP_S + 15) / 60
        stage = Stage(f"{side}-{number}", one_block, minutes, (number, fast_streams, BLOCK_S), setup=(gateway,))
        return Block(**self._once(stage, place))


def main(fast_streams: int) -> int:
    require(console, free_cores=True)
    with tempfile.TemporaryDirectory() as folder, two_smollm2(console, SEATS) as urls:
        run = Run(urls, cache_dir() / "runs" / "fast-mode")
        known = run.calibrated
        shown = [(batch, round(tps, 1)) for batch, tps in known.points]
        speeds = f"prompts {known.prompt_tps:.0f} tok/s; floor {known.floor_tps}, target {known.target_tps} tok/s"
        console.print(f"curve: {shown}; {speeds}")
        tiers = '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n[[models.tiers]]\nname = "fast"\n'
        tiers += f"floor_tps = {known.floor_tps}\ntarget_tps = {known.target_tps}\nmax_hold_s = 20.0\n"
        lines = f"curve = {[[batch, round(tps, 3)] for batch, tps in known.points]}\n"
        lines += f"prompt_tps = {known.prompt_tps}\n"
        port = free_port()
        with gateway(port, Path(folder), model=MODEL_NAME, engine_urls=urls, seats=SEATS, tiers=tiers, curve=lines):
            sides, alone, texts = run.measure(port, fast_streams)
    return report(known, sides, alone, texts)


@dataclass(frozen=True)
class Side:
    """All blocks of one side."""

    fast: int  # streams served as fast
    kept: int
    downgraded: int
    fast_tps: float  # medians of streams
    standard_tps: float
    first_token_p95_s: float
    standard_total_tps: float
    fast_total_tps: float
    in_flight: float


def side_of(blocks: list[Block], floor_tps: float) -> Side:
    fast = [tps for block in blocks for tps in block.fast_tps]
    seconds = sum(block.seconds for block in blocks)
    return Side(
        len(fast),
        sum(tps >= floor_tps for tps in fast),
        sum(block.downgraded for block in blocks),
        _median(fast),
        _median([tps for block in blocks for tps in block.standard_tps]),
        quantile([s for block in blocks for s in block.first_token_s], 0.95),
        sum(block.standard_tokens for block in blocks) / seconds,
        FAST_TOKENS * len(fast) / seconds,
        _median([number for block in blocks for number in block.in_flight]),
    )


@dataclass(frozen=True)
class Figures:
    ours: Side
    control: Side

    @property
    def ratio(self) -> float:
        return self.ours.fast_tps / self.ours.standard_tps

    @property
    def kept_lost(self) -> float:
        """The upper 95 % bound of the share kept by the control minus ours, by Agresti and Caffo."""
        shares = [(side.kept + 1) / (side.fast + 2) for side in (self.control, self.ours)]
        variance = sum(
            share * (1 - share) / (side.fast + 2) for share, side in zip(shares, (self.control, self.ours), strict=True)
        )
        return shares[0] - shares[1] + ONE_SIDED_95 * math.sqrt(variance)


def verdict(figures: Figures) -> Verdict:
    ours, control = figures.ours, figures.control
    first_token = ours.first_token_p95_s / control.first_token_p95_s if control.first_token_p95_s else math.nan
    served = ours.fast / max(1, ours.fast + ours.downgraded)
    bars = (
        at_least("fast ÷ standard, tok/s", figures.ratio, MIN_RATIO),
        at_most("floors: control kept - ours, upper 95 % bound", figures.kept_lost, MAX_KEPT_LOST, ".1%"),
        at_most("first token of fast calls p95, ours ÷ control", first_token, MAX_FIRST_TOKEN),
        at_least("fast calls served as fast", served, MIN_SERVED, ".1%"),
    )
    kept = ours.kept / max(1, ours.fast), control.kept / max(1, control.fast)
    figure = (
        f"fast ÷ standard {figures.ratio:.2f} (bar {MIN_RATIO}); floors kept {kept[0]:.1%}, by a split by hand "
        f"{kept[1]:.1%} (upper bound of the difference {figures.kept_lost:.1%}, bar {MAX_KEPT_LOST:.0%}); first token "
        f"p95 {first_token:.2f} times the split's (bar {MAX_FIRST_TOKEN})"
    )
    return Verdict(figure, bars)


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else math.nan


def report(known: Calibrated, sides: dict[str, list[Block]], alone: list[Block], texts: Any) -> int:
    figures = Figures(*(side_of(sides[side], known.floor_tps) for side in ("ours", "control")))
    alone_tps = [block.standard_tokens / block.seconds for block in alone]
    table = Table("what", "gateway", "split by hand")
    ours, control = figures.ours, figures.control
    rows = [
        ("fast streams, in blocks", *(f"{side.fast}, {len(sides[name])}" for name, side in _named(figures))),
        ("floors kept", *(f"{side.kept / max(1, side.fast):.1%}" for _, side in _named(figures))),
        ("fast: median tok/s", f"{ours.fast_tps:.1f}", f"{control.fast_tps:.1f}"),
        ("fast: time to first token p95", f"{ours.first_token_p95_s:.2f} s", f"{control.first_token_p95_s:.2f} s"),
        ("standard: median tok/s", f"{ours.standard_tps:.1f}", f"{control.standard_tps:.1f}"),
        ("standard streams on the engines, median", f"{ours.in_flight:.0f}", f"{control.in_flight:.0f}"),
        ("standard tok/s in all", f"{ours.standard_total_tps:.0f}", f"{control.standard_total_tps:.0f}"),
        ("fast tok/s in all", f"{ours.fast_total_tps:.1f}", f"{control.fast_total_tps:.1f}"),
        ("standard tok/s without fast calls, before and after", *(f"{tps:.0f}" for tps in alone_tps)),
        (
            "standard tokens lost per fast token: the price multiple",
            *(
                f"{(statistics.mean(alone_tps) - side.standard_total_tps) / side.fast_total_tps:.1f}"
                for _, side in _named(figures)
            ),
        ),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    same_text, same_words = texts
    console.print(
        f"same text at temperature 0: {sum(same_text)} of {len(same_text)}; first different word, median: "
        f"{_median(same_words):.0f}; floor {known.floor_tps} tok/s"
    )
    return finish(console, verdict(figures))


def _named(figures: Figures) -> list[tuple[str, Side]]:
    return [("ours", figures.ours), ("control", figures.control)]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
