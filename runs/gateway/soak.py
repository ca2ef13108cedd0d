"""Runs a gateway for an hour at 70 % load and looks for what grows. See runs/soak.sh.

The trends are Theil-Sen slopes (runs/measure/growth.py), with their 99 % intervals.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.charts import BLUE, ORANGE, write_picture
from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_process import free_port
from runs.measure.growth import Trend, open_files, rollup_mib, sum_of, trend_of, waited_s
from runs.measure.machine import too_slow
from runs.measure.streams import CLOSE, cpu_seconds, gateway, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
MODEL, SECRET, OWNER = "m", "hw-soak", "hw-soak-owner"
REPLICAS, SEATS = 2, 16
FIRST_S, STEP_S = 0.05, 0.02
TOKENS, PROMPT_WORDS = (20, 100), (1, 400)  # of a call, evenly distributed
LOAD, LEAVING = 0.7, 0.05
WARM_UP_MIN = 10.0
SAMPLE_S = 5.0
SEED = 11
CALL_TIMEOUT_S = 60.0
# The engines close connections that are idle for 5 s. Until then an idle gateway has some open.
SETTLED_S, GIVE_UP_S = 8.0, 60.0
MOST_MIB_PER_HOUR = 2.0
# Above this share of the time without a core, the engines are too slow for the load, and calls pile up in the gateway.
MOST_WAITED = 0.1
LEAST_LOAD, LEAST_LEFT = 0.65, 0.04
PRICE = "[models.price]\ninput = 1.0\noutput = 10.0\n"
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages")


# --- clients ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a client requests, and when it leaves."""

    path: str
    tokens: int
    prompt_words: int
    streamed: bool
    leaves_after_s: float | None = None

    def body(self) -> bytes:
        prompt = "word " * self.prompt_words
        body: dict[str, object] = {"model": MODEL, "max_tokens": self.tokens, "stream": self.streamed}
        body |= {"prompt": prompt} if self.path == PATHS[1] else {"messages": [{"role": "user", "content": prompt}]}
        return msgspec.json.encode(body)


def seat_time_s(tokens: float) -> float:
    return FIRST_S + (tokens - 1) * STEP_S


def make_plan(chance: random.Random) -> Plan:
    tokens = chance.randint(*TOKENS)
    leaves_after_s = chance.uniform(0, seat_time_s(tokens)) if chance.random() < LEAVING else None
    return Plan(chance.choice(PATHS), tokens, chance.randint(*PROMPT_WORDS), chance.random() < 0.5, leaves_after_s)


def calls_per_s() -> float:
    """Keeps LOAD of the seats taken; those who leave do so halfway on average."""
    return LOAD * REPLICAS * SEATS / (seat_time_s(sum(TOKENS) / 2) * (1 - LEAVING / 2))


async def call(url: str, plan: Plan) -> str:
    """Make one call on a connection of its own. Returns how it ended."""
    tail = b""
    response = None

    def keep(data: bytes) -> None:
        nonlocal tail
        tail = (tail + data)[-64:]

    try:
        async with asyncio.timeout(plan.leaves_after_s or CALL_TIMEOUT_S):
            headers = (*CLOSE, (b"x-api-key", SECRET.encode()))
            response = await ConnectionPool(url).send(b"POST", plan.path, plan.body(), headers)
            await response.pipe(keep)
    except TimeoutError:
        return "left" if plan.leaves_after_s is not None else "no answer"
    except ConnectionFailed:
        return "no answer"
    finally:
        if response is not None:
            response.close()
    if response.status != 200:
        return str(response.status)
    return "answered" if not plan.streamed or b"[DONE]" in tail or b"message_stop" in tail else "cut"


async def load(url: str, ended: Counter[str], until: float) -> None:
    """Make calls with Poisson arrivals until this time of the loop's clock. Returns when the last one has ended."""
    loop, chance = asyncio.get_running_loop(), random.Random(SEED)
    calls = set[asyncio.Task[None]]()

    async def one(plan: Plan) -> None:
        ended[await call(url, plan)] += 1

    at = loop.time()
    while at < until:
        task = asyncio.create_task(one(make_plan(chance)))
        calls.add(task)
        task.add_done_callback(calls.discard)
        at += chance.expovariate(calls_per_s())
        await asyncio.sleep(at - loop.time())
    await asyncio.gather(*calls)


# --- the gateway -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    minutes: float  # since the load began
    memory_mib: float
    files: int
    tasks: int
    seats: int  # taken


