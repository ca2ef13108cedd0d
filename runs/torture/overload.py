"""Offers a cell up to ten times what it can serve, in several ways, and judges the outcome. See runs/overload.sh."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from headway.charts import BLUE, GREY, ORANGE, write_picture
from headway.ledger.opening import open_store
from runs.ledger.torture_judge import Judgement, Seen, Witness, judge
from runs.measure.fetch import fetch
from runs.measure.machine import require, too_slow
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of
from runs.torture.overload_callers import Made
from runs.torture.overload_cell import (
    FLOOR_TPS,
    LIGHT_REPLICAS,
    MAX_HOLD_S,
    REPLICAS,
    SEATS,
    OverloadCell,
    open_sockets,
)
from runs.torture.overload_judge import Point, normal, normal_after_s, point, retried_s
from runs.torture.overload_play import BURSTS, FLOOD, HALF, IDLE, LOADS, SLOW, STORM, TEN, Player

console = Console(width=190)
MIN_CAPACITY, MAX_CAPACITY = 36.0, 44.0
MIN_OF_PEAK, MIN_SERVED, MIN_KEPT = 0.95, 0.95, 0.995
MAX_REFUSAL_ABOVE_S, MAX_NORMAL_S = 0.020, 5.0
MAX_WAIT_S = max(MAX_HOLD_S.values()) / 2  # of others, p99, while one tenant floods
MIN_SDK, MIN_REFUSALS = 100, 10_000
# If the callers are later than this, p99, or the machine is less idle than this in a phase, a missed bar says nothing
# about Headway. The run itself takes about one of two cores at most.
LATE_S, MIN_IDLE = 0.010, 0.10
LEFT_S = 10.0  # for the last connections to be closed
OVERLOADS = (*LOADS[2:], BURSTS, STORM, SLOW, FLOOD)


@dataclass(frozen=True)
class Figures:
    capacity: float
    idle_s: tuple[float, float]  # p50 and p99 of a refusal
    points: dict[str, Point]
    sdk: int  # calls of the unchanged OpenAI SDK
    slow_most: int  # slow readers at once
    in_ledger: int
    wrong_books: int
    left: tuple[str, ...] = ()  # what was not over at the end
    # Of the callers: their share of a core, and of the time in which they waited for one; of the machine: idle.
    busy: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        return max(self.points[phase.name].good for phase in LOADS)

    @property
    def overloaded(self) -> list[Point]:
        return [self.points[phase.name] for phase in OVERLOADS]

    @property
    def kept(self) -> float:
        fast = sum(one.fast for one in self.overloaded)
        return sum(one.kept for one in self.overloaded) / fast if fast else float("nan")

    def above_idle_s(self, point: Point) -> float:
        return point.refusal_s[1] - self.idle_s[1]


def verdict(figures: Figures) -> Verdict:
    points, overloaded = figures.points, figures.overloaded
    of_peak = {phase.name: points[phase.name].good / figures.peak for phase in (TEN, BURSTS, STORM)}
    above_ms = {one.name: 1e3 * figures.above_idle_s(one) for one in overloaded if one.refusals}
    normal_s = max(one.normal_s for one in overloaded)
    flood = points[FLOOD.name]
    refusals = sum(one.refusals for one in overloaded)
    bars = (
        at_least("capacity, calls a second", figures.capacity, MIN_CAPACITY, ".1f"),
        at_most("the same, at most", figures.capacity, MAX_CAPACITY, ".1f"),
        *[at_least(f"goodput ÷ its peak, {name}", share, MIN_OF_PEAK, ".1%") for name, share in of_peak.items()],
        *[
            at_most(f"refusals p99 above idle, {name}", ms, 1e3 * MAX_REFUSAL_ABOVE_S, ".1f", " ms")
            for name, ms in above_ms.items()
        ],
        at_least("fast streams at their floor, in all overloads", figures.kept, MIN_KEPT, ".2%"),
        none_of("refusals without a retry-after", sum(one.untold for one in points.values())),
        none_of("calls neither served nor refused", sum(one.broken for one in points.values())),
        at_most("until all is normal again, longest", normal_s, MAX_NORMAL_S, ".1f", " s"),
        at_least("slow readers at once", figures.slow_most, REPLICAS * SEATS, ".0f"),
        at_least("calls served beside slow readers", points[SLOW.name].served, MIN_SERVED, ".1%"),
        at_least("calls of others served in a tenant's flood", flood.served, MIN_SERVED, ".1%"),
        at_most("their wait for the first token, p99", flood.wait_s[1], MAX_WAIT_S, unit=" s"),
        at_least("calls of the OpenAI SDK", figures.sdk, MIN_SDK, ",.0f"),
        at_least("refusals", refusals, MIN_REFUSALS, ",.0f"),
        none_of("calls lost, billed wrong or twice", figures.wrong_books),
        none_of("left over at the end", len(figures.left)),
    )
    figure = (
        f"capacity {figures.capacity:.1f} calls a second; goodput at 10 times that is {of_peak[TEN.name]:.1%} of its "
        f"peak, in bursts {of_peak[BURSTS.name]:.1%}, in a retry storm {of_peak[STORM.name]:.1%} (bars 95 %); refusals "
        f"p99 at most {max(above_ms.values()):.1f} ms above idle (bar 20); {figures.kept:.2%} of the fast streams at "
        f"their floor (bar 99.5 %); normal again after {normal_s:.1f} s (bar 5); in a flood {flood.served:.1%} of the "
        f"others' calls served (bar 95 %); {figures.wrong_books} of {figures.in_ledger:,} calls wrong in the books"
    )
    return Verdict(figure, bars)


async def overload(folder: Path, seed: int) -> Figures:
    cell = OverloadCell(folder)
    try:
        with console.status("starting the cell") as status:
            await cell.start()
            player = Player(cell, seed, status.update)
            made = await player.play()
            left = await _left_over(cell)
            witnesses = [Witness(url) for url in cell.replica_urls]
            for witness in witnesses:
                await asyncio.to_thread(witness.read)
            left += [f"{one.running} streams at {one.url}" for one in witnesses if one.running]
            codes = await cell.stop()
            left += [f"{name}: exit code {code}" for name, code in codes.items() if code]
            books = await asyncio.to_thread(_judge_books, cell, witnesses, made)
            left += [f"{len(cell.spooled())} entries in spools"] if len(cell.spooled()) > books.entries else []
            return _figures(player, made, books, left)
    finally:
        cell.remove()


async def _left_over(cell: OverloadCell) -> list[str]:
    """Seats, held calls and connections, some seconds after the last call."""
    for _ in range(int(LEFT_S)):
        await asyncio.sleep(1.0)
        clients = await open_sockets([cell.port])
        leader = cell.leader()
        if leader is None:
            return ["no dispatcher leads"]
        page = await asyncio.to_thread(fetch, f"http://127.0.0.1:{cell.metrics_ports[leader]}/metrics")
        lines = [line for line in page.decode().splitlines() if line.startswith(("headway_aboard{", "headway_held{"))]
        gauges = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
        left = [f"{name} {value:g}" for name, value in gauges.items() if value]
        left += [f"{clients} connections of callers"] if clients else []
        left += [] if gauges else ["no gauges on the page of metrics"]
        if not left:
            break
    return left


def _judge_books(cell: OverloadCell, witnesses: list[Witness], made: list[Made]) -> Judgement:
    store = open_store(cell.database.url)
    try:
        served = [Seen(one.call_id, is_complete=True) for one in made if one.how == "complete"]
        return judge(store, witnesses, served)
    finally:
        store.close()


def _figures(player: Player, made: list[Made], books: Judgement, left: list[str]) -> Figures:
    by_phase: dict[str, list[Made]] = {}
    for one in made:
        by_phase.setdefault(one.phase, []).append(one)
    usual = normal(by_phase[IDLE.name], by_phase[HALF.name])
    points = {}
    for played in player.played:
        phase, ended_s = played.phase, played.since_s + played.phase.for_s
        after = by_phase.get(phase.after.name, [])
        more_s = retried_s([*by_phase[phase.name], *after], ended_s, player.capacity)
        normal_s = normal_after_s(after, ended_s + more_s, usual)
        points[phase.name] = point(phase, by_phase[phase.name], played.since_s, more_s, normal_s)
    wrong = [*books.lost, *books.over_billed, *books.wrong_when_complete, *books.problems]
    for words in [*wrong[:10], *left[:10], *_odd(made)[:10]]:
        console.print(words, style="red", markup=False, soft_wrap=True)
    reasons = Counter(one.words for one in made if one.how == "refused")
    console.print("refused: " + ", ".join(f"{why} {count:,}" for why, count in reasons.most_common()), highlight=False)
    return Figures(
        capacity=player.capacity,
        idle_s=point(IDLE, by_phase[IDLE.name], min(one.due_s for one in by_phase[IDLE.name])).refusal_s,
        points=points,
        sdk=sum(one.what == "sdk" for one in made),
        slow_most=player.callers.slow_most,
        in_ledger=books.calls,
        wrong_books=len(wrong),
        left=tuple(left),
        busy={one.phase.name: (one.busy, one.waiting, one.idle) for one in player.played},
    )


def _odd(made: list[Made]) -> list[str]:
    odd = [one for one in made if one.how not in ("complete", "refused")]
    return [f"{one.phase}: {one.what} {one.call_id} {one.how} after {one.received}: {one.words}" for one in odd]


def show(figures: Figures) -> None:
    heads = ("phase", "offered/s", "good/s", "first token p50", "p99", "refusals", "p50", "p99", "fast", "kept")
    table = Table(*heads, "served", "retried for", "normal after", "callers: late p99", "of a core", "waiting", "idle")
    table.add_row("idle", *[""] * 5, *[f"{1e3 * one:.1f} ms" for one in figures.idle_s])
    for one in figures.points.values():
        table.add_row(
            one.name, f"{one.offered:.1f}", f"{one.good:.1f}", *[f"{wait:.2f} s" for wait in one.wait_s],
            f"{one.refusals:,}", *[f"{1e3 * time:.1f} ms" for time in one.refusal_s], f"{one.fast:,}",
            f"{one.kept / max(1, one.fast):.2%}", f"{one.served:.1%}", f"{one.retried_s:.0f} s",
            f"{one.normal_s:.1f} s",
            f"{1e3 * one.late_s:.1f} ms", *[f"{share:.0%}" for share in figures.busy[one.name]],
        )  # fmt: skip
    console.print(table)


def draw(figures: Figures, out: Path) -> None:
    rows = [{"offered": figures.points[one.name].offered, "good": figures.points[one.name].good} for one in LOADS]
    others = [
        {"offered": figures.points[one.name].offered, "good": figures.points[one.name].good, "how": how}
        for one, how in ((BURSTS, "bursts"), (STORM, "retry storm"))
    ]
    axis = {"labelFontSize": 12, "titleFontSize": 13}
    encoding = {
        "x": {"field": "offered", "type": "quantitative", "axis": axis, "title": "calls offered per second"},
        "y": {"field": "good", "type": "quantitative", "axis": axis, "title": "calls served in time per second"},
    }
    rule = {"mark": {"type": "rule", "color": GREY, "strokeDash": [4, 4]}}
    text = {"type": "text", "align": "right", "fontSize": 12, "color": ORANGE}
    write_picture(
        {
            "width": 700,
            "height": 320,
            "layer": [
                rule | {"data": {"values": [{"good": figures.capacity}]}, "encoding": {"y": encoding["y"]}},
                {"data": {"values": rows}, "encoding": encoding,
                 "mark": {"type": "line", "point": {"size": 70, "color": BLUE}, "color": BLUE}},
                {"data": {"values": others}, "mark": {"type": "point", "filled": True, "size": 80, "color": ORANGE},
                 "encoding": encoding},
                *[
                    {"data": {"values": [one]}, "mark": text | {"dy": dy},  # both are near the same point
                     "encoding": encoding | {"text": {"field": "how"}}}
                    for one, dy in zip(others, (-14, 18), strict=True)
                ],
            ],
        },
        {"text": "What is served, whatever is asked for", "subtitle": "dashed: the measured capacity"},
        out,
        "overload",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="A cell, offered more than it can serve.")
    parser.add_argument("--seed", type=int, default=2701)
    parser.add_argument("--picture", type=Path, default=None, help="folder to draw overload.svg in")
    asked = parser.parse_args()
    require(console, fast_cores=True, free_cores=True)
    console.print(
        f"seed {asked.seed}; {REPLICAS} scripted replicas of {SEATS} seats, of which {LIGHT_REPLICAS} may be light; "
        f"floor {FLOOR_TPS:g} tok/s",
        soft_wrap=True,
    )
    folder = Path(tempfile.mkdtemp(prefix=f"headway-overload-{asked.seed}-"))
    figures = uvloop.run(overload(folder, asked.seed))
    show(figures)
    found = verdict(figures)
    if asked.picture is not None:
        draw(figures, asked.picture)
    late_s, idle = max(one.late_s for one in figures.overloaded), min(idle for _, _, idle in figures.busy.values())
    if not found.ok and (late_s > LATE_S or idle < MIN_IDLE):
        for reason in found.reasons:
            console.print(f"missed: {reason}", highlight=False)
        too_slow(console, f"callers were {1e3 * late_s:.1f} ms late, p99, and its cores {idle:.0%} idle; see {folder}")
    if found.ok:
        shutil.rmtree(folder)
    else:
        console.print(f"logs are in {folder}", soft_wrap=True)
    return finish(console, found)


if __name__ == "__main__":
    sys.exit(main())
