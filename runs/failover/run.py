"""Kills, stops and cuts off the processes of a cell, hundreds of times, under load. See runs/failover.sh.

The faults are dealt out over episodes, each with a seed, a cell and a verdict of its own. The outcome of an episode is
kept in `--kept`, so that a run that was interrupted goes on with the next seed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.bench.load import quantile
from headway.charts import BLUE, ORANGE, write_picture
from runs.failover.cell import EXPRESS, LOAD, SCRIPT, SEATS
from runs.failover.episode import DIED, Outcome, episode
from runs.failover.judge import STOPS, Crowd
from runs.ledger.torture_judge import checkpoint_tokens
from runs.measure.kept import commit
from runs.measure.machine import require
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
EPISODE = 50  # faults
ETCD_EVERY, ETCD_AT = 10, 9  # of ten episodes the last has its lease in etcd
# The first, the third and so on have an outage of the database. They are judged together: of the 500 calls of one, the
# 5 that wait longest may all have come in one pause of the machine.
AWAY_EVERY = 2  # episodes
MAX_RESUME_S, MAX_WAIT_RATIO, STOPS_PER_CROWD = 2.0, 2.0, 100
MIN_FILLED = 0.1  # with less, one stream too many would seldom show
SHOWN = 10


@dataclass(frozen=True)
class Figures:
    wanted: int  # faults
    faults: int
    calls: int
    relay_stops: int
    crowds: int  # streams that joined others above a limit, not explained by a stop of their relay
    explained: int  # those that are
    cut: int
    filled: float = 0.0  # share of boardings that took the last seat of a replica
    resumed_s: list[float] = field(default_factory=list)  # after a leader's death, with the lease in PostgreSQL
    resumed_etcd_s: list[float] = field(default_factory=list)
    away_ratio: float = float("nan")  # p99 of boarding while the database was away ÷ before
    stuck: int = 0  # faults after which boarding did not go on
    hanging: int = 0
    unaccounted: int = 0  # calls that did not end once
    wrong_books: int = 0
    unbilled: int = 0  # tokens, the most of a killed stream
    spooled: int = 0  # entries that never left a spool
    exits: int = 0
    events: int = 0  # replayed
    differences: int = 0


def figures_of(outcomes: list[Outcome], wanted: int) -> Figures:
    above = [crowd for one in outcomes for crowd in one.crowds]
    resumed: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        resumed[one.lease] += [seconds for kind, seconds in one.resumed if kind == DIED]
    return Figures(
        wanted=wanted,
        faults=sum(len(one.faults) for one in outcomes),
        calls=sum(one.sent for one in outcomes),
        relay_stops=sum(fault.kind in STOPS for one in outcomes for fault in one.faults),
        crowds=sum(not crowd.is_explained for crowd in above),
        explained=sum(crowd.is_explained for crowd in above),
        cut=sum(len(one.cut) for one in outcomes),
        filled=sum(one.filled for one in outcomes) / sum(one.streams for one in outcomes),
        resumed_s=resumed["PostgreSQL"],
        resumed_etcd_s=resumed["etcd"],
        away_ratio=away_ratio([pair for one in outcomes for pair in one.away]),
        stuck=sum(len(one.stuck) for one in outcomes),
        hanging=sum(len(one.hanging) for one in outcomes),
        unaccounted=sum(abs(one.sent - one.ends["all"]) + len(one.served_twice) for one in outcomes),
        wrong_books=sum(
            len(one.lost) + len(one.over_billed) + len(one.not_exact) + len(one.problems) for one in outcomes
        ),
        unbilled=max(one.unbilled for one in outcomes),
        spooled=sum(one.spooled for one in outcomes),
        exits=sum(len(one.exits) for one in outcomes),
        events=sum(one.events for one in outcomes),
        differences=sum(len(one.differences) for one in outcomes),
    )


def away_ratio(outages: Sequence[tuple[list[float], list[float]]]) -> float:
    """The p99 of the waits of all outages together, beside that of all the times before them."""
    before_s, within_s = ([wait for pair in outages for wait in pair[at]] for at in (0, 1))
    return quantile(within_s, 0.99) / quantile(before_s, 0.99) if before_s and within_s else float("nan")


def verdict(figures: Figures) -> Verdict:
    p95_s = quantile(figures.resumed_s, 0.95) if figures.resumed_s else float("nan")
    ratio = figures.away_ratio
    bars = (
        at_least("faults", figures.faults, figures.wanted, ",.0f"),
        none_of("streams above a replica's limit, by its own record", figures.crowds),
        at_most("of these, explained by a stop between check and write", figures.explained,
                figures.relay_stops / STOPS_PER_CROWD, ".0f"),
        at_least("boardings that took a replica's last seat", figures.filled, MIN_FILLED, ".0%"),
        none_of("streams cut though their relay lived", figures.cut),
        at_most("from a leader's death to the next boarding, p95", p95_s, MAX_RESUME_S, unit=" s"),
        at_most("boarding p99 without the database ÷ before", ratio, MAX_WAIT_RATIO),
        none_of("faults after which boarding did not go on", figures.stuck),
        none_of("calls that hang", figures.hanging),
        none_of("calls that did not end once", figures.unaccounted),
        none_of("calls lost, billed wrong or twice", figures.wrong_books),
        at_most("tokens not billed of a killed stream, most", figures.unbilled, max_unbilled(), ",.0f"),
        none_of("entries left in spools", figures.spooled),
        none_of("processes that ended by themselves or badly", figures.exits),
        at_least("events replayed", figures.events, figures.calls, ",.0f"),
        none_of("records that replay differently", figures.differences),
    )  # fmt: skip
    etcd = f", with etcd {quantile(figures.resumed_etcd_s, 0.95):.2f} s" if figures.resumed_etcd_s else ""
    figure = (
        f"{figures.faults:,} faults, {figures.calls:,} calls: {figures.crowds} streams above a limit (bar 0) and "
        f"{figures.explained} in {figures.relay_stops} stops of a relay explained by a pause; {figures.cut} streams "
        f"cut (bar 0); boarding resumes {p95_s:.2f} s p95 after a leader's death (bar {MAX_RESUME_S:g} s){etcd}; "
        f"without PostgreSQL its p99 is {ratio:.2f} times that before (bar {MAX_WAIT_RATIO:g}); {figures.hanging} "
        f"calls hang, {figures.wrong_books} are wrong in the books (bars 0)"
    )
    return Verdict(figure, bars)


def max_unbilled() -> int:
    return checkpoint_tokens(SCRIPT.step_time_s(1))


def show(outcomes: list[Outcome]) -> None:
    kinds = Counter(fault.kind for one in outcomes for fault in one.faults)
    lasted: dict[str, list[float]] = defaultdict(list)
    resumed: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        for fault in one.faults:
            lasted[fault.kind].append(fault.until_s - fault.from_s)
        for kind, seconds in one.resumed:
            resumed[kind].append(seconds)
    table = Table("fault", "times", "whole again after, p50", "boarding resumes, p50", "p95", "most")
    for kind, times in kinds.most_common():
        quantiles = [f"{quantile(resumed[kind], q):.2f} s" for q in (0.5, 0.95, 1.0)] if resumed[kind] else [""] * 3
        table.add_row(kind, str(times), f"{quantile(lasted[kind], 0.5):.1f} s", *quantiles)
    console.print(table)
    ends: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for one in outcomes:
        ends.update({how: count for how, count in one.ends.items() if how != "all"})
        refusals.update(one.refusals)
    console.print("calls: " + ", ".join(f"{how} {count:,}" for how, count in ends.most_common()), highlight=False)
    console.print("refused: " + (", ".join(f"{why} {n:,}" for why, n in refusals.most_common()) or "none"))
    for one in outcomes:
        for before, within in one.away:
            p99_ms, away_ms = (f"{1e3 * quantile(waits, 0.99):.1f} ms of {len(waits)}" for waits in (before, within))
            console.print(f"seed {one.seed}: boarding p99 {p99_ms} calls, without the database {away_ms}")
        for line in findings(one):
            console.print(f"seed {one.seed}: {line}", style="red", markup=False, highlight=False, soft_wrap=True)


def findings(one: Outcome) -> list[str]:
    """What went wrong, in words."""
    lines = [words_of(crowd) for crowd in one.crowds[:SHOWN]]
    for what, calls in (("cut though its relay lived", one.cut), ("hangs", one.hanging)):
        lines += [
            f"{what}: {call.call_id or 'no id'} {call.tier} of {call.relay or 'no relay'}, sent at {call.sent_s:.2f}, "
            f"ended after {call.ended_s - call.sent_s:.2f} s ({call.how}) {call.words}"
            for call in calls[:SHOWN]
        ]
    named = {"lost": one.lost, "over-billed": one.over_billed, "not exact": one.not_exact, "books": one.problems}
    named |= {"served twice": one.served_twice, "boarding did not go on": one.stuck, "ended": one.exits}
    named |= {"replay": one.differences}
    lines += [f"{what}: {words}" for what, found in named.items() for words in found[:SHOWN]]
    return lines


def words_of(crowd: Crowd) -> str:
    cause = crowd.why if crowd.is_explained else f"not explained; {crowd.why or 'no fault near'}"
    return (
        f"{crowd.streams} streams where {crowd.limit} are allowed, for {crowd.lasted_s:.2f} s at {crowd.at_s:.2f}, by "
        f"{crowd.call_id} of {crowd.relay or 'unknown'}: {cause}"
    )


def draw(outcomes: list[Outcome], out: Path) -> None:
    points = [{"after": after, "wait": wait} for one in outcomes for after, wait in one.around]
    axis = {"labelFontSize": 12, "titleFontSize": 13}
    write_picture(
        {
            "width": 760,
            "height": 320,
            "data": {"values": points},
            "layer": [
                {
                    "mark": {"type": "point", "size": 8, "filled": True, "opacity": 0.3, "color": BLUE},
                    "encoding": {
                        "x": {"field": "after", "type": "quantitative", "axis": axis,
                              "title": "call sent, seconds after the leader was killed"},
                        "y": {"field": "wait", "type": "quantitative", "axis": axis,
                              "title": "seconds until it boarded"},
                    },
                },
                {"mark": {"type": "rule", "color": ORANGE}, "encoding": {"x": {"datum": 0}}},
            ],
        },
        {"text": "How long calls wait when their leader dies"},
        out,
        "failover",
    )  # fmt: skip


def run_all(faults: int, seed: int, kept: Path, lease: str, outcomes: list[Outcome]) -> None:
    episodes = -(-faults // EPISODE)
    shown = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        bar = progress.add_task("", total=faults)
        for number in range(episodes):
            own_seed, count = seed + number, min(EPISODE, faults - number * EPISODE)
            with_etcd = lease == "etcd" or (lease == "both" and number % ETCD_EVERY == ETCD_AT)
            with_outage = number % AWAY_EVERY == 0 and not with_etcd and count > 1
            path = kept / f"{commit()}-{own_seed}-{count}-{'etcd' if with_etcd else 'postgres'}.json"
            if path.exists():
                outcomes.append(msgspec.json.decode(path.read_bytes(), type=Outcome))
            else:
                folder = Path(tempfile.mkdtemp(prefix=f"headway-failover-{own_seed}-"))
                tell = partial(_tell, progress, bar, own_seed)
                outcome = uvloop.run(
                    episode(own_seed, count, folder, with_etcd=with_etcd, with_outage=with_outage, tell=tell)
                )
                outcomes.append(outcome)
                path.write_bytes(msgspec.json.encode(outcome))
                if findings(outcome):
                    console.print(f"seed {own_seed}: logs and records are in {folder}", soft_wrap=True)
                else:
                    shutil.rmtree(folder)
            progress.update(bar, completed=number * EPISODE + count)
            done = outcomes[-1]
            words = f"{len(done.faults)} faults, {done.sent:,} calls, {len(findings(done))} findings, {done.lease}"
            console.print(f"seed {own_seed}: {words}", highlight=False)


def _tell(progress: Progress, bar: TaskID, seed: int, words: str) -> None:
    progress.update(bar, description=f"seed {seed}: {words}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults in a cell of several processes.")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help=f"of the first episode of {EPISODE} faults")
    parser.add_argument("--lease", choices=("both", "postgres", "etcd"), default="both")
    parser.add_argument("--kept", type=Path, default=None, help="folder for the outcomes of finished episodes")
    parser.add_argument("--picture", type=Path, default=None, help="folder to draw failover.svg in")
    asked = parser.parse_args()
    require(console, free_cores=True)
    kept: Path = asked.kept or Path(tempfile.mkdtemp(prefix="headway-failover-kept-"))
    kept.mkdir(parents=True, exist_ok=True)
    console.print(
        f"seeds {asked.seed} to {asked.seed + -(-asked.faults // EPISODE) - 1}, kept in {kept}; "
        f"{LOAD.standard_per_s:g} standard and {LOAD.fast_per_s:g} fast calls per second, "
        f"{SEATS} seats, {EXPRESS} with a fast stream",
        soft_wrap=True,
    )
    outcomes: list[Outcome] = []
    run_all(asked.faults, asked.seed, kept, asked.lease, outcomes)
    show(outcomes)
    if asked.picture is not None:
        draw(outcomes, asked.picture)
    return finish(console, verdict(figures_of(outcomes, asked.faults)))


if __name__ == "__main__":
    sys.exit(main())
