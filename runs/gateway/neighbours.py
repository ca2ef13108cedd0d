"""Measures an honest tenant's throughput beside a hostile one and beside an honest one. See runs/neighbours.sh.

Both tenants have the same number of connections, each twice as many as there are seats. The neighbour is honest and
hostile in turns; each turn has keys of its own, so that what a tenant was served before does not count, and lasts until
the honest tenant has had a fixed number of answers.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from headway.http1 import ConnectionPool
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_process import free_port
from runs.gateway.tax import spread
from runs.gateway.tenant import (
    CONNECTIONS,
    FIRST_S,
    HONEST,
    HOSTILE,
    MODEL,
    STEP_S,
    VERBOSE_S,
    Tenant,
    Work,
    make_calls,
)
from runs.gateway.verbose_engine import VerboseEngine
from runs.measure.machine import require
from runs.measure.streams import CLOSE, gateway, process
from runs.measure.verdict import Verdict, at_least, finish

console = Console(width=120)
REPLICAS, SEATS = 2, 8
OWNER = "hw-neighbours-owner"
MIN_RATIO = 0.9
LEAST_HOSTILE = 4  # calls of a turn that do what is hostile about them
WARM_CALLS = 40
GIVE_UP_S = 45.0  # for the warm-up of a turn, and for its calls
QUIET_S = 600.0  # for the gateway to end the work of a turn
PRICE = "[models.price]\ninput = 1.0\noutput = 10.0\n"
ENGINE = VerboseEngine.__module__


@dataclass(frozen=True)
class Turn:
    tokens_per_s: float  # of the honest tenant
    not_served: int  # its calls without a complete answer
    neighbour: Work


@dataclass(frozen=True)
class Pair:
    """Two turns, one after the other."""

    beside_honest: Turn
    beside_hostile: Turn

    @property
    def ratio(self) -> float:
        return self.beside_hostile.tokens_per_s / self.beside_honest.tokens_per_s


def verdict(figures: dict[str, list[Pair]]) -> Verdict:
    ratios = {kind: statistics.median(pair.ratio for pair in pairs) for kind, pairs in figures.items()}
    bars = [at_least(f"kept beside {kind}", ratio, MIN_RATIO, ".1%") for kind, ratio in ratios.items()]
    for kind, pairs in figures.items():
        fewest = min(pair.beside_hostile.neighbour.hostile for pair in pairs)
        bars.append(at_least(f"hostile calls of a turn, fewest, {kind}", fewest, LEAST_HOSTILE, ".0f"))
    worst = min(ratios, key=lambda kind: ratios[kind])
    figure = (
        f"an honest tenant keeps {ratios[worst]:.0%} of its throughput beside the worst neighbour ({worst}; bar "
        f"{MIN_RATIO:.0%}); " + ", ".join(f"{kind} {ratio:.0%}" for kind, ratio in ratios.items())
    )
    return Verdict(figure, tuple(bars))


class Measurement:
    def __init__(self, url: str, calls: int) -> None:
        self._port = int(url.rsplit(":", 1)[1])
        self._pool = ConnectionPool(url)
        self._calls = calls
        self._turns = 0

    async def pair(self, kind: str, *, is_hostile_first: bool) -> Pair:
        order = (kind, HONEST) if is_hostile_first else (HONEST, kind)
        turns = {one: await self._turn(one) for one in order}
        return Pair(turns[HONEST], turns[kind])

    async def _turn(self, kind: str) -> Turn:
        number, self._turns = self._turns, self._turns + 1
        command = ["-m", "runs.gateway.tenant", kind, str(self._port), secret("neighbour", number), str(number)]
        pipe = asyncio.subprocess.PIPE
        neighbour = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe)
        tenant = Tenant(self._port, secret("tenant", number), random.Random(1000 + number))
        connections = [asyncio.create_task(make_calls(tenant, HONEST)) for _ in range(CONNECTIONS)]
        try:
            await self._until(tenant.work, WARM_CALLS)
            tokens, since = tenant.work.tokens, time.perf_counter()
            await self._until(tenant.work, tenant.work.complete + self._calls)
            tokens_per_s = (tenant.work.tokens - tokens) / (time.perf_counter() - since)
        finally:
            done, _ = await neighbour.communicate(b"")  # the end of its input ends it
            for one in connections:
                one.cancel()
        await self._quiet()
        not_served = sum(tenant.work.ended.values()) - tenant.work.complete
        return Turn(tokens_per_s, not_served, msgspec.json.decode(done, type=Work))

    async def _until(self, work: Work, complete: int) -> None:
        deadline = time.monotonic() + GIVE_UP_S
        while work.complete < complete and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _quiet(self) -> None:
        """Wait until no call of this turn is left and all replicas are open."""
        deadline = time.monotonic() + QUIET_S
        wanted = {b"headway_aboard{": 0.0, b"headway_held{": 0.0, b"headway_replica_open{": float(REPLICAS)}
        while time.monotonic() < deadline:
            _, page = await self._pool.exchange(b"GET", "/metrics", headers=(*CLOSE, (b"x-api-key", OWNER.encode())))
            lines = page.splitlines()
            if all(
                sum(float(line.rsplit(b" ", 1)[1]) for line in lines if line.startswith(name)) == value
                for name, value in wanted.items()
            ):
                return
            await asyncio.sleep(0.1)
        raise SystemExit("the gateway does not become quiet between two turns")


def secret(who: str, turn: int) -> str:
    return f"hw-{who}-{turn}"


def create_keys(store_url: str, turns: int) -> None:
    store = open_store(store_url)
    store.migrate()
    for turn in range(turns):
        for who in ("tenant", "neighbour"):
            store.put_key(Key(id=f"key-{who}-{turn}", hash=key_hash(secret(who, turn).encode())))
    store.close()


async def measure_kind(kind: str, pairs: int, calls: int, folder: Path) -> list[Pair]:
    """Every kind has a gateway and engines of its own."""
    store_url = f"sqlite:///{folder}/books.db"
    create_keys(store_url, 2 * pairs)
    port, engine_ports = free_port(), [free_port() for _ in range(REPLICAS)]
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        for one in engine_ports:
            settings = [str(value) for value in (one, MODEL, FIRST_S, STEP_S, 4 * SEATS, VERBOSE_S)]
            stack.enter_context(process([sys.executable, "-m", ENGINE, *settings], f"http://127.0.0.1:{one}/health"))
        stack.enter_context(
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
        measurement = Measurement(url, calls)
        return [await measurement.pair(kind, is_hostile_first=bool(number % 2)) for number in range(pairs)]


def row(kind: str, pairs: list[Pair]) -> list[str]:
    beside = [
        [pair.beside_honest.tokens_per_s for pair in pairs],
        [pair.beside_hostile.tokens_per_s for pair in pairs],
    ]
    ratios = [pair.ratio for pair in pairs]
    ended = sum((Counter(pair.beside_hostile.neighbour.ended) for pair in pairs), Counter[str]())
    return [
        kind,
        *[f"{statistics.median(values):,.0f}" for values in beside],
        f"{statistics.median(ratios):.3f}",
        spread(ratios),
        str(sum(pair.beside_hostile.not_served for pair in pairs)),
        ", ".join(f"{count} {how}" for how, count in ended.most_common()),
    ]


async def main(pairs: int, calls: int) -> int:
    require(console, free_cores=True)
    table = Table(
        "neighbour", "beside honest, tok/s", "hostile", "ratio", "lowest .. highest", "not served", "its calls"
    )
    figures = {}
    for kind in HOSTILE:
        with tempfile.TemporaryDirectory(prefix="headway-neighbours-") as name, console.status(kind):
            figures[kind] = await measure_kind(kind, pairs, calls, Path(name))
        table.add_row(*row(kind, figures[kind]))
    console.print(
        f"{REPLICAS} scripted replicas with {SEATS} seats, {CONNECTIONS} connections each, {pairs} pairs of turns with "
        f"{calls} calls",
        table,
        sep="\n",
    )
    return finish(console, verdict(figures))


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(uvloop.run(main(*(*arguments, *(5, 120)[len(arguments) :]))))
