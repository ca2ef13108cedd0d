"""What an open console costs a gateway that relays 64 streams. See runs/console-cost.sh."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track

from headway.http1 import ConnectionPool, Headers
from headway.local.engine_process import free_port
from runs.gateway.relay_change import interval
from runs.gateway.tax import all_complete
from runs.measure.streams import ChatRequest, at_once, chat_request, cpu_seconds, process, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish

PAIRS = 21
MAX_SHARE = 0.01  # of a core
MODEL, STREAMS, TOKENS, STEP = "scripted", 64, 500, "1:10"  # 64 streams at 100 tokens/s, one token per event
KEY, ADMIN = "none", "hw-admin"
# What the page asks for, and how often, in seconds.
POLLED = {"/admin/live": 0.5, "/admin/money": 10.0, "/admin/keys": 10.0, "/admin/offers": 30.0}

console = Console(width=110)


@dataclass(frozen=True)
class Turn:
    cpu_s: float
    seconds: float
    answers: int = 0  # of the console's pages

    @property
    def cores(self) -> float:
        return self.cpu_s / self.seconds


@dataclass(frozen=True)
class WatchedPairs:
    """The turns at one place are a pair: without and with an open console."""

    alone: Sequence[Turn]
    watched: Sequence[Turn]

    @property
    def shares(self) -> list[float]:
        return [watched.cores - alone.cores for alone, watched in zip(self.alone, self.watched, strict=True)]


def verdict(pairs: WatchedPairs) -> Verdict:
    shares = pairs.shares
    median, (low, high) = statistics.median(shares), interval(shares)
    answers = sum(turn.answers for turn in pairs.watched) / sum(turn.seconds for turn in pairs.watched)
    bars = (
        at_least("pairs", len(shares), PAIRS, "d"),
        at_least("pages answered a second", answers, 0.9 / POLLED["/admin/live"]),
        at_most("a core's share that the console takes, median of the pairs", median, MAX_SHARE, ".2%"),
    )
    figure = (
        f"an open console takes {median:.2%} of a core (95 % interval {low:.2%} .. {high:.2%}, {len(shares)} pairs); "
        f"the gateway takes {statistics.median(turn.cores for turn in pairs.alone):.0%} for {STREAMS} streams"
    )
    return Verdict(figure, bars)


@contextlib.asynccontextmanager
async def watching(url: str, answers: list[int]) -> AsyncIterator[None]:
    pool = ConnectionPool(url)
    headers: Headers = ((b"x-api-key", ADMIN.encode()),)

    async def poll(path: str, every_s: float) -> None:
        while True:
            status, _ = await pool.exchange(b"GET", path, headers=headers)
            answers.append(status)
            await asyncio.sleep(every_s)

    polling = [asyncio.create_task(poll(path, every_s)) for path, every_s in POLLED.items()]
    try:
        yield
    finally:
        for task in polling:
            task.cancel()
        await asyncio.gather(*polling, return_exceptions=True)
        pool.close()


async def turn(url: str, pid: int, request: ChatRequest, *, is_watched: bool) -> Turn:
    answers: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        if is_watched:
            await stack.enter_async_context(watching(url, answers))
        began, cpu = time.monotonic(), cpu_seconds(pid)
        streams, _ = await at_once(url, request, STREAMS)
        all_complete(streams)
        took = Turn(cpu_seconds(pid) - cpu, time.monotonic() - began, len(answers))
    assert set(answers) <= {200}, f"the console's pages are answered with {sorted(set(answers))}"
    return took


def write_config(folder: Path, port: int, engine_url: str) -> Path:
    key, admin = (hashlib.sha256(one.encode()).hexdigest() for one in (KEY, ADMIN))
    path = folder / "headway.toml"
    path.write_text(
        f'[gateway]\nport = {port}\nkey_hashes = ["{key}"]\nadmin_key_hashes = ["{admin}"]\n'
        f'[ledger]\nstore = "sqlite:///{folder}/books.db"\nspool = "{folder}/spool"\n'
        f'[[models]]\nname = "{MODEL}"\nprice = {{ input = 1.0, output = 2.0, replica_hour = 1.0 }}\n'
        '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "fast"\nfloor_tps = 50.0\n'
        f'[[models.replicas]]\nurl = "{engine_url}"\nseats = {STREAMS}\ncurve = [[1, 100.0], [{STREAMS}, 100.0]]\n'
    )
    return path


def measure(pairs: int) -> WatchedPairs:
    engine_port, port = free_port(), free_port()
    url, request = f"http://127.0.0.1:{port}", chat_request(MODEL, TOKENS, KEY)
    with tempfile.TemporaryDirectory() as name:
        config = write_config(Path(name), port, f"http://127.0.0.1:{engine_port}")
        serve = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        with (
            scripted(engine_port, model=MODEL, first_token_ms=5, step_ms=STEP, seats=2 * STREAMS),
            process(serve, f"{url}/ready") as pid,
        ):
            seen: list[list[Turn]] = [[], []]
            uvloop.run(turn(url, pid, request, is_watched=True))  # the first calls fill caches
            for number in track(range(pairs), "pairs", console=console, transient=True):
                for place in (0, 1) if number % 2 else (1, 0):
                    seen[place].append(uvloop.run(turn(url, pid, request, is_watched=place == 1)))
    return WatchedPairs(*seen)


def main(pairs: str = str(PAIRS)) -> int:
    console.print(f"{STREAMS} streams of {TOKENS} tokens a turn; polled as the page does: {POLLED}")
    return finish(console, verdict(measure(int(pairs))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
