"""Everything together, broken on purpose, in parts that each have a seed. See runs/torture.sh.

Every finished part is a line in the ledger of parts, which is part of the repository, and the sums of the ledger count.
A part that has findings is counted with them: it stays in the ledger until what it found is mended and its seed is
played again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish, none_of
from runs.torture.part import Outcome, play
from runs.torture.plan import Fault, plan
from runs.torture.shrink import shrink

console = Console(width=120)
LEDGER = Path(__file__).parent / "parts.jsonl"
STREAMS, FAULTS = 40_000, 440  # of one part
WANTED_STREAMS, WANTED_FAULTS, WANTED_KINDS, MOST_OF_A_KIND = 1_000_000, 10_000, 20, 0.2
STOPS_PER_CROWD = 100  # as in failover
STOPS = ("relay stopped", "engine stopped")
SHOWN = 10
CROWDS = "streams above a limit"  # by the witnesses of the engines


class Part(msgspec.Struct, omit_defaults=True):
    """One line of the ledger."""

    seed: int
    commit: str
    date: str
    seconds: int
    calls: int
    streams: int
    in_books: int
    with_floor: int
    missed: int
    refunded: int
    filled: int
    faults: dict[str, int]
    ends: dict[str, int]
    findings: dict[str, int] = {}
    explained: dict[str, int] = {}


def part_of(outcome: Outcome) -> Part:
    return Part(
        seed=outcome.seed,
        commit=outcome.commit,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        seconds=round(outcome.seconds),
        calls=outcome.sent,
        streams=outcome.streams,
        in_books=outcome.in_books,
        with_floor=outcome.with_floor,
        missed=outcome.missed,
        refunded=outcome.refunded,
        filled=outcome.filled,
        faults=outcome.faults,
        ends=outcome.ends,
        findings={what: len(cases) for what, cases in outcome.findings.items()},
        explained={what: len(cases) for what, cases in outcome.explained.items()},
    )


@dataclass(frozen=True)
class Figures:
    """The sums of the ledger."""

    parts: int = 0
    calls: int = 0
    streams: int = 0
    in_books: int = 0
    with_floor: int = 0
    refunded: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)


def figures_of(parts: Sequence[Part]) -> Figures:
    return Figures(
        parts=len(parts),
        calls=sum(part.calls for part in parts),
        streams=sum(part.streams for part in parts),
        in_books=sum(part.in_books for part in parts),
        with_floor=sum(part.with_floor for part in parts),
        refunded=sum(part.refunded for part in parts),
        faults=sum((Counter(part.faults) for part in parts), Counter()),
        findings=sum((Counter(part.findings) for part in parts), Counter()),
        explained=sum((Counter(part.explained) for part in parts), Counter()),
    )


# What one part may not have at all: in words, the findings that are meant.
GROUPS = {
    "calls lost": ("lost", "answered by no engine", "never closed", "left in a spool"),
    "calls doubled": ("doubled",),
    "calls over-billed": (
        "over-billed",
        "wrong amount",
        "budget exceeded",
        "billed to another key",
        "told another bill",
    ),
    "otherwise wrong in the books": (
        "complete, and not exact",
        "too little billed of a killed stream",
        "wrong refund",
        "reservation not released",
        "proof and refund differ",
    ),
    "missed floors not refunded": ("missed, not refunded",),
    "streams above a limit": (CROWDS,),
    "calls that did not end once, or too late": ("too late", "did not end once"),
    "streams cut though their relay lived": ("cut", "no answer"),
}


def sums_of(findings: Counter[str]) -> dict[str, int]:
    """The findings of each group, and what is in none."""
    sums = {what: sum(findings[name] for name in names) for what, names in GROUPS.items()}
    return {**sums, "left over, or otherwise wrong": sum(findings.values()) - sum(sums.values())}


def explained_crowds(figures: Figures, stops: int) -> Bar:
    what = "streams above a limit, explained by a process that stood"
    return at_most(what, figures.explained[CROWDS], stops / STOPS_PER_CROWD, ".0f")


def found_words(sums: Mapping[str, int]) -> str:
    return (
        f"{sums['calls lost']} lost, {sums['calls doubled']} doubled, {sums['calls over-billed']} over-billed, "
        f"{sums['missed floors not refunded']} missed floors not refunded, {sums['streams above a limit']} streams "
        f"above a limit, {sums['calls that did not end once, or too late']} calls late"
    )


def verdict(figures: Figures) -> Verdict:
    faults, sums = sum(figures.faults.values()), sums_of(figures.findings)
    largest = max(figures.faults.values(), default=0) / faults if faults else 1.0
    bars = (
        at_least("streams", figures.streams, WANTED_STREAMS, ",.0f"),
        at_least("faults", faults, WANTED_FAULTS, ",.0f"),
        at_least("kinds of faults", len(figures.faults), WANTED_KINDS, ".0f"),
        at_most("share of the most frequent kind", largest, MOST_OF_A_KIND, ".1%"),
        at_least("calls in the books", figures.in_books, figures.streams, ",.0f"),
        *(none_of(what, count) for what, count in sums.items()),
        explained_crowds(figures, sum(figures.faults[kind] for kind in STOPS)),
    )
    figure = (
        f"{figures.streams:,} streams, {faults:,} faults of {len(figures.faults)} kinds in {figures.parts} parts on "
        f"scripted engines: {found_words(sums)}"
    )
    return Verdict(figure, bars)


def read_ledger(path: Path) -> list[Part]:
    """The last line of each seed counts."""
    if not path.exists():
        return []
    parts = [msgspec.json.decode(line, type=Part) for line in path.read_bytes().splitlines()]
    return list({part.seed: part for part in parts}.values())


def keep(outcome: Outcome, path: Path) -> None:
    """Add a finished part to the ledger, and say what it showed."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(part_of(outcome)) + b"\n")
    count = sum(map(len, outcome.findings.values()))
    words = f"{outcome.streams:,} streams, {sum(outcome.faults.values())} faults, {outcome.seconds:.0f} s"
    console.print(f"seed {outcome.seed}: {words}, {count} findings", highlight=False)


