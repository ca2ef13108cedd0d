"""Gives Headway hostile input: parsers in process, then a gateway between hostile clients and a hostile engine. See
runs/hostile.sh."""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from runs.hostile.clients import Tally
from runs.hostile.live import LiveFigures, in_process, measure
from runs.hostile.parsers import Outcome, run_parsers, show
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish, none_of

console = Console(width=130)
INPUTS, EXAMPLES, REQUESTS, SEED = 10_000_000, 20_000, 300_000, 1
IN_PROCESS = 0.02  # share of the requests that are made in one process, where tasks can be counted
MOST_LAG_MS = 30.0
MOST_GROWN_MB = 50.0


@dataclass(frozen=True)
class Wanted:
    inputs: int
    examples: int  # of hypothesis, for each parser
    requests: int


@dataclass(frozen=True)
class Figures:
    wanted: Wanted
    inputs: int
    fewest_examples: int
    failures: int  # inputs of parsers
    tasks: int
    live: LiveFigures


def verdict(figures: Figures) -> Verdict:
    live, wanted = figures.live, figures.wanted
    problems = sum(live.problems.values())
    bars = (
        at_least("inputs of parsers", figures.inputs, wanted.inputs, ",.0f"),
        at_least("examples of hypothesis, of each parser", figures.fewest_examples, wanted.examples, ",.0f"),
        none_of("inputs for which a parser breaks its rules", figures.failures),
        at_least("requests", live.requests, wanted.requests, ",.0f"),
        none_of("answers that a client should not get", problems),
        none_of("seats taken", live.left.seats),
        none_of("calls held", live.left.held),
        none_of("tasks more than before, in one process", figures.tasks),
        none_of("connections with clients", live.left.client_sockets),
        none_of("connections to engines but the probers'", live.left.engine_sockets),
        none_of("tracebacks in the gateway's log", live.tracebacks),
        Bar("restarts in the middle that succeed", f"{live.restarts}", "2", live.restarts == 2),
        none_of("honest calls missing in the ledger, or wrong", live.missing),
        none_of("entries left in the spool", live.left_in_spool),
        none_of("problems in the ledger", len(live.ledger_problems)),
        at_most("loop lag p99 above an idle gateway's", live.lag_ms, MOST_LAG_MS, ".1f", " ms"),
        at_most("memory grown", live.grown_mb, MOST_GROWN_MB, ".1f", " MB"),
    )
    figure = (
        f"{figures.inputs:,} inputs of parsers, {live.requests:,} requests: {figures.failures:,} inputs break a rule, "
        f"{problems:,} answers are wrong, loop lag p99 {live.lag_ms:+.1f} ms, memory {live.grown_mb:+.1f} MB"
    )
    return Verdict(figure, bars)


def show_live(tally: Tally, figures: LiveFigures) -> None:
    table = Table("what clients saw", "times", title=f"{tally.requests:,} requests: {dict(tally.kinds)}")
    for problem, times in tally.problems.most_common():
        table.add_row(problem, f"{times:,}")
    console.print(table)
    console.print("statuses:", dict(sorted(tally.statuses.items())))
    for problem, example in tally.examples.items():
        console.print(f"{problem}: {example!r}", style="red", markup=False, highlight=False, soft_wrap=True)
    for problem in figures.ledger_problems[:10]:
        console.print(problem, style="red", markup=False, highlight=False)


def figures_of(wanted: Wanted, outcomes: list[Outcome], tasks: int, live: LiveFigures) -> Figures:
    failures = sum(failure.times for outcome in outcomes for failure in outcome.failures.values())
    inputs = sum(outcome.inputs for outcome in outcomes)
    return Figures(wanted, inputs, min(outcome.examples for outcome in outcomes), failures, tasks, live)


async def storms(requests: int, seed: int) -> tuple[int, LiveFigures]:
    """Returns the tasks left in process, and the figures of the gateway in a process of its own."""
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        small = await in_process(Path(folder), max(100, int(IN_PROCESS * requests)), seed)
    console.print(f"in one process: {dict(small.tally.problems)}, {small.calls} calls and {small.tasks} tasks left")
    live, tally = await measure(requests, seed, console)
    show_live(tally, live)
    return small.tasks, live


def main() -> int:
    given = [int(argument) for argument in sys.argv[1:]]
    inputs, examples, requests, seed = (*given, *(INPUTS, EXAMPLES, REQUESTS, SEED)[len(given) :])
    console.print(f"seed {seed}; `runs/hostile.sh {inputs} {examples} {requests} {seed}` makes the same inputs again")
    outcomes = run_parsers(inputs, examples, seed, console)
    show(outcomes, console)
    tasks, live = uvloop.run(storms(requests, seed))
    return finish(console, verdict(figures_of(Wanted(inputs, examples, requests), outcomes, tasks, live)))


if __name__ == "__main__":
    raise SystemExit(main())
