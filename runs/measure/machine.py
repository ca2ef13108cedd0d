"""Checks that this machine is fast enough to judge a bar: the speed of its cores, and whether they are free.

Some bars are absolute times or rates. Missing them on a slower or busy machine says nothing about Headway. A run with
such a bar measures the machine first and, if it is too slow, ends with exit code TOO_SLOW, neither passed nor failed.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

import msgspec
from rich.console import Console

TOO_SLOW = 3
# The machine behind docs/LOG.md does about 440,000. At half of that any gateway would miss the absolute bars.
MIN_EVENTS_PER_CPU_S = 220_000
MIN_CORE_SHARE = 0.8
EVENTS = 150_000  # about half a second of work
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":" token"},"finish_reason":null}],"usage":{"prompt_tokens":12,"completion_tokens":34}}\n\n'
)


@dataclass(frozen=True)
class Machine:
    events_per_cpu_s: float  # stream events decoded and encoded, median of the cores
    core_share: float  # the lowest share of a core that a process gets while all cores are busy


def measure_machine() -> Machine:
    """Do the same work on every core at once."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_work, [1_000] * cores))  # starts the processes
        times = list(pool.map(_work, [EVENTS] * cores))
    rates = sorted(EVENTS / cpu_s for cpu_s, _ in times)
    return Machine(rates[len(rates) // 2], min(cpu_s / wall_s for cpu_s, wall_s in times))


def _work(events: int) -> tuple[float, float]:
    """Returns CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    for number in range(events):
        event = msgspec.json.decode(EVENT[EVENT.index(b"{") :])
        event["created"] = number
        msgspec.json.encode(event)
    return time.process_time() - cpu, time.perf_counter() - wall


def shortfall(machine: Machine, *, fast_cores: bool = False, free_cores: bool = False) -> str | None:
    """What the machine lacks; None if it lacks nothing."""
    if fast_cores and machine.events_per_cpu_s < MIN_EVENTS_PER_CPU_S:
        needs = f"{MIN_EVENTS_PER_CPU_S:,} are needed"
        return f"its cores do {machine.events_per_cpu_s:,.0f} events per CPU-second, {needs}"
    if free_cores and machine.core_share < MIN_CORE_SHARE:
        return f"a busy process gets {machine.core_share:.0%} of a core, {MIN_CORE_SHARE:.0%} is needed: end other work"
    return None


def require(console: Console, *, fast_cores: bool = False, free_cores: bool = False) -> None:
    """Measure the machine, and end the run with TOO_SLOW if it cannot judge.

    `fast_cores` for bars that are absolute times or rates, `free_cores` for those that other work would disturb.
    """
    machine = measure_machine()
    if lacks := shortfall(machine, fast_cores=fast_cores, free_cores=free_cores):
        too_slow(console, lacks)
    console.print(
        f"machine: {machine.events_per_cpu_s:,.0f} events per CPU-second, {machine.core_share:.0%} of a core free",
        highlight=False,
    )


def too_slow(console: Console, why: str) -> NoReturn:
    console.print(f"this machine is too slow to judge: {why}", highlight=False, soft_wrap=True)
    raise SystemExit(TOO_SLOW)