class Watched:
    """The gateway's process, seen from outside."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid = pid
        self._pool = ConnectionPool(url)
        self._started = time.monotonic()

    def load_begins(self) -> None:
        self._started = time.monotonic()

    async def sample(self) -> Sample:
        headers = (*CLOSE, (b"x-api-key", OWNER.encode()))
        status, page = await self._pool.exchange(b"GET", "/metrics", headers=headers)
        if status != 200:
            raise SystemExit(f"/metrics answered {status}")
        return Sample(
            (time.monotonic() - self._started) / 60,
            rollup_mib(self.pid)["Rss"],
            open_files(self.pid),
            int(sum_of(page, b"headway_tasks")),
            int(sum_of(page, b"headway_aboard")),
        )

    async def settled(self) -> Sample:
        """Poll until no seat is taken and the number of files no longer changes."""
        deadline = time.monotonic() + GIVE_UP_S
        before, since = await self.sample(), time.monotonic()
        while time.monotonic() < min(deadline, since + SETTLED_S):
            await asyncio.sleep(0.5)
            now = await self.sample()
            if now.seats or (now.files, now.tasks) != (before.files, before.tasks):
                since = time.monotonic()
            before = now
        return before


# --- the verdict -----------------------------------------------------------------------------------------------------


def trend(samples: list[Sample], name: str) -> Trend:
    return trend_of([one.minutes / 60 for one in samples], [getattr(one, name) for one in samples], 0.99)


@dataclass(frozen=True)
class Figures:
    minutes: float
    load: float  # mean share of the seats that was taken
    ended: Counter[str]  # calls by how they ended
    memory: Trend  # in MiB; this and the next three are without the warm-up
    files: Trend
    tasks: Trend
    seats: Trend
    files_more: int  # than before the load, when it was over
    tasks_more: int
    seats_left: int


def verdict(figures: Figures) -> Verdict:
    calls = figures.ended.total()
    served = figures.ended["answered"] + figures.ended["left"]
    left = figures.ended["left"] / max(1, calls)
    bars = (
        at_least("load of the seats, mean", figures.load, LEAST_LOAD, ".1%"),
        at_least("share of clients that left", left, LEAST_LEFT, ".1%"),
        none_of("calls not served", calls - served),
        at_most("memory", figures.memory.slope, MOST_MIB_PER_HOUR, "+.2f", " MiB/h"),
        at_most("file descriptors, lower end of the trend", figures.files.low, 0, "+.2f", "/h"),
        at_most("tasks, lower end of the trend", figures.tasks.low, 0, "+.2f", "/h"),
        at_most("seats taken, lower end of the trend", figures.seats.low, 0, "+.2f", "/h"),
        at_most("file descriptors more than before the load", figures.files_more, 0, ".0f"),
        at_most("tasks more than before the load", figures.tasks_more, 0, ".0f"),
        none_of("seats taken after the load", figures.seats_left),
    )
    memory = figures.memory
    flat = "flat" if all(bar.holds for bar in bars[4:]) else "NOT FLAT"
    figure = (
        f"{figures.minutes:g} min at {figures.load:.0%} load, {calls:,} calls, {left:.1%} left: memory "
        f"{memory.slope:+.2f} MiB/h (99 % interval {memory.low:+.2f} .. {memory.high:+.2f}; bar "
        f"{MOST_MIB_PER_HOUR:g}); file descriptors, tasks and seats {flat}"
    )
    return Verdict(figure, bars)


# --- the run ---------------------------------------------------------------------------------------------------------


async def soak(minutes: float, url: str, watched: Watched, folder: Path) -> Figures:
    warm = random.Random(SEED)
    await asyncio.gather(*[call(url, make_plan(warm)) for _ in range(2 * REPLICAS * SEATS)])
    before = await watched.settled()
    ended: Counter[str] = Counter()
    samples: list[Sample] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + 60 * minutes
    watched.load_begins()
    loading = asyncio.create_task(load(url, ended, until))
    with Progress(console=console, transient=True) as progress:
        shown = progress.add_task("", total=minutes)
        while loop.time() < until:
            await asyncio.sleep(SAMPLE_S)
            samples.append(one := await watched.sample())
            words = f"{ended.total():,} calls, {one.memory_mib:.1f} MiB, {one.files} files, {one.seats} seats"
            progress.update(shown, completed=one.minutes, description=words)
    await loading
    after = await watched.settled()
    warm_up_min = min(WARM_UP_MIN, minutes / 3)
    later = [one for one in samples if one.minutes > warm_up_min]
    figures = Figures(
        minutes,
        sum(one.seats for one in samples) / len(samples) / (REPLICAS * SEATS),
        ended,
        trend(later, "memory_mib"),
        trend(later, "files"),
        trend(later, "tasks"),
        trend(later, "seats"),
        after.files - before.files,
        after.tasks - before.tasks,
        after.seats,
    )
    show(figures, samples, before, after)
    write_results(figures, samples, warm_up_min, folder)
    return figures


def show(figures: Figures, samples: list[Sample], before: Sample, after: Sample) -> None:
    table = Table("", "before", "lowest .. highest under load", "trend and its 99 % interval", "after")
    for name, words in (
        ("memory_mib", "memory, MiB"),
        ("files", "file descriptors"),
        ("tasks", "tasks"),
        ("seats", "seats"),
    ):
        values = [getattr(one, name) for one in samples]
        found = getattr(figures, name.removesuffix("_mib"))
        ends = [f"{getattr(one, name):.4g}" for one in (before, after)]
        table.add_row(words, ends[0], f"{min(values):.4g} .. {max(values):.4g}", str(found), ends[1])
    console.print(table)
    console.print("how calls ended:", dict(figures.ended.most_common()), f"seed {SEED}")


def write_results(figures: Figures, samples: list[Sample], warm_up_min: float, folder: Path) -> None:
    """Write the samples and a picture of the memory."""
    (folder / "samples.json").write_bytes(msgspec.json.encode([asdict(one) for one in samples]))
    x = {"field": "minutes", "type": "quantitative", "title": "minutes"}
    y = {"field": "memory_mib", "type": "quantitative", "title": "MiB resident", "scale": {"zero": False}}
    spec = {
        "width": 720,
        "height": 260,
        "data": {"values": [asdict(one) for one in samples]},
        "layer": [
            {"mark": {"type": "line", "color": BLUE}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "rule", "color": ORANGE, "strokeDash": [6, 4]},
                "encoding": {"x": {"datum": warm_up_min}},
            },
        ],
    }
    title = {
        "text": f"The gateway's memory at {LOAD:.0%} load",
        "subtitle": f"after the dashed line {figures.memory} MiB",
    }
    write_picture(spec, title, folder, "memory")
    console.print(f"samples and picture: {folder}", soft_wrap=True)


async def main(minutes: float) -> int:
    folder = Path(tempfile.mkdtemp(prefix="headway-soak-"))
    store_url = f"sqlite:///{folder}/books.db"
    store = open_store(store_url)
    store.migrate()
    store.put_key(Key(id="key-soak", hash=key_hash(SECRET.encode())))
    store.close()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        engine_ports = [free_port() for _ in range(REPLICAS)]
        pids = [
            stack.enter_context(
                scripted(one, model=MODEL, first_token_ms=1000 * FIRST_S, step_ms=f"1:{1000 * STEP_S}", seats=2 * SEATS)
            )
            for one in engine_ports
        ]
        pid = stack.enter_context(
            gateway(
                port,
                folder,
                model=MODEL,
                engine_urls=[f"http://127.0.0.1:{one}" for one in engine_ports],
                seats=SEATS,
                tiers=PRICE,
                timing=f'key_hashes = ["{key_hash(OWNER.encode())}"]',
                ledger=f'store = "{store_url}"\nspool = "{folder}/spool"\n',
            )
        )
        console.print(
            f"{calls_per_s():.1f} calls/s on {REPLICAS} scripted replicas with {SEATS} seats each for {minutes:g} min"
        )
        processes = (pid, *pids)
        since = time.monotonic()
        used, waited = [cpu_seconds(one) for one in processes], [waited_s(one) for one in processes]
        figures = await soak(minutes, url, Watched(pid, url), folder)
        took_s = time.monotonic() - since
        cores = [(cpu_seconds(one) - before) / took_s for one, before in zip(processes, used, strict=True)]
        most_waited = max((waited_s(one) - before) / took_s for one, before in zip(processes, waited, strict=True))
    own = time.process_time() / took_s
    console.print(
        f"CPU: gateway {cores[0]:.1%} of a core, engines {sum(cores[1:]):.1%}, clients {own:.1%}; the gateway or an "
        f"engine had no core in {most_waited:.1%} of the time",
        highlight=False,
    )
    judged = verdict(figures)
    code = finish(console, judged)
    if not judged.ok and most_waited > MOST_WAITED:
        too_slow(console, f"a process had no core in {most_waited:.0%} of the time, {MOST_WAITED:.0%} is allowed")
    return code


if __name__ == "__main__":
    sys.exit(uvloop.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)))
