"""Runs a race: waits for the replicas, starts the other callers, then runs round after round.

Knows: the order in which things start and end. Does not know: what the engines are, which the stage says, or how a
gateway is made and ended; it is handed in running. Whoever cancels a race ends it: its callers leave with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Protocol

from rich.console import Console
from rich.live import Live

from headway.config import Config
from headway.core.pool import Pool
from headway.gateway.serve import Gateway
from headway.http1 import ConnectionPool
from headway.local.race.calls import call, keep_calling, read_offers
from headway.local.race.drawing import draw, in_words, introduction, round_in_words
from headway.local.race.stage import Stage
from headway.local.race.state import Lane, Race, ReplicaSeats, RoundResult

OpenGateway = Callable[[Config], AbstractAsyncContextManager[tuple[Gateway, int]]]

READING_S = 3.0  # between two rounds, for whoever watches
POLL_S = 0.02


class Screen(Protocol):
    """Where the race is shown."""

    reading_s: float

    def show(self, race: Race) -> None:
        """Called for every frame."""

    def end_round(self, race: Race, result: RoundResult | None) -> None: ...

    def end(self, race: Race) -> None: ...


class LiveScreen:
    """A terminal: the picture moves, on the alternate screen; its last state stays when the race is over."""

    reading_s = READING_S

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def show(self, race: Race) -> None:
        self._live.start()
        self._live.update(draw(race), refresh=True)

    def end_round(self, race: Race, result: RoundResult | None) -> None:
        """The picture says it."""

    def end(self, race: Race) -> None:
        self._live.stop()
        self._console.print(draw(race))


class LineScreen:
    """A file or a pipe: a line for each round."""

    reading_s = 0.0

    def __init__(self, console: Console, stage: Stage) -> None:
        self._console = console
        self._say(introduction(stage.note))

    def show(self, race: Race) -> None:
        """Nothing moves here."""

    def end_round(self, race: Race, result: RoundResult | None) -> None:
        self._say(round_in_words(race, result))

    def end(self, race: Race) -> None:
        self._say(in_words(race))

    def _say(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)


def screen_for(console: Console, stage: Stage) -> Screen:
    return LiveScreen(console) if console.is_terminal else LineScreen(console, stage)


async def race_on(
    stage: Stage, gateway: Gateway, port: int, engine_urls: list[str], screen: Screen, rounds: int | None
) -> Race:
    """Race for so many rounds, or until cancelled. The gateway listens on `port`."""
    with ExitStack() as stack:
        pool = gateway.machine.pools[stage.model]
        await _until_up(pool, len(engine_urls))
        gateway_url = f"http://127.0.0.1:{port}"
        client = ConnectionPool(gateway_url)
        stack.callback(client.close)
        offers = await read_offers(client, stage.model)
        standard, fast = (Lane(offers[tier], stage.race_tokens) for tier in ("standard", "fast"))
        replicas = [ReplicaSeats(url, [None] * stage.seats) for url in engine_urls]
        race = Race(stage.prompt, stage.note, gateway_url, standard, fast, replicas, stage.callers)
        stack.callback(screen.end, race)
        await _run_rounds(stage, race, client, pool, screen, rounds)
        return race


async def _run_rounds(
    stage: Stage, race: Race, client: ConnectionPool, pool: Pool, screen: Screen, rounds: int | None
) -> None:
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(_keep_showing(stage, race, pool, screen))]
        for tier, count in race.callers.items():
            for _ in range(count):
                lengths = stage.call_lengths(len(beside))
                beside.append(group.create_task(keep_calling(client, stage.model, tier, race.prompt, lengths)))
            await _until_present(pool, len(beside) - 1)
        while rounds is None or race.round < rounds:
            race.start_round()
            await asyncio.gather(*(call(client, stage.model, lane, race.prompt) for lane in race.lanes))
            screen.end_round(race, race.end_round())
            await asyncio.sleep(screen.reading_s)
        for task in beside:
            task.cancel()


async def _until_up(pool: Pool, replicas: int) -> None:
    while pool.open_replicas < replicas:  # noqa: ASYNC110 (core has no one to tell)
        await asyncio.sleep(POLL_S)


async def _until_present(pool: Pool, calls: int) -> None:
    while pool.streams + pool.waiting.held < calls:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def _keep_showing(stage: Stage, race: Race, pool: Pool, screen: Screen) -> None:
    while True:
        _look(stage, race, pool)
        screen.show(race)
        await asyncio.sleep(stage.frame_s)


def _look(stage: Stage, race: Race, pool: Pool) -> None:
    """Note who sits where, as the gateway's pool has it."""
    race.held = pool.waiting.held
    for replica in race.replicas:
        state = pool.replica_state(replica.url)
        if state is None:  # taken out: it does not answer
            replica.update({}, is_light=False, limit=0, stream_tps=0.0)
        else:
            aboard = {call_id: stream.call.tier for call_id, stream in state.aboard.items()}
            stream_tps = stage.curve.speed_tps(max(1, len(aboard)))
            replica.update(aboard, is_light=state.light, limit=state.limit, stream_tps=stream_tps)
