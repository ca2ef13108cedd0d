"""Faults in a cell whose engines Ray holds on three nodes. See runs/fleet.sh."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.bench.load import quantile
from runs.failover.cell import EXPRESS, LOAD, REPLICAS, SCRIPT, SEATS
from runs.failover.run import words_of
from runs.fleet.episode import FleetOutcome, episode
from runs.ledger.torture_judge import checkpoint_tokens
from runs.measure.kept import commit
from runs.measure.machine import require
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
EPISODE = 50  # faults
MAX_REROUTE_S = 0.5
MIN_FILLED = 0.1  # with less, one stream too many would seldom show
SHOWN = 8


@dataclass(frozen=True)
class FleetFigures:
    wanted: int
    faults: int
    calls: int
    unended: int
    crowds: int
    filled: float
    cut: int
    hanging: int
    stuck: int
    broken: int  # episodes that did not end whole
    rerouted_s: float  # most
    deaths: int
    wrong_books: int
    unbilled: int
    spooled: int
    exits: int
    events: int
    differences: int


def figures_of(outcomes: list[FleetOutcome], wanted: int) -> FleetFigures:
    rerouted = [seconds for one in outcomes for seconds in one.rerouted]
    return FleetFigures(
        wanted=wanted,
        faults=sum(len(one.faults) for one in outcomes),
        calls=sum(one.sent for one in outcomes),
        unended=sum(abs(one.sent - sum(one.ends.values())) for one in outcomes),
        crowds=sum(len(one.crowds) for one in outcomes),
        filled=sum(one.filled for one in outcomes) / max(1, sum(one.streams for one in outcomes)),
        cut=sum(len(one.cut) for one in outcomes),
        hanging=sum(len(one.hanging) for one in outcomes),
        stuck=sum(len(one.stuck) for one in outcomes),
        broken=sum(not one.whole for one in outcomes),
        rerouted_s=max(rerouted, default=float("nan")),
        deaths=len(rerouted),
        wrong_books=sum(len(one.wrong) for one in outcomes),
        unbilled=max(one.unbilled for one in outcomes),
        spooled=sum(one.spooled for one in outcomes),
        exits=sum(len(one.exits) for one in outcomes),
        events=sum(one.events for one in outcomes),
        differences=sum(len(one.differences) for one in outcomes),
    )


def verdict(figures: FleetFigures) -> Verdict:
    bars = (
        at_least("faults", figures.faults, figures.wanted, ",.0f"),
        at_most("last call to a dead engine, after its first failure", figures.rerouted_s, MAX_REROUTE_S, unit=" s"),
        none_of("faults after which too few engines came back", figures.stuck),
        none_of("episodes that did not end with all engines open", figures.broken),
        none_of("streams above a replica's limit, by its own record", figures.crowds),
        at_least("boardings that took a replica's last seat", figures.filled, MIN_FILLED, ".0%"),
        none_of("streams cut though their relay and their engine lived", figures.cut),
        none_of("calls that hang", figures.hanging),
        none_of("calls that did not end once", figures.unended),
        none_of("calls lost, billed wrong or twice", figures.wrong_books),
        at_most("tokens not billed of a killed stream, most", figures.unbilled, max_unbilled(), ",.0f"),
        none_of("entries left in spools", figures.spooled),
        none_of("processes of the cell that ended by themselves or badly", figures.exits),
        at_least("events replayed", figures.events, figures.calls, ",.0f"),
        none_of("records that replay differently", figures.differences),
    )
    figure = (
        f"{figures.faults:,} faults, {figures.calls:,} calls: the last call to one of {figures.deaths:,} dead engines "
        f"{figures.rerouted_s:.2f} s after its first failure (bar {MAX_REROUTE_S:g} s); all engines came back by "
        f"themselves in all but {figures.stuck + figures.broken} cases (bar 0); {figures.crowds} "
        f"streams above a limit, {figures.cut} cut without a reason, {figures.wrong_books} wrong in the books (bars 0)"
    )
    return Verdict(figure, bars)


def max_unbilled() -> int:
    return checkpoint_tokens(SCRIPT.step_time_s(1))


def show(outcomes: list[FleetOutcome]) -> None:
    lasted: dict[str, list[float]] = defaultdict(list)
    back: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        for fault in one.faults:
            lasted[fault.kind].append(fault.until_s - fault.from_s)
        for kind, seconds in one.back:
            back[kind].append(seconds)
    table = Table("fault", "times", "engine serves again after, p50", "p95", "most")
    for kind, times in sorted(lasted.items(), key=lambda one: -len(one[1])):
        quantiles = [f"{quantile(back[kind], q):.1f} s" for q in (0.5, 0.95, 1.0)] if back[kind] else [""] * 3
        table.add_row(kind, str(len(times)), *quantiles)
    console.print(table)
    for what in ("ends", "refusals"):
        counts: Counter[str] = Counter()
        for one in outcomes:
            counts.update(getattr(one, what))
        console.print(f"{what}: " + ", ".join(f"{how} {count:,}" for how, count in counts.most_common()))
    fast, refunded = (sum(getattr(one, what) for one in outcomes) for what in ("fast", "refunded"))
    console.print(f"fast calls served {fast:,}, floors kept {1 - refunded / max(1, fast):.2%}")
    again = [seconds for one in outcomes for seconds in one.boarded_again]
    if again:
        p50, p95, most = (quantile(again, q) for q in (0.5, 0.95, 1.0))
        console.print(
            f"{len(again):,} calls lost their engine before their answer began and boarded another one after "
            f"{1e3 * p50:.1f} ms p50, {1e3 * p95:.1f} ms p95, {1e3 * most:.0f} ms at most"
        )
    for one in outcomes:
        for line in findings(one):
            console.print(f"seed {one.seed}: {line}", style="red", markup=False, highlight=False, soft_wrap=True)


def findings(one: FleetOutcome) -> list[str]:
    lines = [words_of(crowd) for crowd in one.crowds[:SHOWN]]
    for what, calls in (("cut without a reason", one.cut), ("hangs", one.hanging)):
        lines += [
            f"{what}: {call.call_id or 'no id'} {call.tier} of {call.relay or 'no relay'}, sent at {call.sent_s:.2f}, "
            f"ended after {call.ended_s - call.sent_s:.2f} s ({call.how}) {call.words}"
            for call in calls[:SHOWN]
        ]
    late = [f"{seconds:.2f} s" for seconds in one.rerouted if seconds > MAX_REROUTE_S]
    named = {"books": one.wrong, "stuck": one.stuck, "ended": one.exits, "replay": one.differences, "late": late}
    lines += [f"{what}: {words}" for what, found in named.items() for words in found[:SHOWN]]
    if one.unbilled > max_unbilled():
        lines.append(f"books: {one.unbilled} tokens of a killed stream were not billed")
    return lines if one.whole else [*lines, "not all engines were open at the end"]


def run_all(faults: int, seed: int, kept: Path, outcomes: list[FleetOutcome]) -> None:
    shown = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        bar = progress.add_task("", total=faults)
        for number in range(-(-faults // EPISODE)):
            own_seed, count = seed + number, min(EPISODE, faults - number * EPISODE)
            path = kept / f"{commit()}-{own_seed}-{count}.json"
            if path.exists():
                outcomes.append(msgspec.json.decode(path.read_bytes(), type=FleetOutcome))
            else:
                folder = Path(tempfile.mkdtemp(prefix=f"headway-fleet-{own_seed}-"))
                outcomes.append(uvloop.run(episode(own_seed, count, folder, partial(_tell, progress, bar, own_seed))))
                path.write_bytes(msgspec.json.encode(outcomes[-1]))
                if findings(outcomes[-1]):
                    console.print(f"seed {own_seed}: logs and records are in {folder}", soft_wrap=True)
                else:
                    shutil.rmtree(folder)
            progress.update(bar, completed=number * EPISODE + count)
            done = outcomes[-1]
            words = f"{len(done.faults)} faults, {done.sent:,} calls, {len(findings(done))} findings"
            console.print(f"seed {own_seed}: {words}", highlight=False)


def _tell(progress: Progress, bar: TaskID, seed: int, words: str) -> None:
    progress.update(bar, description=f"seed {seed}: {words}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults in a cell whose engines Ray holds.")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help=f"of the first episode of {EPISODE} faults")
    parser.add_argument("--kept", type=Path, default=None, help="folder for the outcomes of finished episodes")
    asked = parser.parse_args()
    require(console, free_cores=True)
    kept: Path = asked.kept or Path(tempfile.mkdtemp(prefix="headway-fleet-kept-"))
    kept.mkdir(parents=True, exist_ok=True)
    console.print(
        f"seeds {asked.seed} to {asked.seed + -(-asked.faults // EPISODE) - 1}, kept in {kept}; {REPLICAS} engines on "
        f"3 nodes, {LOAD.standard_per_s:g} standard and {LOAD.fast_per_s:g} fast calls per second, {SEATS} seats, "
        f"{EXPRESS} with a fast stream",
        soft_wrap=True,
    )
    outcomes: list[FleetOutcome] = []
    run_all(asked.faults, asked.seed, kept, outcomes)
    show(outcomes)
    return finish(console, verdict(figures_of(outcomes, asked.faults)))


if __name__ == "__main__":
    sys.exit(main())
