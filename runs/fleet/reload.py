"""headway.toml changed under load, and what became of streams, seats and reports. See runs/reload.sh."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.progress import track

from headway.config import Config, parse
from headway.config.differences import differences
from headway.dispatch.record import replay
from headway.errors import ConnectionFailed
from headway.local.engine_process import free_port
from runs.fleet.owner import ALIASES, MODEL, SECOND, Owner, Wanted
from runs.measure.fetch import fetch
from runs.measure.streams import Stream, call, chat_request, scripted
from runs.measure.verdict import Verdict, at_least, finish, none_of

console = Console(width=120)
REPLICAS, CALLERS, INVALID_SHARE, RELAYS = 8, 48, 0.1, 2
PAUSE_S = (0.0, 0.3)  # between two changes
APPLIED_S = 10.0  # for a change to be applied
LATE_S = 0.3  # after which a change that was reported is in force: relays are told, and calls are on their way
REFUSED = (400, 402, 404, 429, 503)  # before anything was begun; what is not offered any more is refused
LOG = "was read again"
NUMBERED = "0" * 12


@dataclass(frozen=True)
class Figures:
    changes: int
    served: int
    refused: int
    lost: int  # streams that were cut off, or ended early
    too_many: int  # requests that a replica got when it had no seat for them
    unreported: int  # changes whose differences were not reported, or reported wrongly
    invalid: int  # of the changes
    invalid_taken: int  # of these, not refused
    replay_differs: int
    boarded: int  # requests that were checked for their seat


def verdict(of_modes: dict[str, Figures]) -> Verdict:
    bars = []
    for mode, figures in of_modes.items():
        bars += [
            none_of(f"streams lost, {mode}", figures.lost),
            none_of(f"requests beyond the seats of a replica, {mode}", figures.too_many),
            none_of(f"changes not reported as they are, {mode}", figures.unreported),
            none_of(f"files that are not valid and were taken, {mode}", figures.invalid_taken),
            none_of(f"records that replay otherwise, {mode}", figures.replay_differs),
            at_least(f"calls served, {mode}", figures.served, figures.changes, ",d"),
        ]
    parts = [
        f"{mode}: {one.changes:,} changes ({one.invalid} not valid) under {one.served:,} calls: {one.lost} streams "
        f"lost, {one.too_many} of {one.boarded:,} requests beyond the seats of their replica, {one.unreported} changes "
        "not reported"
        for mode, one in of_modes.items()
    ]
    return Verdict("; ".join(parts), tuple(bars))


@dataclass
class History:
    """The seats of each replica, from when a change was written, and until LATE_S after the next one was reported."""

    written_at: list[float] = field(default_factory=list)
    reported_at: list[float] = field(default_factory=list)
    seats: list[dict[str, int]] = field(default_factory=list)

    def add(self, wanted: Wanted, written_at: float, reported_at: float) -> None:
        self.written_at.append(written_at)
        self.reported_at.append(reported_at)
        self.seats.append(wanted.seats)

    def most(self, url: str, at: float) -> int:
        """The most seats that the replica may have had at this time."""
        last = bisect_right(self.written_at, at)
        first = max(0, bisect_right(self.reported_at, at - LATE_S) - 1)
        return max(seats.get(url, 0) for seats in self.seats[first : max(last, first + 1)])


@dataclass
class Outcomes:
    served: int = 0
    refused: int = 0
    lost: int = 0


async def keep_calling(url: str, dice: random.Random, outcomes: Outcomes, until: asyncio.Event) -> None:
    while not until.is_set():
        tokens = dice.randint(10, 60)
        more = {"service_tier": dice.choice(("default", "default", "fast", "flex"))}
        request = chat_request(dice.choice((MODEL, MODEL, SECOND, *ALIASES)), tokens, **more)
        try:
            stream = await call(url, request)
        except (ConnectionFailed, TimeoutError):
            stream = Stream()
        if stream.status == 200 and stream.complete and stream.tokens == tokens:
            outcomes.served += 1
        elif stream.status in REFUSED:
            outcomes.refused += 1
            await asyncio.sleep(dice.uniform(0.02, 0.1))
        else:
            outcomes.lost += 1


class Serving:
    """A gateway, its file and what it logs."""

    def __init__(self, folder: Path, relays: int, text: str) -> None:
        self.path = folder / "headway.toml"
        self.log = folder / "log"
        self.record = folder / "record.jsonl"
        self.path.write_text(text)
        command = [sys.executable, "-m", "headway", "serve", "--config", str(self.path), "--record", str(self.record)]
        command += ["--relays", str(relays)] if relays > 1 else []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        self._read = 0

    def new_lines(self) -> list[str]:
        """Whole lines that were logged since the last call, of whoever reads the file."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            said = log.read()
        whole = said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        return [line for line in whole.decode().splitlines() if "headway.config: " in line]

    async def change(self, text: str) -> tuple[float, list[str]]:
        """Returns when it was read, and what was reported."""
        self.new_lines()
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)
        os.kill(self.process.pid, signal.SIGHUP)
        said: list[str] = []
        async with asyncio.timeout(APPLIED_S):
            while not any(LOG in line for line in said):
                await asyncio.sleep(0.005)
                said += self.new_lines()
        await asyncio.sleep(0.01)  # the differences follow the first line
        return time.monotonic(), said + self.new_lines()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def beyond_seats(url: str, requests: dict[str, Any], history: History) -> tuple[int, int]:
    """How many requests the replica got, and how many of them when it carried as many as it had seats."""
    ends = [one["ended_s"] if one["ended_s"] is not None else one["received_s"] for one in requests.values()]
    ends.sort()
    starts = sorted(one["received_s"] for one in requests.values())
    too_many = 0
    for number, start in enumerate(starts, start=1):
        running = number - bisect_right(ends, start)
        if running > history.most(url, start):
            too_many += 1
    return len(starts), too_many


