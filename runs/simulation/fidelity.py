"""Compares the live gateway and the simulator on the same arrivals. See runs/sim-fidelity.sh."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.api.prompt import BYTES_PER_TOKEN
from headway.bench.client import Prompts
from headway.config import load
from headway.config.to_core import policy_of, replica_of
from headway.core.curve import fit
from headway.core.types import Tier
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from headway.sim.loop import Job, SimTrip, Simulation
from headway.sim.workload import Lengths, Recipe, synthesize
from runs.measure.machine import require, too_slow
from runs.measure.streams import ChatRequest, Stream, call, chat_request, gateway, scripted
from runs.measure.verdict import Verdict, at_most, finish

console = Console(width=120)
SEATS, SEED = 16, 3
TIERS = """\
[[models.tiers]]
name = "standard"
max_hold_s = 30.0
[[models.tiers]]
name = "fast"
floor_tps = {floor_tps}
max_hold_s = 3.0
"""
SHARES: dict[Tier, float] = {"standard": 0.75, "fast": 0.25}

# Scripted engines: 10 ms per step plus 1.5 ms per stream.
REPLICAS, FIRST_TOKEN_S, STEP_MS, FLOOR_TPS = 4, 0.020, "1:11.5,16:34", 45.0
CURVE = f"curve = [[1, {1 / 0.0115:.4f}], [8, {1 / 0.022:.4f}], [16, {1 / 0.034:.4f}]]"
RECIPE = Recipe(9.0, clients=20, burst_spread=0.5, answers=Lengths(100, 0.7, 400, least=20), tiers=SHARES)

# Real vLLM: the engine is measured before, between and after the segments, because the machine changes its speed.
SEGMENTS, SEGMENT_S, BEFORE = 5, 75.0, 3
BATCHES, ROUNDS, TOKENS = (1, 4, 16), (4, 2, 1), 48
SHORT, ABOARD = 24, 4  # prompt tokens and streams with which the stall of a prompt is measured
FLOOR_BATCH, FLOOR_SHARE = 6, 0.45  # the floor is this share of the speed at that batch
# With a floor aboard, prompts of new calls may take a twentieth of the time. Answers are so long that few calls have to
# wait for this; otherwise a hundredth of a second of a prompt's time would change the results.
BUSY = 0.3  # share of a full engine's throughput
VLLM_SHARES: dict[Tier, float] = {"standard": 0.88, "fast": 0.12}
PROMPTS, ANSWERS, MEAN_ANSWER = Lengths(24, 0.4, 160, least=16), Lengths(100, 0.5, 240, least=30), 110.0


@dataclass(frozen=True)
class Bars:
    throughput: float
    p50: float
    p99: float
    points: float  # difference of the shares of floors kept, in percentage points


MAX_LATE_S = 0.02  # of a call, after it was due: in the simulator none is late
ON_SCRIPTED, ON_VLLM = Bars(0.02, 0.03, 0.06, 1.0), Bars(0.05, 0.08, 0.15, 1.0)


@dataclass
class Seen:
    """A call as its client saw it."""

    job: Job
    stream: Stream
    e2e_s: float  # from when it was due to its last token
    late_s: float  # delay between when it was due and when it was sent


@dataclass
class Side:
    """Both sides of one comparison, segment by segment."""

    live: list[list[Seen]] = field(default_factory=list)
    simulated: list[list[SimTrip]] = field(default_factory=list)


@dataclass
class Planned:
    job: Job
    request: ChatRequest


def planned(jobs: Iterator[Job], model: str, seconds: float) -> list[Planned]:
    """The calls as they will be sent: of one tenant, because the live gateway has no keys, and with the prompt tokens
    that the gateway estimates."""
    prompts, made = Prompts(SEED), []
    for job in takewhile(lambda job: job.at < seconds, jobs):
        tier = "fast" if job.call.tier == "fast" else "default"
        request = chat_request(model, job.tokens, prompt=prompts.text(job.call.prompt_tokens), service_tier=tier)
        as_seen = replace(job.call, model=model, tenant="", prompt_tokens=taken_for(request))
        made.append(Planned(Job(job.at, as_seen, job.tokens), request))
    return made


def taken_for(request: ChatRequest) -> int:
    """The prompt tokens that the gateway estimates."""
    return len(request.body) // BYTES_PER_TOKEN


async def live(url: str, plan: list[Planned]) -> list[Seen]:
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.5

    async def one(each: Planned) -> Seen:
        at = each.job.at
        await asyncio.sleep(start + at - loop.time())
        due = loop.time()
        stream = await call(url, each.request)
        late_s = max(0.0, due - start - at)
        return Seen(each.job, stream, stream.last_at - stream.sent_at + late_s, late_s)

    return await asyncio.gather(*[one(each) for each in plan])


def simulated(config: Path, plan: list[Planned], first_token_s: float) -> list[SimTrip]:
    table = load(config).models[0]
    fleet = [replica_of(table, replica, name=replica.url) for replica in table.replicas]
    simulation = Simulation({table.name: policy_of(table)}, fleet, first_token_s)
    return list(simulation.run((each.job for each in plan), 1e9))


# --- scripted engines ---


def on_scripted(seconds: float, folder: Path) -> Side:
    ports, port = [free_port() for _ in range(REPLICAS)], free_port()
    plan = planned(synthesize(RECIPE, SEED), "m", seconds)
    tiers = TIERS.format(floor_tps=FLOOR_TPS)
    with ExitStack() as stack:
        for one in ports:
            engine = scripted(one, model="m", first_token_ms=FIRST_TOKEN_S * 1e3, step_ms=STEP_MS, seats=SEATS)
            stack.enter_context(engine)
        urls = [f"http://127.0.0.1:{one}" for one in ports]
        stack.enter_context(gateway(port, folder, model="m", engine_urls=urls, seats=SEATS, tiers=tiers, curve=CURVE))
        seen = uvloop.run(live(f"http://127.0.0.1:{port}", plan))
    return Side([seen], [simulated(folder / f"gateway-{port}.toml", plan, FIRST_TOKEN_S)])


# --- real vLLM ---


@dataclass
class Measured:
    """One engine's figures, with one item per measurement."""

    speeds: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    stall_s: list[float] = field(default_factory=list)  # time that a new call's prompt takes from those aboard
    first_token_s: list[float] = field(default_factory=list)  # of a new call with nobody aboard
    prompt_tokens: list[int] = field(default_factory=list)  # as the gateway estimates them

    @property
    def prompt_tps(self) -> float:
        return statistics.mean(self.prompt_tokens) / max(1e-3, statistics.mean(self.stall_s))

    @property
    def more_s(self) -> float:
        """Time until the first token in addition to reading the prompt."""
        return max(0.0, statistics.mean(self.first_token_s) - statistics.mean(self.stall_s))

    def lines(self) -> str:
        """Lines of the configuration. Means, not the speed that nine in ten get: a simulation is about all streams."""
        curve = [[batch, round(statistics.mean(speeds), 3)] for batch, speeds in self.speeds.items()]
        return f"curve = {curve}\nprompt_tps = {self.prompt_tps:.1f}\n"

    def speed_tps(self, batch: int) -> float:
        points = [(b, 1 / statistics.mean(speeds)) for b, speeds in self.speeds.items()]
        return fit(points).speed_tps(batch)


