"""Engines are killed under streams, which go on at the other engine. See runs/continue.sh."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console

from headway.evals.two_samples import divergence, same_distribution
from runs.continuation.drains import Drained, drain_one, rolling_restart
from runs.continuation.room import MadeRoom, make_room
from runs.continuation.service import TOPICS, Service, Told, serving, without_autogroups
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

KILLS = 20  # half of them under greedy streams, half at temperature 1
TOKENS = 40
KILL_AFTER_S = 2.5  # about a third of the answers
OTHER_TEMPERATURE = 0.6  # the control of the test at temperature 1: it must tell this apart
LEAST_P, CONTROL_P = 0.01, 0.01
MAX_DRAIN_S = 5.0

console = Console(width=120)


@dataclass
class Figures:
    kills: int = 0
    continued: list[Told] = field(default_factory=list)  # answers of the calls that were running when an engine died
    others: list[Told] = field(default_factory=list)  # in the same rounds, on the other engine
    greedy: list[tuple[str, str, str]] = field(default_factory=list)  # continued, unbroken, unbroken again
    p_continued: float = 0.0
    p_control: float = 0.0
    books: int = 0  # calls whose entries are not those of their proofs
    drained: Drained = field(default_factory=Drained)
    restarts: Drained = field(default_factory=Drained)
    room: MadeRoom = field(default_factory=lambda: MadeRoom(Told(0)))

    @property
    def failed(self) -> int:
        return sum(bool(one.error) for one in (*self.continued, *self.others))

    @property
    def not_exact(self) -> int:
        return sum(not one.error and not one.is_exact for one in (*self.continued, *self.others)) + self.books

    @property
    def with_tools(self) -> int:
        return sum(one.has_tools and one.moves > 0 for one in self.continued)

    @property
    def pauses_s(self) -> list[float]:
        return sorted(one.longest_pause_s for one in self.continued if one.moves)

    @property
    def same(self) -> tuple[int, int]:
        """Of the greedy answers: continued like unbroken, and unbroken like unbroken."""
        continued, unbroken, again = zip(*self.greedy, strict=True)
        return divergence(continued, unbroken).same, divergence(again, unbroken).same


def at(sorted_values: Sequence[float], share: float) -> float:
    return (
        sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))] if sorted_values else float("nan")
    )


def verdict(figures: Figures) -> Verdict:
    same, control = figures.same
    p50, p95 = at(figures.pauses_s, 0.5), at(figures.pauses_s, 0.95)
    moved = len(figures.pauses_s)
    bars = (
        at_least("engines killed under streams", figures.kills, KILLS, "d"),
        at_least("streams that went on at the other engine", moved, 5 * KILLS, "d"),
        at_least("of these, with a tool that may be called", figures.with_tools, KILLS, "d"),
        none_of("clients that saw an error", figures.failed),
        none_of("calls whose usage or bill is not that of what was delivered", figures.not_exact),
        at_least(
            f"greedy: continued like unbroken, of {len(figures.greedy)} (bar: unbroken like unbroken)",
            same,
            control,
            "d",
        ),
        at_least("temperature 1: p of continued beside unbroken", figures.p_continued, LEAST_P, ".4f"),
        at_most(f"its control: p of temperature {OTHER_TEMPERATURE}", figures.p_control, CONTROL_P, ".4f"),
        at_least("streams on the engine that drained", figures.drained.streams, 32, "d"),
        at_most("the engine that drained was empty after", figures.drained.took_s, MAX_DRAIN_S, ".1f", " s"),
        none_of("streams that it lost", figures.drained.failed),
        none_of("errors in a rolling restart of both engines", figures.restarts.failed),
        at_least("streams that made way for a fast call", figures.room.moved, 1, "d"),
        none_of("calls that this lost, or served as another tier", figures.room.failed + (not figures.room.is_fast)),
    )
    figure = (
        f"{moved} streams went on after {figures.kills} kills, {figures.with_tools} of them with a tool that may be "
        f"called, {figures.failed} errors; "
        f"pause p50 {p50:.1f} s, p95 {p95:.1f} s; "
        f"greedy text as unbroken in {same} of {len(figures.greedy)} ({control} between two unbroken runs); "
        f"drained of {figures.drained.streams} streams in {figures.drained.took_s:.1f} s; first token of a fast call "
        f"for which {figures.room.moved} streams made way after {figures.room.first_token_s:.1f} s, where the streams "
        f"ended after {figures.room.ended_s:.0f} s"
    )
    return Verdict(figure, bars)


async def one_kill(service: Service, number: int, temperature: float) -> list[Told]:
    """Kill an engine under a stream for each topic."""
    asking = asyncio.create_task(service.ask_all(TOPICS, TOKENS, temperature))
    await asyncio.sleep(KILL_AFTER_S)
    await asyncio.to_thread(service.kill, number)
    return await asking


async def kills(service: Service, figures: Figures, count: int) -> None:
    unbroken: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    continued: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    other: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    began = time.monotonic()
    for number in range(count):
        temperature = float(number % 2)
        plain = await service.ask_all(TOPICS, TOKENS, temperature)
        control = await service.ask_all(TOPICS, TOKENS, OTHER_TEMPERATURE if temperature else 0.0)
        killed = await one_kill(service, number % 2, temperature)
        restarting = asyncio.to_thread(service.start_again, number % 2)
        figures.kills += 1
        figures.others += [*plain, *control, *(one for one in killed if not one.moves)]
        figures.continued += [one for one in killed if one.moves or one.error]
        for topic, one, first, second in zip(TOPICS, killed, plain, control, strict=True):
            if not one.moves:
                continue
            if temperature:
                continued[topic].append(one.text)
                unbroken[topic].append(first.text)
                other[topic].append(second.text)
            else:
                figures.greedy.append((one.text, first.text, second.text))
        moved = sum(one.moves > 0 for one in killed)
        errors = sum(bool(one.error) for one in killed)
        console.print(
            f"kill {number + 1} of {count}: {moved} streams went on, {errors} errors, "
            f"{(time.monotonic() - began) / 60:.1f} min",
            highlight=False,
        )
        await restarting
        await until_both_open(service)
    places = [topic for topic in TOPICS if continued[topic]]
    figures.p_continued = same_distribution([continued[one] for one in places], [unbroken[one] for one in places])
    figures.p_control = same_distribution([other[one] for one in places], [unbroken[one] for one in places])


async def until_both_open(service: Service) -> None:
    """Calls go to both engines again."""
    async with asyncio.timeout(120):
        while await service.open_replicas() < len(service.engines):
            await asyncio.sleep(0.1)


async def measure(service: Service, count: int) -> Figures:
    figures = Figures()
    await service.ask_all(TOPICS, 8, 0.0)  # warm
    await kills(service, figures, count)
    figures.room = await make_room(service, console)
    figures.drained = await drain_one(service, console)
    figures.restarts = await rolling_restart(service, console)
    figures.books = await service.wrong_in_books([*figures.continued, *figures.others])
    return figures


def main(count: int) -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        without_autogroups(),
        serving(console, Path(folder)) as service,
    ):
        figures = uvloop.run(measure(service, count))
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS))
