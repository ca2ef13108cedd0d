"""What the prefix index costs core, in time per call and in memory. See runs/prefix-cost.sh."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import deque
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

import headway.core.machine
from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.prefix_index import MAX_HELD
from headway.core.types import (
    Arrived,
    Board,
    Call,
    Finished,
    ModelPolicy,
    Replica,
    ReplicaUp,
    Tier,
    TierPolicy,
    own_pools,
)
from headway.deciding import DISPATCHER_GC_THRESHOLDS
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish
from runs.prefixes.trace import conversations
from runs.simulation.speed import resident_mb

console = Console(width=120)
REPLICAS, SEATS, ABOARD = 1_000, 64, 6_000
CALLS_PER_S = 640.0  # as in runs/prefix.sh, where 32 replicas serve 20
CURVE = Curve(a=0.008, c=0.0003, d=0.0)
TIERS: dict[Tier, TierPolicy] = {
    "fast": TierPolicy(1_000, 5.0, floor_tps=74.0),
    "standard": TierPolicy(10_000, 30.0),
}
FAST_SHARE = 0.1
KV_TOKENS = 1_200_000  # of a replica: enough for a million blocks in all
COPIES = 31  # of Mooncake's conversations at a time, each with its own keys: its trace fits 32 replicas
KEY_MASK = (1 << 63) - 1
SETTLING, CHUNK, PAIRS = 300_000, 5_000, 21
MAX_US = 25.0


@dataclass(frozen=True)
class Figures:
    is_compiled: bool
    us: float  # per call, with keys
    us_without: float
    blocks: int  # held
    mb: float


class Load:
    """Calls that arrive and end, the same number aboard all the time."""

    def __init__(self) -> None:
        self.machine = Machine(*own_pools({"m": ModelPolicy(TIERS)}))
        self.now, self.made = 0.0, 0
        self._chance = random.Random(1)
        self._trace = conversations(1.0)
        self._aboard: deque[str] = deque()
        for number in range(REPLICAS):
            replica = Replica(f"r{number}", "m", SEATS, CURVE, 20_000.0, KV_TOKENS)
            self.machine.step(ReplicaUp(replica), 0.0)

    def calls(self, count: int, *, with_keys: bool) -> list[Call]:
        made = []
        for _ in range(count):
            self.made += 1
            row, copy = divmod(self.made, COPIES)
            of_trace = self._trace[row % len(self._trace)].call
            tier: Tier = "fast" if self._chance.random() < FAST_SHARE else "standard"
            call = Call(f"c{self.made}", "m", tier, falls_back=True, prompt_tokens=of_trace.prompt_tokens)
            if with_keys:
                other = (row // len(self._trace) * COPIES + copy) * 0x9E3779B97F4A7C15 & KEY_MASK
                call.prefix_keys = tuple(key ^ other for key in of_trace.prefix_keys)
                call.prefix_tokens = of_trace.prefix_tokens
            made.append(call)
        return made

    def run(self, calls: list[Call]) -> float:
        """Returns the CPU time of a call in microseconds."""
        before = time.process_time()
        for call in calls:
            self.now += 1 / CALLS_PER_S
            for action in self.machine.step(Arrived(call), self.now):
                if isinstance(action, Board):
                    self._aboard.append(action.call_id)
            if len(self._aboard) > ABOARD:
                self.machine.step(Finished(self._aboard.popleft(), 2_000, 200, None), self.now)
        return (time.process_time() - before) / len(calls) * 1e6


def measure() -> Figures:
    gc.set_threshold(*DISPATCHER_GC_THRESHOLDS)
    load = Load()
    for _ in track(range(ABOARD // CHUNK + 1), "boarding", console=console, transient=True):
        load.run(load.calls(CHUNK, with_keys=False))
    before = resident_mb()
    for _ in track(range(SETTLING // CHUNK), "filling the index", console=console, transient=True):
        load.run(load.calls(CHUNK, with_keys=True))
    index = load.machine.pools["m"].prefixes
    mb, with_keys, without = resident_mb() - before, [], []
    for _ in track(range(PAIRS), "measuring", console=console, transient=True):
        with_keys.append(load.run(load.calls(CHUNK, with_keys=True)))
        without.append(load.run(load.calls(CHUNK, with_keys=False)))
    is_compiled = not headway.core.machine.__file__.endswith(".py")
    return Figures(is_compiled, median(with_keys), median(without), index.count, mb)


def verdict(figures: Figures) -> Verdict:
    bars: list[Bar] = [
        at_least("core is compiled", int(figures.is_compiled), 1, "d"),
        at_most("CPU per call with the index", figures.us, MAX_US, ".1f", " us"),
        at_least("blocks held", figures.blocks, int(0.99 * MAX_HELD), ",d"),
    ]
    figure = (
        f"{figures.us:.1f} us per call with the index, {figures.us_without:.1f} without, at {REPLICAS:,} replicas and "
        f"{figures.blocks:,} blocks, which take {figures.mb:.0f} MB."
    )
    return Verdict(figure, tuple(bars))


def main() -> int:
    figures = measure()
    table = Table("", "us per call")
    table.add_row("with keys, 16 a call", f"{figures.us:.1f}")
    table.add_row("without", f"{figures.us_without:.1f}")
    console.print(table)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