async def measure(url: str, prompts: Prompts, into: Measured) -> None:
    """Measure the speed of a stream at some batches, and how long a prompt delays those aboard and its own caller."""

    def request(tokens: int) -> ChatRequest:
        return chat_request(MODEL_NAME, tokens, prompt=prompts.text(SHORT))

    async def decode(streams: int, tokens: int) -> list[Stream]:
        return await asyncio.gather(*[call(url, request(tokens)) for _ in range(streams)])

    for batch, rounds in zip(BATCHES, ROUNDS, strict=True):
        for _ in range(rounds):
            into.speeds[batch] += [stream.speed_tps for stream in await decode(batch, TOKENS)]
    alone = [await call(url, request(1)) for _ in range(4)]
    undisturbed = await decode(ABOARD, TOKENS)
    aboard = asyncio.create_task(decode(ABOARD, TOKENS))
    newcomers = 0
    while not aboard.done():
        await call(url, request(1))
        newcomers += 1
    lost_s = statistics.mean(map(decoding_s, aboard.result())) - statistics.mean(map(decoding_s, undisturbed))
    into.stall_s.append(lost_s / newcomers)
    into.first_token_s.append(statistics.median(stream.first_at - stream.sent_at for stream in alone))
    into.prompt_tokens.append(taken_for(request(1)))