def next_seeds(asked: int | None, path: Path) -> Sequence[int]:
    """The one that is asked for, or those after the last one that was played."""
    first = max((part.seed for part in read_ledger(path)), default=0) + 1
    return range(first, first + 1_000) if asked is None else [asked]


def show(parts: Sequence[Part]) -> None:
    figures = figures_of(parts)
    table = Table("fault", "times", title=f"{figures.parts} parts, {figures.calls:,} calls")
    for kind, times in figures.faults.most_common():
        table.add_row(kind, f"{times:,}")
    console.print(table)
    for part in parts:
        if part.findings:
            found = ", ".join(f"{what} {count}" for what, count in part.findings.items())
            console.print(f"seed {part.seed} at {part.commit}: {found}", style="red", highlight=False)
    console.print("seeds:", ", ".join(f"{part.seed} ({part.commit})" for part in parts), soft_wrap=True)


def play_part(seed: int, streams: int, faults: Sequence[Fault], tell: Callable[[str], None]) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"headway-torture-{seed}-"))
    outcome = uvloop.run(play(seed, streams, list(faults), folder, tell))
    conclude(outcome, folder)
    return outcome


def conclude(outcome: Outcome, folder: Path) -> None:
    """Show what is wrong and keep its records, or delete them if nothing is."""
    if not outcome.findings:
        shutil.rmtree(folder)
        return
    (folder / "outcome.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    console.print(f"seed {outcome.seed}: logs and records are in {folder}", soft_wrap=True)
    for what, cases in outcome.findings.items():
        for case in cases[:SHOWN]:
            console.print(f"{what}: {case}", style="red", markup=False, highlight=False, soft_wrap=True)


def play_parts(seeds: Sequence[int], streams: int, faults: int, minutes: float, ledger: Path) -> None:
    began_s = time.monotonic()
    shown = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(seeds))
        for number, seed in enumerate(seeds):
            if time.monotonic() - began_s > 60 * minutes:
                break
            outcome = play_part(seed, streams, plan(seed, streams, faults), partial(_tell, progress, bar, seed))
            keep(outcome, ledger)
            progress.update(bar, completed=number + 1)


def _tell(progress: Progress, bar: TaskID, seed: int, words: str) -> None:
    progress.update(bar, description=f"seed {seed}: {words}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays parts of the torture, and adds up the ledger of parts.")
    parser.add_argument("--minutes", type=float, default=50.0, help="no part begins after so many")
    parser.add_argument("--seed", type=int, default=None, help="play only this one; the next ones if not set")
    parser.add_argument("--sum", action="store_true", help="play nothing")
    parser.add_argument("--shrink", action="store_true", help="find the smallest plan of --seed that fails")
    parser.add_argument("--streams", type=int, default=STREAMS, help="of one part")
    parser.add_argument("--faults", type=int, default=FAULTS, help="of one part")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    asked = parser.parse_args()
    if asked.shrink:
        smallest = shrink(
            plan(asked.seed, asked.streams, asked.faults),
            lambda faults: bool(play_part(asked.seed, asked.streams, faults, lambda _: None).findings),
        )
        for fault in smallest:
            console.print(fault, highlight=False)
        return 0 if not smallest else 1
    if not asked.sum:
        play_parts(next_seeds(asked.seed, asked.ledger), asked.streams, asked.faults, asked.minutes, asked.ledger)
    parts = read_ledger(asked.ledger)
    show(parts)
    return finish(console, verdict(figures_of(parts)))


if __name__ == "__main__":
    sys.exit(main())
