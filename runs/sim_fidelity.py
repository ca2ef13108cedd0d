"""The same arrivals through the live gateway and through the simulator. See runs/sim-fidelity.sh."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table
from streams import Stream, call, chat_request, gateway, scripted

from headway.config import load
from headway.core.types import Tier
from headway.fleet.local import free_port
from headway.run import policy_of, replica_of
from headway.sim.cell import Cell
from headway.sim.loop import Job, Simulation, Trip
from headway.sim.workload import Lengths, Recipe, synthesize

console = Console(width=120)
MODEL, REPLICAS, SEATS, SEED = "m", 4, 16, 3
FIRST_TOKEN_S = 0.020
STEP_MS = "1:11.5,16:34"  # 10 ms and 1.5 for each stream
CURVE = f"curve = [[1, {1 / 0.0115:.4f}], [8, {1 / 0.022:.4f}], [16, {1 / 0.034:.4f}]]"
TIERS = """\
[[models.tiers]]
name = "standard"
max_hold_s = 30.0
[[models.tiers]]
name = "fast"
floor_tps = 45.0
max_hold_s = 3.0
"""
FLOOR_TPS = 45.0
RECIPE = Recipe(
    9.0,
    clients=20,
    burst_spread=0.5,
    answers=Lengths(100, 0.7, 400, least=20),
    tiers={"standard": 0.75, "fast": 0.25},
)
MOST_THROUGHPUT, MOST_P50, MOST_P99 = 0.02, 0.03, 0.06


def jobs_for(seconds: float) -> list[Job]:
    """Calls of one tenant, since the live gateway of this run has no keys."""
    made = takewhile(lambda job: job.at < seconds, synthesize(RECIPE, SEED, MODEL))
    return [Job(job.at, replace(job.call, tenant="", prompt_tokens=0), job.tokens) for job in made]


async def live(url: str, jobs: list[Job]) -> list[tuple[Job, Stream, float]]:
    """Each with the time from when it was due to its last token."""
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.5

    async def one(job: Job) -> tuple[Job, Stream, float]:
        await asyncio.sleep(start + job.at - loop.time())
        tier = "fast" if job.call.tier == "fast" else "default"
        request = chat_request(MODEL, job.tokens, service_tier=tier, prompt_cache_key=job.call.affinity)
        due = loop.time()
        stream = await call(url, request)
        return job, stream, stream.last_at - stream.sent_at + max(0.0, due - start - job.at)

    return await asyncio.gather(*[one(job) for job in jobs])


def simulated(config: Path, jobs: list[Job]) -> list[Trip]:
    table = load(config).models[0]
    fleet = [replica_of(table, replica, name=replica.url) for replica in table.replicas]
    simulation = Simulation(Cell({MODEL: policy_of(table)}), fleet, FIRST_TOKEN_S)
    return list(simulation.run(iter(jobs), 1e9))


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 180.0
    folder = Path(tempfile.mkdtemp(prefix="headway-fidelity-"))
    ports, port = [free_port() for _ in range(REPLICAS)], free_port()
    jobs = jobs_for(seconds)
    with ExitStack() as stack:
        for one in ports:
            engine = scripted(one, model=MODEL, first_token_ms=FIRST_TOKEN_S * 1e3, step_ms=STEP_MS, seats=SEATS)
            stack.enter_context(engine)
        urls = [f"http://127.0.0.1:{one}" for one in ports]
        stack.enter_context(gateway(port, folder, model=MODEL, engine_urls=urls, seats=SEATS, tiers=TIERS, curve=CURVE))
        seen = uvloop.run(live(f"http://127.0.0.1:{port}", jobs))
    trips = simulated(folder / f"gateway-{port}.toml", jobs)
    table = Table("what", "live", "simulated", "off by", "bar")
    holds = []

    def compare(what: str, ours: float, theirs: float, bar: float | None, form: str = ".3f") -> None:
        off = theirs / ours - 1 if ours else 0.0
        holds.append(bar is None or abs(off) <= bar)
        table.add_row(
            what, f"{ours:{form}}", f"{theirs:{form}}", f"{off:+.1%}", f"{bar:.0%}" if bar is not None else ""
        )

    complete = [(job, stream, e2e) for job, stream, e2e in seen if stream.complete]
    finished = [trip for trip in trips if trip.how == "finished"]
    lasts = max(job.at + e2e for job, _, e2e in complete), max(trip.ended_at or 0.0 for trip in finished)
    tokens = sum(job.tokens for job, _, _ in complete), sum(trip.job.tokens for trip in finished)
    compare("throughput, tok/s", tokens[0] / lasts[0], tokens[1] / lasts[1], MOST_THROUGHPUT, ",.0f")
    compare("calls served", float(len(complete)), float(len(finished)), None, ",.0f")
    tiers: tuple[Tier | None, ...] = (None, "standard", "fast")
    for tier in tiers:
        ours = [e2e for job, _, e2e in complete if tier in (None, job.call.tier)]
        theirs = [(trip.ended_at or 0.0) - trip.job.at for trip in finished if tier in (None, trip.job.call.tier)]
        for share, bar in ((0.5, MOST_P50), (0.99, MOST_P99)):
            name = f"end to end p{share * 100:.0f}, {tier or 'all'}, s"
            compare(name, quantile(ours, share), quantile(theirs, share), None if tier else bar)
    kept = [stream.proof.get("kept") for job, stream, _ in complete if stream.proof.get("tier_served") == "fast"]
    promised = [trip.speed_tps >= FLOOR_TPS for trip in finished if trip.tier == "fast"]
    shares = sum(one is True for one in kept) / max(1, len(kept)), sum(promised) / max(1, len(promised))
    compare("floors kept", *shares, None, ".2%")
    console.print(table)
    points = 100 * abs(shares[0] - shares[1])
    console.print(
        f"{len(jobs)} calls in {seconds:g} s on {REPLICAS} scripted replicas; floors kept differ by {points:.1f} points"
    )
    return 0 if all(holds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
