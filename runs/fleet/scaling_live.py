"""A day in ten minutes on a fleet that Ray holds and that follows demand. See runs/scaling-live.sh."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from headway.core.curve import Curve
from headway.core.scaling import ScalingRules
from headway.core.types import ModelPolicy, Replica, TierPolicy
from headway.errors import ConnectionFailed
from headway.sim.loop import Job
from headway.sim.workload import HOUR_S, OFFICE_HOURS, Lengths
from runs.fleet.ray_nodes import GATEWAY, RayNodes, open_engines
from runs.measure.machine import require
from runs.measure.streams import Stream, call, chat_request, process
from runs.measure.verdict import Verdict, at_least, at_most, finish
from runs.simulation.scaled_day import (
    MAX_RATIO,
    Day,
    Row,
    Scene,
    changes_of,
    day_jobs,
    elastic_day,
    reversals_of,
    service_bars,
    smallest_fixed,
    table_of,
)

console = Console(width=120)
PORT, ENGINE_PORT, ADMIN = 8790, 9100, "hw-admin"
FIRST_TOKEN_S = 0.005
CURVE = Curve(a=0.015, c=0.005, d=0.0)  # 50 tok/s alone, 18 at 8 streams
SCENE = Scene(
    600.0,
    shape=OFFICE_HOURS,
    calls={"fast": 8.0, "standard": 54.0, "flex": 2.0},
    prompts=Lengths(10, 0.0, 10),
    answers=Lengths(30, 0.5, 120, least=20),
    kind=Replica("", "m", 8, CURVE, prompt_tps=20_000.0),
    policy=ModelPolicy(
        {
            "fast": TierPolicy(10_000, 5.0, floor_tps=25.5),  # allows 4 streams
            "standard": TierPolicy(10_000, 30.0),
            "flex": TierPolicy(10_000, 300.0),
        }
    ),
    rules=ScalingRules(min_replicas=2, max_replicas=40, start_s=6.0),
    first=12,
    max_wait_s=1.0,  # an answer takes about 1.5 s
)
STREAMS = (1, 4, 8)  # of which the engine and the configuration know the speed


@dataclass(frozen=True)
class LiveFigures:
    live: Row
    simulated: Row
    smallest: Row  # fixed fleet that serves, simulated
    seen: int  # calls whose answer was seen to its end, or that were refused
    sent: int


def verdict(figures: LiveFigures) -> Verdict:
    live = figures.live
    ratio = live.replica_h / figures.smallest.replica_h
    bars = (
        at_least("calls answered or refused", figures.seen, figures.sent, ",d"),
        at_most("replica-hours ÷ the smallest fixed fleet", ratio, MAX_RATIO, ".3f"),
        *service_bars(SCENE, "live", live),
    )
    simulated = figures.simulated.replica_h / figures.smallest.replica_h
    figure = (
        f"replica-hours ÷ the smallest fixed fleet that serves as well: {ratio:.3f} live, {simulated:.3f} simulated "
        f"(bar {MAX_RATIO}); floors kept {live.kept:.2%}; refused {live.refused:.3%}; {live.changes} changes in ten "
        f"minutes ({live.changes * HOUR_S / SCENE.seconds:.0f} per hour), {live.reversals} let go too early"
    )
    return Verdict(figure, bars)


def write_config(folder: Path) -> Path:
    (folder / "admin.key").write_text(ADMIN)
    key, admin = (hashlib.sha256(one.encode()).hexdigest() for one in ("none", ADMIN))
    curve = [[streams, round(CURVE.speed_tps(streams), 2)] for streams in STREAMS]
    tiers = "".join(
        f'[[models.tiers]]\nname = "{name}"\nmax_held = {tier.max_held}\nmax_hold_s = {tier.max_hold_s}\n'
        + (f"floor_tps = {tier.floor_tps}\n" if tier.floor_tps else "")
        for name, tier in SCENE.policy.tiers.items()
    )
    path = folder / "headway.toml"
    path.write_text(
        f'[gateway]\nhost = "{GATEWAY}"\nport = {PORT}\nkey_hashes = ["{key}"]\nadmin_key_hashes = ["{admin}"]\n'
        f'[[models]]\nname = "m"\n{tiers}'
        f"[models.discover]\nregistered = true\nseats = {SCENE.kind.seats}\ncurve = {curve}\n"
    )
    return path


def write_fleet(folder: Path) -> Path:
    steps = ",".join(f"{streams}:{1000 / CURVE.speed_tps(streams):g}" for streams in STREAMS)
    engine = [sys.executable, "-m", "headway", "mock-engine", "--host", "{host}", "--port", "{port}", "--model", "m"]
    engine += ["--first-token-ms", f"{1000 * FIRST_TOKEN_S:g}", "--step-ms", steps]
    engine += ["--max-num-seqs", str(4 * SCENE.kind.seats)]
    rules, path = SCENE.rules, folder / "fleet.toml"
    path.write_text(
        f'[gateway]\nurl = "http://{GATEWAY}:{PORT}"\nadmin_key_file = "{folder}/admin.key"\n'
        f'[[processes]]\nname = "engine"\nmodel = "m"\ncommand = {json.dumps(engine)}\ncount = {SCENE.first}\n'
        f"port = {ENGINE_PORT}\n[processes.scaling]\nmin_count = {rules.min_replicas}\n"
        f"max_count = {rules.max_replicas}\nopens_after_s = {rules.start_s}\n"
    )
    return path


class LiveDay:
    def __init__(self, nodes: RayNodes) -> None:
        self.day = Day(SCENE.floor_tps)
        self.sent = 0
        self._nodes = nodes
        self._held: list[tuple[float, int]] = []  # actors that hold an engine or are about to start one, with the time
        self._calls: set[asyncio.Task[None]] = set()

    async def play(self, seed: int) -> Row:
        began = time.monotonic()
        watching = asyncio.create_task(self._watch(began))
        with Progress(console=console) as progress:
            bar = progress.add_task("calling", total=SCENE.seconds)
            for job in day_jobs(SCENE, seed):
                if job.at >= SCENE.seconds:
                    break
                await asyncio.sleep(began + job.at - time.monotonic())
                progress.update(bar, completed=job.at, description=f"{self.sent:,} calls, {self._held[-1][1]} engines")
                self.sent += 1
                task = asyncio.create_task(self._call(job))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
        await watching
        await asyncio.gather(*self._calls)
        day = self.day
        day.most = max(count for _, count in self._held)
        day.changes, day.reversals = changes_of(self._held), reversals_of(self._held, SCENE.rules.start_s)
        return day.row

    async def _watch(self, began: float) -> None:
        """Count what is paid for, until the day ends."""
        before = 0.0
        while before < SCENE.seconds:
            count = await asyncio.to_thread(self._count)
            now = min(SCENE.seconds, time.monotonic() - began)
            self._held.append((now, count))
            self.day.replica_h += count * (now - before) / HOUR_S
            before = now
            await asyncio.sleep(0.5)

    def _count(self) -> int:
        return sum(len(node.pids("ray::ProcessHolder")) for node in self._nodes.nodes)

    async def _call(self, job: Job) -> None:
        tier = job.call.tier
        asked = chat_request("m", job.tokens, service_tier="default" if tier == "standard" else tier)
        sent_at = time.perf_counter()
        try:
            stream = await call(f"http://{GATEWAY}:{PORT}", asked)
        except (ConnectionFailed, TimeoutError):
            stream = Stream()
        if stream.status in (429, 503) or (stream.complete and stream.proof.get("tier_served") != tier):
            self.day.note_refusal()
        elif stream.complete and stream.tokens == job.tokens:
            is_kept = stream.proof.get("kept")
            assert is_kept is None or isinstance(is_kept, bool)
            self.day.note(tier, max(0.0, stream.first_at - sent_at - FIRST_TOKEN_S), is_kept)


def main(seed: int) -> int:
    require(console, free_cores=True)
    simulated = elastic_day(SCENE, seed).row
    smallest = smallest_fixed(SCENE, seed, simulated)
    console.print(f"simulated: {simulated.replica_h:.2f} replica-hours; the smallest fixed fleet has {smallest.most}")
    folder = Path(tempfile.mkdtemp(prefix="headway-scaling-"))
    serve = [sys.executable, "-m", "headway", "serve", "--config", str(write_config(folder))]
    with (
        RayNodes(folder, count=1, cpus=SCENE.rules.max_replicas + 2) as nodes,
        process(serve, f"http://{GATEWAY}:{PORT}/health"),
    ):
        nodes.fleet_up(write_fleet(folder))
        nodes.until(lambda: open_engines(PORT, ADMIN) == SCENE.first, "the engines do not open")
        live = LiveDay(nodes)
        row = uvloop.run(live.play(seed))
    console.print(
        table_of(
            {"scales, live": row, "scales, simulated": simulated, "smallest fixed, simulated": smallest},
            SCENE.seconds / HOUR_S,
        )
    )
    return finish(console, verdict(LiveFigures(row, simulated, smallest, live.day.calls, live.sent)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
