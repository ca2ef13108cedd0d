"""Tests the ledger under faults: gateways, database, replicas and clients die at random. See runs/ledger-torture.sh."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.store import StoreUnavailable
from headway.local.engine_process import free_port
from runs.ledger.own_postgres import OwnPostgres
from runs.ledger.torture_judge import Judgement, Seen, Witness, checkpoint_tokens, judge
from runs.measure.streams import scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of
from runs.measure.witness import set_faults

console = Console(width=120)
MODEL, SECRET = "m", "hw-torture"
GATEWAYS, REPLICAS, SEATS = 2, 3, 64
STEP_S = 0.005
CALLERS = 48
SPOOL_BYTES = 256 * 1024  # so small that an outage of the database fills it
READ_EVERY_S = 8.0
CALL_TIMEOUT_S = 60.0
# Percentage of each fault. "cut" closes every connection of the gateways to the database; "outage" keeps the database
# down until the spools are full.
KINDS = {
    "client leaves": 62,
    "replica dies before": 8,
    "replica dies in the middle": 10,
    "gateway killed": 8,
    "gateway told to end": 4,
    "database cut": 4,
    "database killed": 3,
    "database outage": 1,
}


class GatewayProcess:
    """A gateway that can be killed and restarted with the same port and spool."""

    def __init__(self, folder: Path, number: int, store_url: str, replicas: list[str]) -> None:
        self.port = free_port()
        self.name = f"gateway-{number}"
        self.spool = folder / f"spool-{number}"
        self.busy = asyncio.Lock()  # one fault at a time
        self._config = folder / f"{self.name}.toml"
        self._log = (folder / f"{self.name}.log").open("ab")
        tables = "".join(f'[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\n' for url in replicas)
        self._config.write_text(
            f"[gateway]\nport = {self.port}\nprobe_interval_s = 0.2\ndrain_timeout_s = 5.0\n"
            f'[ledger]\nstore = "{store_url}"\nspool = "{self.spool}"\nspool_bytes = {SPOOL_BYTES}\n'
            f'[[models]]\nname = "{MODEL}"\n[models.price]\ninput = 1.0\noutput = 10.0\n{tables}'
        )
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "headway", "serve", "--config", str(self._config)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                head = await reader.readexactly(12)
                writer.close()
                if head.endswith(b"200"):
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} is not ready: see {self._log.name}")
            await asyncio.sleep(0.05)

    async def end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)
            self._process = None


@dataclass
class Run:
    seed: int
    streams: int
    faults: int
    gateways: list[GatewayProcess]
    witnesses: list[Witness]
    database: OwnPostgres
    leaving: set[int]  # numbers of the streams whose clients disconnect
    planned: int  # faults; `faults` is the minimum number that must happen
    sent: int = 0  # streams started
    seen: list[Seen] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # faults
    at_database: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_over(self) -> bool:
        return self.sent >= self.streams


# --- clients ---------------------------------------------------------------------------------------------------------


async def caller(run: Run, chance: random.Random) -> None:
    while not run.is_over:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                status = await call(run, chance.choice(run.gateways).port, chance)
        except (OSError, asyncio.IncompleteReadError):
            status = "no connection"
        except TimeoutError:
            status = "timeout"
        run.statuses[status] += 1
        if status not in ("complete", "left"):
            await asyncio.sleep(0.1)


async def call(run: Run, port: int, chance: random.Random) -> str:
    tokens = chance.randint(4, 40)
    body = msgspec.json.encode({"model": MODEL, "prompt": "hi", "max_tokens": tokens, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: {SECRET}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = answer[9:12].decode()
        if status != "200":
            return status
        run.sent += 1
        at = answer.index(b"x-request-id: ") + 14
        seen = Seen(answer[at : answer.index(b"\r", at)].decode(), is_complete=False)
        run.seen.append(seen)
        leaves_after = chance.randint(0, tokens - 2) if run.sent in run.leaving else tokens + 9
        events, tail = 0, b""
        while data := await reader.read(65_536):
            events += data.count(b"data: ")
            if events > leaves_after:
                run.done["client leaves"] += 1
                return "left"
            tail = (tail + data)[-64:]
            if b"[DONE]" in tail:
                seen.is_complete = True
                return "complete"
        return "cut"
    finally:
        writer.transport.abort()


# --- faults ----------------------------------------------------------------------------------------------------------


async def cause_faults(run: Run) -> None:
    """Cause the faults of the seed's plan, each when a given number of streams has started."""
    chance = random.Random(run.seed)
    kinds = [kind for kind in KINDS if kind != "client leaves"]
    count = run.planned - run.planned * KINDS["client leaves"] // 100
    at = sorted(chance.randint(0, run.streams * 95 // 100) for _ in range(count))
    plan = [(number, chance.choices(kinds, [KINDS[kind] for kind in kinds])[0]) for number in at]
    tasks = set[asyncio.Task[None]]()
    for number, kind in plan:
        while run.sent < number:
            await asyncio.sleep(0.02)
        task = asyncio.create_task(cause(run, kind, random.Random(chance.getrandbits(32))))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def cause(run: Run, kind: str, chance: random.Random) -> None:
    if kind.startswith("replica"):
        witness = chance.choice(run.witnesses)
        after = 0 if kind.endswith("before") else chance.randint(1, 20)
        await set_faults(witness.url, die_after_tokens=after, times=chance.randint(1, 4))
    elif kind.startswith("gateway"):
        gateway = chance.choice(run.gateways)
        async with gateway.busy:
            await gateway.end(signal.SIGKILL if kind == "gateway killed" else signal.SIGTERM)
            await gateway.start()
    else:
        async with run.at_database:
            await at_database(run, kind, chance)
    run.done[kind] += 1


async def at_database(run: Run, kind: str, chance: random.Random) -> None:
    if kind == "database cut":
        await asyncio.to_thread(cut_connections, run.database.url)
        return
    await asyncio.to_thread(run.database.kill, chance.choice([signal.SIGQUIT, signal.SIGKILL]))
    if kind == "database outage":
        refused, until = run.statuses["503"], time.monotonic() + 30
        while run.statuses["503"] < refused + 5 and time.monotonic() < until and not run.is_over:
            await asyncio.sleep(0.05)
    await asyncio.to_thread(run.database.start)


def cut_connections(url: str) -> None:
    with suppress(StoreUnavailable):
        store = open_store(url)
        with store.transaction() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        store.close()


async def watch(run: Run) -> None:
    while True:
        await asyncio.gather(*[asyncio.to_thread(witness.read) for witness in run.witnesses])
        await asyncio.sleep(READ_EVERY_S)


# --- the run ---------------------------------------------------------------------------------------------------------


async def torture(run: Run) -> Judgement:
    store = open_store(run.database.url)
    store.migrate()
    store.put_key(Key(id="key-torture", hash=key_hash(SECRET.encode())))
    await asyncio.gather(*[gateway.start() for gateway in run.gateways])
    watching = asyncio.create_task(watch(run))
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        shown = progress.add_task("streams", total=run.streams)
        callers = [asyncio.create_task(caller(run, random.Random(run.seed * 1_000 + n))) for n in range(CALLERS)]
        faults = asyncio.create_task(cause_faults(run))
        while not all(task.done() for task in [*callers, faults]):
            words = f"{run.sent:,} streams, {sum(run.done.values()):,} faults, {run.statuses['complete']:,} complete"
            progress.update(shown, completed=run.sent, description=words)
            await asyncio.sleep(0.5)
        await asyncio.gather(*callers, faults)
    watching.cancel()
    store.close()
    for witness in run.witnesses:
        await set_faults(witness.url)
    # Stop all gateways gracefully, which ships what is in their spools.
    await asyncio.gather(*[gateway.end(signal.SIGTERM) for gateway in run.gateways])
    for witness in run.witnesses:
        await asyncio.to_thread(witness.read)
    store = open_store(run.database.url)
    try:
        return judge(store, run.witnesses, run.seen)
    finally:
        store.close()


@dataclass(frozen=True)
class Figures:
    streams: int
    streams_wanted: int
    faults: int
    faults_wanted: int
    judgement: Judgement


def verdict(figures: Figures) -> Verdict:
    found = figures.judgement
    low, killed = max(found.killed_low, default=0), len(found.killed_low)
    bars = (
        at_least("streams", figures.streams, figures.streams_wanted, ",.0f"),
        at_least("faults", figures.faults, figures.faults_wanted, ",.0f"),
        at_least("calls in the ledger", found.calls, figures.streams, ",.0f"),
        none_of("entries lost", len(found.lost)),
        none_of("over-billed", len(found.over_billed)),
        none_of("complete, and not exact", len(found.wrong_when_complete)),
        none_of("billed twice, or otherwise wrong", len(found.problems)),
        at_most(f"tokens not billed, most of {killed} killed streams", low, checkpoint_tokens(STEP_S), ",.0f"),
    )
    figure = (
        f"{found.calls:,} calls in the ledger, {figures.faults:,} faults: {len(found.lost)} lost, "
        f"{len(found.over_billed)} over-billed, {len(found.problems)} billed twice or wrong"
    )
    return Verdict(figure, bars)


def show(run: Run, judgement: Judgement) -> None:
    table = Table("fault", "times", title=f"seed {run.seed}: {run.sent:,} streams, {sum(run.done.values()):,} faults")
    for kind in KINDS:
        table.add_row(kind, f"{run.done[kind]:,}")
    console.print(table)
    console.print("what clients saw:", dict(sorted(run.statuses.items())))
    console.print("how calls ended, by the ledger:", dict(sorted(judgement.outcomes.items())))
    for problem in [*judgement.lost, *judgement.over_billed, *judgement.wrong_when_complete, *judgement.problems][:10]:
        console.print(problem, style="red", markup=False)


async def main() -> int:
    arguments = [int(argument) for argument in sys.argv[1:]]
    streams, faults, seed = (*arguments, *(100_000, 1_000, 1)[len(arguments) :])
    console.print(f"seed {seed}; `runs/ledger-torture.sh {streams} {faults} {seed}` makes the same plan again")
    folder = Path(tempfile.mkdtemp(prefix="headway-torture-"))
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        ports = [free_port() for _ in range(REPLICAS)]
        for port in ports:
            engine = scripted(port, model=MODEL, first_token_ms=5, step_ms=f"1:{STEP_S * 1000}", seats=4 * SEATS)
            stack.enter_context(engine)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        gateways = [GatewayProcess(folder, number, database.url, urls) for number in range(GATEWAYS)]
        planned = faults + faults // 8 + 4  # some clients are cut off before they would disconnect
        leaving = set(random.Random(seed).sample(range(1, streams), planned * KINDS["client leaves"] // 100))
        run = Run(seed, streams, faults, gateways, [Witness(url) for url in urls], database, leaving, planned)
        judgement = await torture(run)
    show(run, judgement)
    return finish(console, verdict(Figures(run.sent, streams, sum(run.done.values()), faults, judgement)))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    raise SystemExit(uvloop.run(main()))