async def run(changes: int, seed: int, relays: int, urls: list[str], folder: Path) -> Figures:
    dice = random.Random(f"{seed} {relays}")
    port = free_port()
    lines = f"port = {port}\nprobe_interval_s = 0.2"
    owner = Owner(dice, urls, Wanted(dict.fromkeys(urls, 8), gateway=lines))
    serving = Serving(folder, relays, owner.wanted.toml())
    outcomes, history, done = Outcomes(), History(), asyncio.Event()
    history.add(owner.wanted, 0.0, 0.0)
    try:
        await until_ready(f"http://127.0.0.1:{port}/ready")
        base = f"http://127.0.0.1:{port}"
        callers = [
            asyncio.create_task(keep_calling(base, random.Random(f"{seed} {relays} {number}"), outcomes, done))
            for number in range(CALLERS)
        ]
        unreported = invalid = taken = 0
        seen: dict[str, dict[str, Any]] = {url: {} for url in urls}
        for number in track(range(changes), f"changes, {relays} process(es)", console=console, transient=True):
            is_mistake = dice.random() < INVALID_SHARE
            served = config_of(owner.wanted.toml())
            text = owner.mistake() if is_mistake else owner.change().toml()
            written_at = time.monotonic()
            reported_at, said = await serving.change(text)
            if not is_mistake:
                history.add(owner.wanted, written_at, reported_at)
            invalid += is_mistake
            was_refused = any("is refused" in line for line in said)
            taken += is_mistake and not was_refused
            if not is_mistake:
                wanted = {str(one) for one in differences(served, config_of(text))}
                reported = {line.partition("headway.config: ")[2] for line in said if LOG not in line}
                unreported += was_refused or reported != wanted
            if number % 20 == 0:
                collect(seen)
            await asyncio.sleep(dice.uniform(*PAUSE_S))
        done.set()
        await asyncio.gather(*callers)
        collect(seen)
    finally:
        serving.stop()
    checked = [beyond_seats(url, requests, history) for url, requests in seen.items()]
    differs = [one for one in [replay(serving.record)] if one.first_difference is not None]
    for one in differs:
        console.print(one.first_difference, highlight=False, markup=False)
    return Figures(
        changes,
        outcomes.served,
        outcomes.refused,
        outcomes.lost,
        sum(too_many for _, too_many in checked),
        unreported,
        invalid,
        taken,
        len(differs),
        sum(boarded for boarded, _ in checked),
    )


def config_of(text: str) -> Config:
    return parse(text, "headway.toml")


def collect(seen: dict[str, dict[str, Any]]) -> None:
    """Add what the replicas have recorded since: they keep a bounded number of requests. Probes take no seat, and have
    no id of the gateway: the replicas number them."""
    for url, requests in seen.items():
        record = msgspec.json.decode(fetch(f"{url}/scripted/record", timeout_s=10))
        for key, one in record["requests"].items():
            if one["received_s"] is not None and not key.startswith(NUMBERED):
                requests[key] = one


async def until_ready(url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                fetch(url, timeout_s=2)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return


def main() -> int:
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    found = {}
    for relays in (1, RELAYS):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ports = [free_port() for _ in range(REPLICAS)]
            for port in ports:
                stack.enter_context(scripted(port, model=MODEL, first_token_ms=20, step_ms="1:20", seats=64))
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            count = changes if relays == 1 else changes * 3 // 10
            mode = "one process" if relays == 1 else f"{relays} relays"
            found[mode] = uvloop.run(run(count, seed, relays, urls, folder))
            console.print(f"{mode}: {found[mode]}", highlight=False)
    return finish(console, verdict(found))


if __name__ == "__main__":
    sys.exit(main())