def decoding_s(stream: Stream) -> float:
    return stream.last_at - stream.first_at


@contextmanager
def engine() -> Iterator[str]:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    local = LocalEngine(cpu_vllm(python), model, MODEL_NAME, free_port(), SEATS, on_cpu=True, core=0)
    with EngineProcess(local) as started:
        with console.status("starting the engine (about a minute)"):
            started.wait_ready(300)
        yield started.url


def on_vllm(segments: int, folder: Path) -> tuple[Side, Measured, float]:
    measured, prompts, side, port = Measured(), Prompts(SEED + 1), Side(), free_port()
    with engine() as url:
        uvloop.run(measure(url, prompts, Measured()))  # warm-up
        for _ in range(BEFORE):
            uvloop.run(measure(url, prompts, measured))
        known = measured.lines()
        floor_tps = round(FLOOR_SHARE * measured.speed_tps(FLOOR_BATCH), 2)
        calls_per_s = BUSY * SEATS * measured.speed_tps(SEATS) / MEAN_ANSWER
        recipe = Recipe(calls_per_s, clients=20, burst_spread=0.5, prompts=PROMPTS, answers=ANSWERS, tiers=VLLM_SHARES)
        plans = [planned(synthesize(recipe, seed), MODEL_NAME, SEGMENT_S) for seed in range(segments)]
        tiers = TIERS.format(floor_tps=floor_tps)
        for plan in track(plans, "segments", console=console, transient=True):
            with gateway(port, folder, model=MODEL_NAME, engine_urls=[url], seats=SEATS, tiers=tiers, curve=known):
                side.live.append(uvloop.run(live(f"http://127.0.0.1:{port}", plan)))
            uvloop.run(measure(url, prompts, measured))
    config = folder / "simulated.toml"
    config.write_text(
        f'[[models]]\nname = "{MODEL_NAME}"\n{tiers}\n[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\n'
        + measured.lines()
    )
    side.simulated = [simulated(config, plan, measured.more_s) for plan in plans]
    return side, measured, floor_tps


# --- the comparison ---


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


@dataclass(frozen=True)
class Compared:
    """One comparison: the live and the simulated value of each figure."""

    name: str
    bars: Bars
    throughput_tps: tuple[float, float]
    served: tuple[int, int]  # calls
    e2e_s: dict[tuple[str, float], tuple[float, float]]  # by tier or "all", and quantile
    promised: tuple[int, int]  # calls with a floor
    kept: tuple[int, int]  # of these

    @property
    def points(self) -> float:
        """By how many percentage points the shares of floors kept differ."""
        live, simulated = (kept / of if of else math.nan for kept, of in zip(self.kept, self.promised, strict=True))
        return 100 * abs(live - simulated)


def off_by(pair: tuple[float, float]) -> float:
    live, simulated = pair
    return simulated / live - 1 if live else math.nan


Figures = list[Compared]


def verdict(figures: Figures) -> Verdict:
    bars, words = [], []
    for one in figures:
        throughput, p50, p99 = (off_by(x) for x in (one.throughput_tps, one.e2e_s["all", 0.5], one.e2e_s["all", 0.99]))
        bars += [
            at_most(f"{one.name}: throughput off by", abs(throughput), one.bars.throughput, ".1%"),
            at_most(f"{one.name}: end to end p50 off by", abs(p50), one.bars.p50, ".1%"),
            at_most(f"{one.name}: end to end p99 off by", abs(p99), one.bars.p99, ".1%"),
            at_most(f"{one.name}: floors kept off by", one.points, one.bars.points, ".1f", " points"),
        ]
        words.append(
            f"{one.name}: throughput {throughput:+.1%}, p50 {p50:+.1%}, p99 {p99:+.1%}, floors {one.points:.1f} points"
        )
    return Verdict(f"simulated beside live: {'; '.join(words)}", tuple(bars))


