"""Faults in a cell whose engines Ray holds on three nodes. See runs/fleet.sh."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.bench.load import quantile
from headway.dispatch.record import replay
from headway.errors import SetupError
from headway.ledger.opening import open_store
from runs.failover.callers import Callers, Ended
from runs.failover.cell import EXPRESS, LIMITS, LOAD, REPLICAS, SCRIPT, SEATS
from runs.failover.episode import aboard_of, is_at_engine
from runs.failover.faults import Faults
from runs.failover.judge import STOPS, Crowd, Done, crowds, filled, hanging
from runs.failover.plan import Fault
from runs.failover.run import words_of
from runs.fleet.held_cell import HeldCell
from runs.fleet.journal_engine import read_journals
from runs.fleet.judge import back_s, cut_without_reason, read_record, rerouted_s
from runs.fleet.ray_nodes import Placed
from runs.ledger.torture_judge import Seen, Witness, checkpoint_tokens, judge
from runs.measure.kept import commit
from runs.measure.machine import require
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
RELAYS = ("relay-1", "relay-2")
EPISODE = 50  # faults
ENGINE = "runs.fleet.journal_engine"
MAX_REROUTE_S = 0.5
ENOUGH = REPLICAS * 2 // 3  # open replicas, before the next fault
SHOWN = 8
MIN_FILLED = 0.1  # with less, one stream too many would seldom show

# Share of each kind, in per cent.
KINDS = {
    "engine killed": 28,
    "actor killed": 15,
    "engine stopped": 12,
    "raylet killed": 6,
    "node killed": 4,
    "head killed": 4,
    "node cut off": 7,
    "engine drained": 10,
    "scaled in, then out": 4,
    "leader killed": 5,
    "relay killed": 5,
}


def plan(seed: int, faults: int) -> list[Fault]:
    chance = random.Random(f"fleet {seed}")
    drawn = chance.choices(list(KINDS), list(KINDS.values()), k=faults)
    return [Fault(kind, chance.choice(RELAYS), chance.uniform(0.5, 5.0), chance.uniform(0.0, 1.0)) for kind in drawn]


@dataclass
class FleetFaults:
    cell: HeldCell
    callers: Callers
    seed: int
    done: list[Done] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"whom {self.seed}")
        self._in_cell = Faults(self.cell, self.callers)

    async def cause(self, fault: Fault) -> None:
        kind = fault.kind
        from_s = time.monotonic()
        if kind in ("leader killed", "relay killed"):
            await self._in_cell.cause(fault)
            self.done.append(self._in_cell.done[-1])
            self.stuck += self._in_cell.stuck
            self._in_cell.stuck = []
        else:
            who = await self._cause(kind, fault.lasts_s)
            self.done.append(Done(kind, who, from_s, time.monotonic()))
        if not await self.cell.until_open(min(ENOUGH, self.cell.count)):
            self.stuck.append(f"{kind}: too few replicas are open")
        await asyncio.sleep(fault.then_s)

    async def _cause(self, kind: str, lasts_s: float) -> str:
        """Returns whom: URLs for engines, addresses for nodes."""
        nodes = self.cell.nodes.nodes
        running = [node for node in nodes if node.is_running]
        if kind in ("engine killed", "engine stopped", "actor killed"):
            if (engine := self._any_engine()) is None:
                return "nobody"
            with suppress(ProcessLookupError):
                if kind == "engine stopped":
                    os.kill(engine.engine_pid, signal.SIGSTOP)
                    await asyncio.sleep(lasts_s)
                    os.kill(engine.engine_pid, signal.SIGCONT)
                else:
                    os.kill(engine.holder_pid if kind == "actor killed" else engine.engine_pid, signal.SIGKILL)
            return engine.url
        if kind == "head killed":
            nodes[0].kill()
            await asyncio.sleep(lasts_s)
            return nodes[0].address
        if kind in ("raylet killed", "node killed", "node cut off"):
            node = self._chance.choice([one for one in running if one.number] or nodes[1:])
            if kind == "raylet killed":
                node.signal("raylet/raylet", signal.SIGKILL)
            elif kind == "node killed":
                node.kill()
            else:
                node.cut(is_cut=True)
            await asyncio.sleep(lasts_s)
            node.cut(is_cut=False)
            return node.address
        if kind == "engine drained":
            return await self._drain(lasts_s)
        self.cell.write_fleet(REPLICAS - 4)
        await self.cell.place()
        await asyncio.sleep(lasts_s)
        self.cell.write_fleet(REPLICAS)
        await self.cell.place()
        return "fleet"

    def _any_engine(self) -> Placed | None:
        found = [one for node in self.cell.nodes.nodes for one in node.placed(ENGINE) if one.holder_pid]
        return self._chance.choice(sorted(found, key=lambda one: one.url)) if found else None

    async def _drain(self, lasts_s: float) -> str:
        try:
            rows = await self.cell.rows()
            open_now = sorted(url for url, state in rows.items() if state == "open")
            url = self._chance.choice(open_now)
            await self.cell.drain(url, is_undone=False)
            await asyncio.sleep(lasts_s)
            await self.cell.drain(url, is_undone=True)
        except SetupError:
            return "nobody"
        return url


class FleetOutcome(msgspec.Struct):
    """What one episode showed. Kept as JSON."""

    seed: int
    sent: int
    ends: dict[str, int]
    refusals: dict[str, int]
    faults: list[Done]
    stuck: list[str]
    crowds: list[Crowd]
    filled: int
    streams: int
    cut: list[Ended]
    hanging: list[Ended]
    rerouted: list[float]
    back: list[tuple[str, float]]
    whole: bool  # all engines are open at the end
    wrong: list[str]  # in the books
    unbilled: int
    spooled: int
    fast: int  # fast calls that were served
    refunded: int  # those whose floor was missed
    exits: list[str]
    events: int
    differences: list[str]


async def episode(seed: int, faults: int, folder: Path, tell: Callable[[str], None]) -> FleetOutcome:
    cell = HeldCell(folder, RELAYS)
    try:
        tell("starting the cluster and the cell")
        await cell.start()
        callers = Callers(cell.port, LOAD, seed)
        calling = asyncio.create_task(callers.run())
        await asyncio.sleep(4.0)
        doing = FleetFaults(cell, callers, seed)
        exits: list[str] = []
        for fault in plan(seed, faults):
            tell(f"{len(doing.done)} faults, {len(callers.ended):,} calls, now {fault.kind}")
            await doing.cause(fault)
            exits += [member.name for member in cell.members if member.ended_by_itself()]
            if exits:
                break
        tell("waiting until all engines are back")
        whole = await cell.until_open(REPLICAS)
        callers.stop()
        await calling
        if not exits:
            codes = await cell.stop()
            exits += [f"{name} exit code {code}" for name, code in codes.items() if code]
        tell("judging")
        return await asyncio.to_thread(_judge, seed, cell, callers, doing, exits, whole)
    finally:
        cell.remove()


def _judge(
    seed: int, cell: HeldCell, callers: Callers, doing: FleetFaults, exits: list[str], whole: bool
) -> FleetOutcome:
    calls, faults = callers.ended, doing.done
    processes = read_journals(cell.journals, lambda _url, last_s: last_s)
    by_url: dict[str, Witness] = {}
    for _, process in processes:
        by_url.setdefault(process.url, Witness(process.url)).requests |= process.requests
    engine_of = {name: url for url, witness in by_url.items() for name in witness.requests}
    store = open_store(cell.database.url)
    seen = [Seen(call.call_id, call.how == "complete") for call in calls if is_at_engine(call)]
    books = judge(store, list(by_url.values()), seen)
    entries = {entry.call_id: entry for entry in store.entries()}
    fast = sum(entry.kind == "served" and entry.tier == "fast" for entry in store.entries())
    refunded = sum(entry.kind == "refunded" for entry in store.entries())
    unshipped = cell.spooled() - {entry.id for entry in store.entries()}
    store.close()
    # Each process by itself: one that was started again at the same address has none of the streams before.
    alone = [Witness(name) for name, _ in processes]
    for one, (_, process) in zip(alone, processes, strict=True):
        one.requests = process.requests
    streams = aboard_of(alone, calls, entries)
    history = [one for path in cell.records() for one in read_record(path)]
    events, differences = 0, []
    for path in cell.records():
        try:
            replayed = replay(path)
        except SetupError as error:
            differences.append(f"{path.name}: {error.message}")
            continue
        events += replayed.events
        if replayed.first_difference:
            differences.append(f"{path.name}: {replayed.first_difference}")
    return FleetOutcome(
        seed=seed,
        sent=callers.sent,
        ends=dict(Counter(call.how for call in calls)),
        refusals=dict(Counter(call.words for call in calls if call.how == "refused")),
        faults=faults,
        stuck=doing.stuck,
        crowds=crowds(streams, LIMITS, faults),
        filled=filled(streams, LIMITS),
        streams=len(streams),
        cut=cut_without_reason(calls, engine_of, faults),
        hanging=hanging(calls, LIMITS, faults),
        rerouted=rerouted_s(faults, history),
        back=back_s(faults, history),
        whole=whole,
        wrong=[*books.lost, *books.over_billed, *books.wrong_when_complete, *books.problems],
        unbilled=max(books.killed_low, default=0),
        spooled=len(unshipped),
        fast=fast,
        refunded=refunded,
        exits=exits,
        events=events,
        differences=differences,
    )


@dataclass(frozen=True)
class FleetFigures:
    wanted: int
    faults: int
    calls: int
    unended: int
    crowds: int
    explained: int
    relay_stops: int
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
    above = [crowd for one in outcomes for crowd in one.crowds]
    rerouted = [seconds for one in outcomes for seconds in one.rerouted]
    return FleetFigures(
        wanted=wanted,
        faults=sum(len(one.faults) for one in outcomes),
        calls=sum(one.sent for one in outcomes),
        unended=sum(abs(one.sent - sum(one.ends.values())) for one in outcomes),
        crowds=sum(not crowd.is_explained for crowd in above),
        explained=sum(crowd.is_explained for crowd in above),
        relay_stops=sum(fault.kind in STOPS for one in outcomes for fault in one.faults),
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
        none_of("streams above a replica's limit, by its own record", figures.crowds + figures.explained),
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
        f"themselves in all but {figures.stuck + figures.broken} cases (bar 0); {figures.crowds + figures.explained} "
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
