"""Replicas that come and go while the gateway runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import openai
import pytest

from headway.core.types import Replica
from headway.engines.scripted import Script, ScriptedEngine, running
from headway.engines.vllm import VLLMEngine
from headway.errors import EngineLost
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))


def described(engine: ScriptedEngine, seats: int = 8) -> tuple[Replica, VLLMEngine]:
    return Replica(engine.url, MODEL, seats), VLLMEngine(engine.url, engine.url, MODEL)


def calls(here: Running, count: int, tokens: int = 20) -> list[asyncio.Task[Any]]:
    ask = {"model": MODEL, "prompt": "hi", "max_tokens": tokens}
    return [asyncio.create_task(here.openai.completions.create(**ask)) for _ in range(count)]  # type: ignore[call-overload]


async def until_running(engine: ScriptedEngine, streams: int) -> None:
    async with asyncio.timeout(20):
        while engine.record()["running"] != streams:
            await asyncio.sleep(0.005)


async def test_a_replica_that_is_added_takes_calls_once_it_is_up() -> None:
    async with running(SLOW) as first, running(SLOW) as second, running_gateway(config_for([first], seats=2)) as here:
        busy = calls(here, 6)
        await until_running(first, 2)
        here.gateway.replicas.add(*described(second, seats=4))
        await until_running(second, 4)  # those that waited
        await asyncio.gather(*busy)
        with pytest.raises(ValueError, match="already"):
            here.gateway.replicas.add(*described(second))


async def test_fewer_seats_take_effect_and_more_too() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], seats=4)) as here:
        here.gateway.replicas.change(Replica(engine.url, MODEL, 1))
        await asyncio.gather(*calls(here, 6))
        assert engine.record()["highest_running"] == 1
        here.gateway.replicas.change(Replica(engine.url, MODEL, 3))
        await asyncio.gather(*calls(here, 9))
        assert engine.record()["highest_running"] == 3


async def test_a_draining_replica_keeps_its_streams_and_takes_no_others() -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_gateway(config_for([a, b], seats=4)) as here:
        staying = calls(here, 8, tokens=50)
        await until_running(a, 4)
        await until_running(b, 4)
        here.gateway.replicas.drain(a.url)
        await asyncio.gather(*staying, *calls(here, 12, tokens=5))
        finished = a.record()["finished"]
        await asyncio.gather(*calls(here, 12, tokens=5))
        assert a.record()["finished"] == finished  # also when it is idle again
        await here.gateway.replicas.remove(a.url)
        assert a.url not in here.gateway.metrics.page().decode()
        await asyncio.gather(*calls(here, 4, tokens=5))


async def test_streams_aboard_a_replica_that_is_removed_are_cut() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine])) as here:
        stream = await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=500, stream=True)
        await anext(aiter(stream))
        await here.gateway.replicas.remove(engine.url)
        with pytest.raises(openai.APIError):
            [chunk async for chunk in stream]
        with pytest.raises(openai.APIStatusError) as refused:
            await here.openai.completions.create(model=MODEL, prompt="hi")
        assert refused.value.status_code == 503
        await here.until_empty()


async def test_clients_are_told_the_longest_context_that_all_replicas_have() -> None:
    short, long = replace(SLOW, max_model_len=2_048), replace(SLOW, max_model_len=4_096)

    async def shown(here: Running) -> list[Any]:
        listed = [one async for one in here.openai.models.list()]
        return [getattr(one, "max_model_len", None) for one in (*listed, await here.openai.models.retrieve(MODEL))]

    async with running(long) as first, running(short) as second, running_gateway(config_for([first])) as here:
        assert await shown(here) == [4_096, 4_096]
        here.gateway.replicas.add(*described(second))
        await here.until_up(2)
        assert await shown(here) == [2_048, 2_048]
        await here.gateway.replicas.remove(second.url)
        assert await shown(here) == [4_096, 4_096]
        await here.gateway.replicas.remove(first.url)
        assert await shown(here) == [None, None]


async def test_an_engine_whose_streams_cannot_be_read_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(_engine: VLLMEngine) -> int:
        raise EngineLost("its metrics cannot be read")

    counts: list[tuple[str, int]] = []
    async with running(SLOW) as engine, running_gateway(config_for([engine])) as here:
        replicas = here.gateway.replicas
        with monkeypatch.context() as patched:
            patched.setattr(VLLMEngine, "streams", unreadable)
            replicas.count_streams(engine.url, lambda *counted: counts.append(counted))
            await replicas._counting[engine.url]
        assert counts == []
        replicas.count_streams(engine.url, lambda *counted: counts.append(counted))
        await replicas._counting[engine.url]
        assert counts == [(engine.url, 0)]
