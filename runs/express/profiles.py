"""Fast streams on a replica that speculates, and on a plain one, beside standard load. See runs/fast-profile.sh.

Two engines serve at a time, one on each core: a plain one, and beside it either another plain one or one that
speculates with n-grams, as another profile of the same weights. A gateway stands in front of each pair. Phases of both
alternate, with the same calls; only the curves of the profiles tell the gateway which replica fast calls should board.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.calibrate import SpeedPoint, nine_in_ten_speed
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from runs.engine.pairs import counters
from runs.engine.speculation import SCHEDULED, repetitive
from runs.measure.callers import in_time, load
from runs.measure.machine import require
from runs.measure.streams import ChatRequest, Stream, at_once, call, chat_request, process
from runs.measure.verdict import Bar, Verdict, at_least, finish, none_of

console = Console(width=120)
Side = Literal["plain", "speculating"]
Kind = Literal["copies", "stories"]
SIDES: tuple[Side, ...] = ("plain", "speculating")
KINDS: tuple[Kind, ...] = ("copies", "stories")
BATCHES = (8, 16, 32, 64)
NEAR_PEAK = 0.95
LIGHT_BATCHES = (1, 2, 4, 8)  # drafting is off from 5 on
FAST_CALLERS, FAST_TOKENS, STANDARD_TOKENS = 2, 48, 64
FLOOR_RATIO = 1.5  # times the speed of a standard stream, as in runs/fast-mode.sh
PROMPT_TPS = 300.0  # of such engines; prompts here are short
PAIRS, WARM_UP_S, PHASE_S = 2, 15.0, 40.0
READY_S = 300.0
MIN_COPIES, MIN_STORIES, MIN_KEPT = 1.5, 0.9, 0.98


@dataclass
class Phase:
    fast: list[Stream] = field(default_factory=list)  # that were served as fast
    downgraded: int = 0
    cut: int = 0
    standard_tps: list[float] = field(default_factory=list)
    standard_tokens: int = 0
    drafted: int = 0

    @property
    def fast_tps(self) -> float:
        return statistics.median([stream.speed_tps for stream in self.fast] or [math.nan])


@dataclass
class Known:
    """What the gateways are told."""

    seats: int = 0
    floor_tps: float = 0.0
    target_tps: float = 0.0  # of a plain light replica with the fast callers alone: so few streams that drafts pay
    standard_tps: float = 0.0  # of a stream of a full engine
    points: dict[Side, list[SpeedPoint]] = field(default_factory=dict)


def asked(kind: Kind, tokens: int, number: int, **more: object) -> ChatRequest:
    """The next call of a kind; each has another text."""
    dice = random.Random(number)
    story = f"Tell me a long story about a bus, number {dice.randrange(10**6)}."
    prompt = str(repetitive(number)["prompt"]) if kind == "copies" else story
    return chat_request(MODEL_NAME, tokens, "none", prompt, temperature=0.0, **more)


def standard_requests() -> Callable[[], ChatRequest]:
    numbers = count()
    return lambda: asked("stories", STANDARD_TOKENS, next(numbers))


@contextmanager
def three_engines() -> Iterator[dict[str, str]]:
    """A heavy engine on the first core; on the second a plain one and one that speculates, of which one is used."""
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    with ExitStack() as stack, console.status("starting three engines (about two minutes)"):
        urls = {}
        for name, core in (("heavy", 0), ("plain", 1), ("speculating", 1)):
            engine = LocalEngine(cpu_vllm(python), model, MODEL_NAME, free_port(), max(BATCHES), on_cpu=True, core=core)
            speculation = SCHEDULED if name == "speculating" else None
            started = stack.enter_context(EngineProcess(replace(engine, speculation=speculation)))
            started.wait_ready(READY_S)
            urls[name] = started.url
        yield urls


async def measure_seats(urls: dict[str, str]) -> tuple[int, dict[int, float]]:
    """The smallest batch whose throughput is within 5 % of the peak, with both cores at work."""
    throughput = {}
    for batch in BATCHES:
        both = await asyncio.gather(
            *[at_once(urls[name], asked("stories", STANDARD_TOKENS, 0), batch) for name in ("heavy", "plain")]
        )
        tps = [sum(one.tokens for one in done) / taken_s for done, taken_s in both]
        throughput[batch] = statistics.mean(tps)
    peak = max(throughput.values())
    return min(batch for batch, tps in throughput.items() if tps >= NEAR_PEAK * peak), throughput


async def measure_curves(urls: dict[str, str], known: Known) -> None:
    """The speed of each profile with few streams, half of them copies, beside a full engine; and that of a full one."""
    async with load(urls["heavy"], standard_requests(), known.seats) as full:
        await full.until(known.seats)
        for side in SIDES:
            known.points[side] = []
            for batch in LIGHT_BATCHES:
                speeds: list[float] = []
                for number in range(max(2, 6 // batch)):
                    calls = [asked(KINDS[(number + at) % 2], FAST_TOKENS, 900 + number + at) for at in range(batch)]
                    speeds += [s.speed_tps for s in await asyncio.gather(*[call(urls[side], one) for one in calls])]
                known.points[side].append((batch, nine_in_ten_speed(speeds)))
        await full.until(known.seats)
        speeds = [stream.speed_tps for stream in full.done[known.seats :]]
    known.standard_tps = statistics.median(speeds)
    known.floor_tps = round(FLOOR_RATIO * known.standard_tps, 1)
    known.target_tps = round(dict(known.points["plain"])[FAST_CALLERS], 1)
    for points in known.points.values():  # drafting is off where many streams run
        points.append((known.seats, nine_in_ten_speed(speeds)))


@contextmanager
def serving(urls: dict[str, str], side: Side, known: Known, folder: Path) -> Iterator[str]:
    """A gateway in front of the heavy engine and the one of this side."""
    port, config = free_port(), folder / f"{side}.toml"
    profiles = "".join(
        f'[[models.profiles]]\nname = "{name}"\ncurve = {[[batch, round(tps, 2)] for batch, tps in points]}\n'
        f"prompt_tps = {PROMPT_TPS}\n"
        + ('speculation = { method = "ngram", by_streams = [[1, 4, 4], [5, 64, 0]] }\n' if name != "plain" else "")
        for name, points in known.points.items()
    )
    replicas = "".join(
        f'[[models.replicas]]\nurl = "{url}"\nseats = {known.seats}\nprofile = "{profile}"\n'
        for url, profile in ((urls["heavy"], "plain"), (urls[side], side))
    )
    config.write_text(
        f'[gateway]\nport = {port}\n[[models]]\nname = "{MODEL_NAME}"\n'
        '[[models.tiers]]\nname = "standard"\nmax_hold_s = 600.0\n'
        f'[[models.tiers]]\nname = "fast"\nfloor_tps = {known.floor_tps}\ntarget_tps = {known.target_tps}\n'
        f"max_hold_s = 30.0\n{profiles}{replicas}",
        encoding="utf-8",
    )
    url = f"http://127.0.0.1:{port}"
    with process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"{url}/ready"):
        yield url


async def run_phase(gateway: str, engine: str, kind: Kind, first: int, seats: int) -> Phase:
    """Standard load that fills both engines, and fast callers. What ends after the warm-up counts."""
    phase, numbers = Phase(), count(first)
    async with load(gateway, standard_requests(), 2 * seats) as standard:
        await asyncio.sleep(WARM_UP_S)
        before, drafted, end = len(standard.done), counters(engine)["draft_tokens"], time.perf_counter() + PHASE_S

        async def fast_caller() -> None:
            while time.perf_counter() < end:
                stream = await call(gateway, asked(kind, FAST_TOKENS, next(numbers), service_tier="fast"))
                if not stream.complete:
                    phase.cut += 1
                elif stream.proof.get("tier_served") == "fast":
                    phase.fast.append(stream)
                else:
                    phase.downgraded += 1

        await asyncio.gather(*[fast_caller() for _ in range(FAST_CALLERS)])
        done = standard.done[before:]
    phase.standard_tps = [stream.speed_tps for stream in done]
    phase.standard_tokens = sum(stream.tokens for stream in done)
    phase.drafted = counters(engine)["draft_tokens"] - drafted
    return phase


Phases = dict[tuple[Kind, Side], list[Phase]]


def alternate(urls: dict[str, str], known: Known, folder: Path) -> Phases:
    phases: Phases = {(kind, side): [] for kind in KINDS for side in SIDES}
    with Progress(console=console, transient=True) as progress, ExitStack() as stack:
        gateways = {side: stack.enter_context(serving(urls, side, known, folder)) for side in SIDES}
        task = progress.add_task("phases of a minute", total=2 * PAIRS * len(KINDS))
        for number in range(PAIRS):
            for kind in KINDS:
                for side in SIDES[:: 1 if number % 2 else -1]:
                    part = run_phase(gateways[side], urls[side], kind, 1_000 * number, known.seats)
                    phases[kind, side].append(in_time(console, part))
                    progress.advance(task)
    return phases


@dataclass(frozen=True)
class Figures:
    gains: dict[Kind, float]  # speculating ÷ plain, median tok/s of fast streams: the median of the pairs
    over_standard: dict[Kind, float]  # speculating ÷ standard
    kept: float  # floors, on the speculating side
    kept_plain: float
    drafted: int
    cut: int


def figures_of(phases: Phases, floor_tps: float) -> Figures:
    def kept(side: Side) -> float:
        fast = [stream for kind in KINDS for phase in phases[kind, side] for stream in phase.fast]
        return sum(stream.speed_tps >= floor_tps for stream in fast) / max(1, len(fast))

    gains, over = {}, {}
    for kind in KINDS:
        with_drafts, plain = phases[kind, "speculating"], phases[kind, "plain"]
        gains[kind] = statistics.median(a.fast_tps / b.fast_tps for a, b in zip(with_drafts, plain, strict=True))
        over[kind] = statistics.median(phase.fast_tps / statistics.median(phase.standard_tps) for phase in with_drafts)
    every = [phase for some in phases.values() for phase in some]
    drafted = sum(phase.drafted for kind in KINDS for phase in phases[kind, "speculating"])
    return Figures(gains, over, kept("speculating"), kept("plain"), drafted, sum(phase.cut for phase in every))


def table_of(phases: Phases, floor_tps: float) -> Table:
    table = Table("fast calls", "light replica", "streams", "fast tok/s", "floors kept", "downgraded", "standard tok/s")
    for (kind, side), some in phases.items():
        fast = [stream for phase in some for stream in phase.fast]
        speeds = [phase.fast_tps for phase in some]
        spread = f"{statistics.median(speeds):.1f} ({min(speeds):.1f} .. {max(speeds):.1f})"
        kept = sum(stream.speed_tps >= floor_tps for stream in fast) / max(1, len(fast))
        each = statistics.median(tps for phase in some for tps in phase.standard_tps)
        in_all = sum(phase.standard_tokens for phase in some) / (PHASE_S * len(some))
        downgraded = str(sum(phase.downgraded for phase in some))
        table.add_row(
            kind, side, str(len(fast)), spread, f"{kept:.1%}", downgraded, f"{each:.1f} a stream, {in_all:.0f} in all"
        )
    return table


def verdict(figures: Figures) -> Verdict:
    bars: list[Bar] = [
        at_least("copies: speculating ÷ plain light replica", figures.gains["copies"], MIN_COPIES),
        at_least("stories: the same", figures.gains["stories"], MIN_STORIES),
        at_least("floors kept, speculating ÷ plain", figures.kept / max(1e-9, figures.kept_plain), MIN_KEPT, ".3f"),
        at_least("tokens drafted", figures.drafted, 1, ",d"),
        none_of("calls cut", figures.cut),
    ]
    gains = ", ".join(f"{kind} {gain:.2f}" for kind, gain in figures.gains.items())
    over = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in figures.over_standard.items())
    figure = (
        f"fast streams, n-gram profile ÷ plain light replica: {gains}; n-gram profile ÷ standard: {over}; floors kept "
        f"{figures.kept:.1%} and {figures.kept_plain:.1%}"
    )
    return Verdict(figure, tuple(bars))


def main() -> int:
    require(console, free_cores=True)
    known = Known()
    with tempfile.TemporaryDirectory() as folder, three_engines() as urls:
        known.seats, throughput = in_time(console, measure_seats(urls))
        shown = ", ".join(f"{tps:.0f} at {batch}" for batch, tps in throughput.items())
        console.print(f"tok/s of a plain engine by streams: {shown}; a full engine has {known.seats} seats")
        in_time(console, measure_curves(urls, known))
        for side, points in known.points.items():
            console.print(f"{side}: {', '.join(f'{tps:.1f} tok/s at {batch}' for batch, tps in points)}")
        console.print(
            f"standard {known.standard_tps:.1f} tok/s, floor {known.floor_tps}, target {known.target_tps} tok/s"
        )
        phases = alternate(urls, known, Path(folder))
    console.print(table_of(phases, known.floor_tps))
    return finish(console, verdict(figures_of(phases, known.floor_tps)))


if __name__ == "__main__":
    sys.exit(main())
