"""Streams with a floor are watched while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headway.engines.scripted import Faults, Script, running
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.005),))
FAST = {"name": "fast", "floor_tps": 20.0, "max_hold_s": 60.0}
ASK: Any = [{"role": "user", "content": "two words"}]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


def is_behind(here: Running) -> bool:
    [pool] = here.gateway.machine.pools.values()
    [state] = pool.doors.replicas.values()
    return state.is_behind


@pytest.mark.parametrize("streamed", [True, False])
async def test_no_call_boards_a_replica_while_a_stream_falls_behind_there(streamed: bool) -> None:
    async with (
        running(SCRIPT) as engine,
        running_gateway(config_for([engine], express=[FAST], curve=[[1, 200.0], [8, 200.0]])) as here,
    ):

        def fast(tokens: int) -> asyncio.Task[Any]:
            body = {"model": MODEL, "messages": ASK, "max_tokens": tokens, "service_tier": "fast"}
            return asyncio.create_task(here.openai.chat.completions.create(**body, stream=False))

        if streamed:
            stream = await here.openai.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=8_000, service_tier="fast", stream=True
            )
            await anext(aiter(stream))
        else:
            whole = fast(8_000)
            await until(lambda: engine.record()["running"] == 1)
        engine.faults = Faults(slow_factor=60.0)  # 3 tok/s
        await until(lambda: is_behind(here))
        waiting = fast(3)
        await until(lambda: here.gateway.machine.calls == 2)
        assert engine.record()["running"] == 1
        engine.faults = Faults()
        assert (await waiting).service_tier == "fast"
        assert not is_behind(here)
        if streamed:
            await stream.close()
        else:
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)


async def test_a_replica_is_tried_again_after_its_slow_stream_has_left() -> None:
    async with (
        running(SCRIPT) as engine,
        running_gateway(config_for([engine], express=[FAST], curve=[[1, 200.0], [8, 200.0]])) as here,
    ):
        stream = await here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=8_000, service_tier="fast", stream=True
        )
        await anext(aiter(stream))
        engine.faults = Faults(slow_factor=60.0)
        await until(lambda: is_behind(here))
        await stream.close()
        await until(lambda: not is_behind(here))
        [pool] = here.gateway.machine.pools.values()
        [state] = pool.doors.replicas.values()
        assert state.light_seats == 0
