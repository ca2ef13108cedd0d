"""Compares a curve fitted to three points of a real engine with all its other points. See runs/frontier.sh."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from headway.bench.load import Load
from headway.bench.report import describe_run, frontier_table, write_report
from headway.bench.sweep import Plan, Sweep, sweep, write
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from headway.local.guard import group_members
from runs.measure.machine import require
from runs.measure.verdict import Bar, Verdict, at_most, finish

console = Console(width=130)
SEATS, PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32, 64
BAR, GOAL = 0.05, 0.035
FOLDER = Path("build/frontier")


def give_the_worker_its_core(engine: int) -> None:
    """Pin vLLM's worker to core 0, and its other processes, one of which spins, and this client to core 1.

    Otherwise the kernel may run one of them on the worker's core for seconds, which would distort a point.
    """
    os.sched_setaffinity(0, {1})
    for process in group_members(engine):
        core = 0 if "Worker" in Path(f"/proc/{process}/comm").read_text() else 1
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def measure(repeats: int) -> Sweep:
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    # An engine queues calls beyond its seats, so it gets as many as the sweep needs.
    engine = LocalEngine(
        cpu_vllm(python), model, MODEL_NAME, free_port(), SEATS, on_cpu=True, core=0,
        extra_args=("--max-num-queued-reqs", str(2 * SEATS)),
    )  # fmt: skip

    def show(streams: int, run: Load | None) -> None:
        if run is not None:
            console.print(f"{streams:>3} streams: {describe_run(run)}", highlight=False)

    with EngineProcess(engine) as process:
        with console.status("starting the engine (about a minute)"):
            process.wait_ready(300)
        give_the_worker_its_core(process.pid)
        return uvloop.run(sweep(process.url, MODEL_NAME, Plan(SEATS, PROMPT_TOKENS, OUTPUT_TOKENS, repeats), show))


@dataclass(frozen=True)
class Figures:
    held_out: int  # points that the curve was not fitted to
    mape: float | None  # on these; None if there are none


def verdict(figures: Figures) -> Verdict:
    if figures.mape is None or not figures.held_out:
        return Verdict("no point was held out", (Bar("points held out", "0", ">= 1", holds=False),))
    figure = f"MAPE on the {figures.held_out} points held out: {figures.mape:.1%} (bar {BAR:.0%}, goal {GOAL:.1%})"
    return Verdict(figure, (at_most("MAPE on the points held out", figures.mape, BAR, ".1%"),))


def main(repeats: int) -> int:
    require(console, free_cores=True)
    found = measure(repeats)
    write(found, FOLDER)
    write_report(found, FOLDER)
    console.print(frontier_table(found))
    fit = found.fit()
    through = ", ".join(map(str, fit.through))
    console.print(f"{FOLDER}/report.html shows it; the curve goes through {through} streams")
    return finish(console, verdict(Figures(len(fit.held_out), fit.mape)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