def compared(name: str, side: Side, floor_tps: float, bars: Bars) -> Compared:
    complete = [[one for one in seen if one.stream.complete] for seen in side.live]
    finished = [[trip for trip in trips if trip.how == "finished"] for trips in side.simulated]
    lasts = (
        sum(max(one.job.at + one.e2e_s for one in seen) for seen in complete),
        sum(max(trip.ended_at or 0.0 for trip in trips) for trips in finished),
    )
    all_live, all_trips = [one for seen in complete for one in seen], [trip for trips in finished for trip in trips]
    tokens = sum(one.job.tokens for one in all_live), sum(trip.job.tokens for trip in all_trips)
    e2e_s: dict[tuple[str, float], tuple[float, float]] = {}
    for tier in ("all", "standard", "fast"):
        live_s = [one.e2e_s for one in all_live if tier in ("all", one.job.call.tier)]
        simulated_s = [(one.ended_at or 0.0) - one.job.at for one in all_trips if tier in ("all", one.job.call.tier)]
        e2e_s |= {(tier, share): (quantile(live_s, share), quantile(simulated_s, share)) for share in (0.5, 0.99)}
    kept_live = [one.stream.proof.get("kept") for one in all_live if one.stream.proof.get("tier_served") == "fast"]
    kept_simulated = [trip.speed_tps >= floor_tps for trip in all_trips if trip.tier == "fast"]
    return Compared(
        name,
        bars,
        (tokens[0] / lasts[0], tokens[1] / lasts[1]),
        (len(all_live), len(all_trips)),
        e2e_s,
        (len(kept_live), len(kept_simulated)),
        (sum(one is True for one in kept_live), sum(kept_simulated)),
    )


def show(one: Compared) -> None:
    table = Table("what", "live", "simulated", "off by", title=one.name, title_justify="left")
    rows: list[tuple[str, tuple[float, float], str]] = [
        ("throughput, tok/s", one.throughput_tps, ",.1f"),
        ("calls served", one.served, ",.0f"),
        *((f"end to end p{100 * share:.0f}, {tier}, s", pair, ".3f") for (tier, share), pair in one.e2e_s.items()),
    ]
    for what, pair, form in rows:
        table.add_row(what, *[f"{value:{form}}" for value in pair], f"{off_by(pair):+.1%}")
    shares = [f"{kept} of {of}" for kept, of in zip(one.kept, one.promised, strict=True)]
    table.add_row("floors kept", *shares, f"{one.points:.1f} points")
    console.print(table)


def check_client(side: Side) -> None:
    """A client that sends calls late makes the live side look slower."""
    late_s = quantile([one.late_s for seen in side.live for one in seen], 0.99)
    if late_s > MAX_LATE_S:
        too_slow(console, f"the client called {1e3 * late_s:.0f} ms late (p99); {1e3 * MAX_LATE_S:.0f} are allowed")


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 180.0
    segments = int(sys.argv[2]) if len(sys.argv) > 2 else SEGMENTS
    require(console, free_cores=True)
    folder = Path(tempfile.mkdtemp(prefix="headway-fidelity-"))
    side = on_scripted(seconds, folder)
    check_client(side)
    figures = [compared(f"{REPLICAS} scripted engines", side, FLOOR_TPS, ON_SCRIPTED)]
    show(figures[0])
    if segments:
        side, measured, floor_tps = on_vllm(segments, folder)
        for batch, speeds in measured.speeds.items():
            ends = f"{min(speeds):.1f} .. {max(speeds):.1f}"
            console.print(f"vLLM with {batch} streams: {statistics.mean(speeds):.1f} tok/s each ({ends})")
        console.print(
            f"a prompt takes {statistics.mean(measured.stall_s) * 1e3:.0f} ms from those aboard, its first token comes "
            f"{measured.more_s * 1e3:.0f} ms later; floor {floor_tps} tok/s"
        )
        check_client(side)
        figures.append(compared("vLLM on one of two cores", side, floor_tps, ON_VLLM))
        show(figures[1])
    return finish(console, verdict(figures))


if __name__ == "__main__":
    raise SystemExit(main())
