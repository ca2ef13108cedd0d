"""Runs the cell of the torture for two hours at a steady load and looks for what grows. See runs/soak-cell.sh."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from runs.measure.growth import Trend, quantile_between, trend_of, waited_s
from runs.measure.machine import too_slow
from runs.measure.streams import cpu_seconds
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of
from runs.torture.callers import Callers
from runs.torture.faults import Faults
from runs.torture.judge import Judgement
from runs.torture.left_over import Idle, idle_relays, left_over
from runs.torture.part import judge_part
from runs.torture.plan import KINDS, plan
from runs.torture.soak_cell import DATABASE, PROCESSES, Sample, SoakCell, SteadyCallers, Watched
from runs.torture.soak_picture import write_results

console = Console(width=120)
MINUTES, WARM_UP_MIN, IDLE_S = 120.0, 15.0, 120.0
CALLS_PER_S = 40.0  # takes about 40 % of two cores, with engines and callers: a call takes some 20 ms of a core
SAMPLE_S = 5.0
SEED = 27
WARM_UP_STREAMS, WARM_UP_CALLERS = 400, 32
SETTLED_S = 10.0
CLOSED_S = 80.0  # relays close connections of HAProxy that are idle for 75 s
CONFIDENCE = 0.95
MOST_MIB_PER_HOUR, MOST_LAG_MS = 2.0, 20.0
LEAST_CALLS = 0.95  # of those that the rate asks for
# Above this share of the time without a core, the machine is too busy for the load, and lag says nothing.
MOST_WAITED = 0.1
# None of them ends or stops a process whose memory is looked at.
MILD = {
    kind: KINDS[kind]
    for kind in ("engine killed", "engine slow", "engine drops streams", "engine link closed", "key revoked")
}


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    minutes: float
    faults: int
    calls: int
    of_planned: float  # share of the calls that the rate asks for
    box: float  # share of all cores that cell, engines and callers took
    memory: Mapping[str, Trend]  # of each process, in MiB, without the warm-up
    lag_above_ms: Mapping[str, float]  # p99 under load above p99 when idle
    more: Mapping[
        str, int
    ]  # file descriptors, threads and tasks: the most that a process has more than before the load
    seats_left: int
    held_left: int
    engines_left: int  # requests on them
    badly_ended: int  # processes
    findings: int  # of the judge of the torture


def verdict(figures: Figures) -> Verdict:
    bars = (
        at_least("minutes of load; less is too short to judge", figures.minutes, MINUTES, ".0f"),
        at_least("calls of those that the rate asks for", figures.of_planned, LEAST_CALLS, ".1%"),
        *(
            at_most(f"memory of {name}", trend.slope, MOST_MIB_PER_HOUR, "+.2f", " MiB/h")
            for name, trend in figures.memory.items()
        ),
        *(
            at_most(f"loop lag of {name}, p99 above idle", lag_ms, MOST_LAG_MS, ".1f", " ms")
            for name, lag_ms in figures.lag_above_ms.items()
        ),
        *(
            at_most(f"{what} more than before the load, in any process", count, 0, ".0f")
            for what, count in figures.more.items()
        ),
        none_of("seats taken after the load", figures.seats_left),
        none_of("calls held after the load", figures.held_left),
        none_of("requests on engines after the load", figures.engines_left),
        none_of("processes that ended by themselves, or badly", figures.badly_ended),
        none_of("findings of the torture's judge", figures.findings),
    )
    name, worst = max(figures.memory.items(), key=lambda item: item[1].slope)
    lag_ms = max(figures.lag_above_ms.values())
    short = "" if figures.minutes >= MINUTES else f"TOO SHORT to judge ({MINUTES:g} min are): "
    figure = (
        f"{short}{figures.minutes:g} min of the whole cell on scripted engines at {figures.box:.0%} of the box, "
        f"{figures.calls:,} calls, {figures.faults} faults: memory grows most in {name}, {worst.slope:+.2f} MiB/h "
        f"({CONFIDENCE:.0%} interval {worst.low:+.2f} .. {worst.high:+.2f}; bar {MOST_MIB_PER_HOUR:g}); loop lag p99 "
        f"at most {lag_ms:.1f} ms above idle (bar {MOST_LAG_MS:g}); {figures.findings} findings"
    )
    return Verdict(figure, bars)


# --- the run ---------------------------------------------------------------------------------------------------------


@dataclass
class Soaked:
    """What was seen, before it is judged."""

    before: Sample
    idle: dict[str, Idle]  # the relays, before the load
    after: Sample
    samples: list[Sample]
    lag_ms: dict[str, tuple[float, float]]  # p99 idle, and under load
    cores: dict[str, float]  # that each process took on average
    most_waited: float


class Cores:
    """The CPU time of all processes from now on."""

    def __init__(self, cell: SoakCell) -> None:
        self._pids = cell.pids() | {"engines": [engine.pid for engine in cell.engines.values()]}
        self._began = self._read()
        self._own_s, self._since_s = time.process_time(), time.monotonic()
        self._watched = [pid for name, pids in cell.pids().items() if name != DATABASE for pid in pids]
        self._waited = [waited_s(pid) for pid in self._watched]

    def taken(self) -> tuple[dict[str, float], float]:
        """By whom, and the largest share of the time in which a process waited for a core."""
        took_s = time.monotonic() - self._since_s
        found = {name: (used - self._began[name]) / took_s for name, used in self._read().items()}
        found["callers, links and judge"] = (time.process_time() - self._own_s) / took_s
        waited = [waited_s(pid) - before for pid, before in zip(self._watched, self._waited, strict=True)]
        return found, max(waited) / took_s

    def _read(self) -> dict[str, float]:
        # The workers of PostgreSQL that come and go are not counted.
        return {name: sum(_used_s(pid) for pid in pids) for name, pids in self._pids.items()}


def _used_s(pid: int) -> float:
    try:
        return cpu_seconds(pid)
    except OSError:  # a worker of PostgreSQL, or an engine that a fault has ended
        return 0.0


async def soak(cell: SoakCell, callers: SteadyCallers, doing: Faults, faults: int) -> Soaked:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("starting the cell", total=callers.for_s / 60)
        await cell.start()
        # Whatever is made at the first call, such as threads and connections, is there before the load.
        await Callers(cell.port, SEED, WARM_UP_CALLERS, WARM_UP_STREAMS).run()
        watched = Watched(cell)
        progress.update(bar, description="idle")
        await watched.settled(SETTLED_S)
        first = await watched.lags()
        await asyncio.sleep(IDLE_S)
        idle, before, idle_files = await watched.lags(), await watched.sample(), await idle_relays(cell)
        cores, samples = Cores(cell), list[Sample]()
        watched.load_begins()
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(callers.run())
            group.create_task(doing.run(plan(SEED, int(callers.for_s * callers.calls_per_s * 0.7), faults, MILD)))
            while not loading.done():
                await asyncio.wait([loading], timeout=SAMPLE_S)
                if not loading.done():
                    samples.append(one := await watched.sample())
                    memory = sum(look.memory_mib for look in one.of.values())
                    words = f"{callers.sent:,} calls, {memory:,.0f} MiB, {one.seats} seats, {one.held} held"
                    progress.update(bar, completed=one.minutes, description=words)
        busy = await watched.lags()
        taken, most_waited = cores.taken()
        progress.update(bar, description="waiting until all is idle")
        after = await watched.settled(CLOSED_S)
    lag_ms = {
        name: (1000 * quantile_between(first[name], idle[name], 0.99),
               1000 * quantile_between(idle[name], busy[name], 0.99))
        for name in busy
    }  # fmt: skip
    return Soaked(before, idle_files, after, samples, lag_ms, taken, most_waited)


def trends(samples: Sequence[Sample], warm_up_min: float) -> dict[str, Trend]:
    later = [one for one in samples if one.minutes > warm_up_min]
    hours = [one.minutes / 60 for one in later]
    return {name: trend_of(hours, [one.of[name].memory_mib for one in later], CONFIDENCE) for name in PROCESSES}


def more_after(before: Sample, after: Sample) -> dict[str, int]:
    """PostgreSQL opens its files when it first needs them, and starts workers by itself."""
    names = [name for name in PROCESSES if name != DATABASE]
    return {
        words: max(getattr(after.of[name], what) - getattr(before.of[name], what) for name in names)
        for what, words in (("files", "file descriptors"), ("threads", "threads"), ("tasks", "tasks"))
    }


def show(soaked: Soaked, found: Mapping[str, Trend], ends: Counter[str], judged: Judgement) -> None:
    table = Table(
        "", "MiB before", "under load", "after", f"trend, {CONFIDENCE:.0%} interval", "files", "threads", "tasks",
        "lag p99 ms, idle and load", title="memory, and before -> after",
    )  # fmt: skip
    for name in PROCESSES:
        first, last = soaked.before.of[name], soaked.after.of[name]
        memory = [one.of[name].memory_mib for one in soaked.samples]
        counts = [f"{getattr(first, what)} -> {getattr(last, what)}" for what in ("files", "threads", "tasks")]
        lag = " ".join(f"{ms:.1f}" for ms in soaked.lag_ms.get(name, ()))
        ranged = f"{min(memory):.1f} .. {max(memory):.1f}"
        table.add_row(name, f"{first.memory_mib:.1f}", ranged, f"{last.memory_mib:.1f}", str(found[name]), *counts, lag)
    console.print(table)
    buffers = [sample.of[DATABASE].shared_mib for sample in (soaked.before, soaked.after)]
    console.print(f"PostgreSQL's buffers, not in its memory: {buffers[0]:.1f} -> {buffers[1]:.1f} MiB", highlight=False)
    words = ", ".join(f"{name} {share:.1%}" for name, share in soaked.cores.items())
    console.print(f"of a core: {words}; a process had no core in {soaked.most_waited:.1%} of the time", highlight=False)
    seats = sum(one.seats for one in soaked.samples) / len(soaked.samples)
    console.print(f"seats taken, mean: {seats:.1f}; calls: {dict(ends.most_common())}, seed {SEED}", highlight=False)
    for what, cases in judged.findings.items():
        for case in cases[:10]:
            console.print(f"{what}: {case}", style="red", markup=False, highlight=False, soft_wrap=True)


async def main(minutes: float, calls_per_s: float, faults_per_hour: float) -> int:
    results = Path(tempfile.mkdtemp(prefix="headway-soak-cell-"))
    folder = results / "cell"
    folder.mkdir()
    faults = round(faults_per_hour * minutes / 60)
    console.print(f"{calls_per_s:g} calls/s for {minutes:g} min after {IDLE_S:g} s of idleness, {faults} faults")
    cell = SoakCell(folder)
    try:
        callers = SteadyCallers(
            cell.port, SEED, 0, 0, calls_per_s=calls_per_s, for_s=60 * minutes, file=results / "calls.jsonl"
        )
        doing = Faults(cell, callers)
        soaked = await soak(cell, callers, doing, faults)
        left = await left_over(cell, soaked.idle)
        exits = [member.name for member in cell.members if member.ended_by_itself()]
        exits += [f"{name}: exit code {code}" for name, code in (await cell.stop()).items() if code]
        callers.read_ended()
        judged = await asyncio.to_thread(judge_part, cell, callers, doing)
    finally:
        cell.remove()
    warm_up_min = min(WARM_UP_MIN, minutes / 3)
    found = trends(soaked.samples, warm_up_min)
    figures = Figures(
        minutes=minutes,
        faults=len(doing.done),
        calls=callers.sent,
        of_planned=callers.sent / (60 * minutes * calls_per_s),
        box=sum(soaked.cores.values()) / len(os.sched_getaffinity(0)),
        memory=found,
        lag_above_ms={name: load - idle for name, (idle, load) in soaked.lag_ms.items()},
        more=more_after(soaked.before, soaked.after),
        seats_left=soaked.after.seats,
        held_left=soaked.after.held,
        engines_left=len(left),
        badly_ended=len(exits),
        findings=sum(map(len, judged.findings.values())),
    )
    show(soaked, found, callers.ends, judged)
    for words in (*left, *exits):
        console.print(words, style="red", markup=False, highlight=False)
    write_results(soaked.samples, found, warm_up_min, results)
    console.print(f"samples and picture: {results}", soft_wrap=True)
    if not figures.findings and not exits:
        shutil.rmtree(folder)
        callers.file.unlink()
    found_verdict = verdict(figures)
    code = finish(console, found_verdict)
    if code and minutes >= MINUTES and soaked.most_waited > MOST_WAITED:
        too_slow(
            console, f"a process had no core in {soaked.most_waited:.0%} of the time, {MOST_WAITED:.0%} is allowed"
        )
    return code


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Looks for what grows in the whole cell under a steady load.")
    parser.add_argument("minutes", type=float, nargs="?", default=MINUTES, help="fewer than 120 only try the run")
    parser.add_argument("--calls-per-s", type=float, default=CALLS_PER_S)
    parser.add_argument("--faults", type=float, default=0.0, help="per hour, mild ones; none if not set")
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    sys.exit(uvloop.run(main(asked.minutes, asked.calls_per_s, asked.faults)))
