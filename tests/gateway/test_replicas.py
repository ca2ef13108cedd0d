"""Replicas that come and go while the gateway runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import openai
import pytest

from headway.core.types import Replica
from headway.dispatch.fleet import Member, RunningFleet
from headway.dispatch.local import LocalDispatch
from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from headway.engines.vllm import VLLMEngine
from headway.errors import EngineLost
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))


def member(engine: ScriptedEngine, seats: int = 8) -> Member:
    return Member(Replica(engine.url, MODEL, seats), "vllm")


def fleet_of(here: Running) -> RunningFleet:
    assert isinstance(here.gateway.dispatch, LocalDispatch)
    return here.gateway.dispatch.fleet


async def until_gone(here: Running, engine: ScriptedEngine) -> None:
    async with asyncio.timeout(20):
        while engine.url in here.gateway.metrics.page().decode():  # its prober is the last to end
            await asyncio.sleep(0.005)
    assert engine.url not in here.gateway.replicas.pools


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
        fleet_of(here).want([member(first, seats=2), member(second, seats=4)])
        await until_running(second, 4)  # those that waited
        await asyncio.gather(*busy)


async def test_fewer_seats_take_effect_and_more_too() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], seats=4)) as here:
        fleet_of(here).want([member(engine, seats=1)])
        await asyncio.gather(*calls(here, 6))
        assert engine.record()["highest_running"] == 1
        fleet_of(here).want([member(engine, seats=3)])
        await asyncio.gather(*calls(here, 9))
        assert engine.record()["highest_running"] == 3


async def test_a_draining_replica_keeps_its_streams_and_takes_no_others() -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_gateway(config_for([a, b], seats=4)) as here:
        staying = calls(here, 8, tokens=50)
        await until_running(a, 4)
        await until_running(b, 4)
        assert fleet_of(here).drain(a.url)
        await asyncio.gather(*staying, *calls(here, 12, tokens=5))
        finished = a.record()["finished"]
        await asyncio.gather(*calls(here, 12, tokens=5))
        assert a.record()["finished"] == finished  # also when it is idle again
        assert fleet_of(here).open_again(a.url)
        busy = calls(here, 8, tokens=50)
        await until_running(a, 4)
        await asyncio.gather(*busy)


async def test_what_is_not_a_replica_cannot_be_drained() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine])) as here:
        assert not fleet_of(here).drain("http://127.0.0.1:1")
        assert not fleet_of(here).open_again("http://127.0.0.1:1")


async def test_a_replica_that_is_not_wanted_is_gone_once_its_streams_have_ended() -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_gateway(config_for([a, b], seats=4)) as here:
        staying = calls(here, 8, tokens=50)
        await until_running(a, 4)
        fleet_of(here).want([member(b, seats=4)])
        assert a.url in here.gateway.replicas.pools
        await asyncio.gather(*staying)
        await until_gone(here, a)
        finished = a.record()["finished"]
        await asyncio.gather(*calls(here, 4, tokens=5))
        assert a.record()["finished"] == finished


async def test_a_replica_that_is_wanted_again_in_time_stays() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], seats=4)) as here:
        [staying] = calls(here, 1, tokens=50)
        await until_running(engine, 1)
        fleet_of(here).want([])
        with pytest.raises(openai.APIStatusError, match="No replica"):
            await here.openai.completions.create(model=MODEL, prompt="hi")
        fleet_of(here).want([member(engine, seats=2)])
        await here.until_up(1)
        await asyncio.gather(staying, *calls(here, 6, tokens=5))
        assert engine.record()["highest_running"] == 2
        assert list(fleet_of(here).members) == [engine.url]


async def test_an_engine_with_a_shorter_context_than_wanted_takes_no_calls(caplog: pytest.LogCaptureFixture) -> None:
    short = replace(SLOW, max_model_len=2_048)
    async with running(SLOW) as a, running(short) as b, running_gateway(config_for([a])) as here:
        fleet_of(here).want([member(a), replace(member(b), min_context=4_096)])
        async with asyncio.timeout(10):
            while "its context is 2,048 tokens, it should be 4,096" not in caplog.text:
                await asyncio.sleep(0.01)
        assert not fleet_of(here).is_open(b.url)
        fleet_of(here).want([member(a), replace(member(b), min_context=2_048)])
        await here.until_up(2)


async def test_clients_are_told_the_longest_context_that_all_replicas_have() -> None:
    short, long = replace(SLOW, max_model_len=2_048), replace(SLOW, max_model_len=4_096)

    async def shown(here: Running) -> list[Any]:
        listed = [one async for one in here.openai.models.list()]
        return [getattr(one, "max_model_len", None) for one in (*listed, await here.openai.models.retrieve(MODEL))]

    async with running(long) as first, running(short) as second, running_gateway(config_for([first])) as here:
        assert await shown(here) == [4_096, 4_096]
        fleet_of(here).want([member(first), member(second)])
        await here.until_up(2)
        assert await shown(here) == [2_048, 2_048]
        fleet_of(here).want([member(first)])
        await until_gone(here, second)
        assert await shown(here) == [4_096, 4_096]
        fleet_of(here).want([])
        await until_gone(here, first)
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


async def test_a_replicas_tokens_are_counted_while_its_streams_run() -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_gateway(config_for([a, b], seats=4)) as here:
        await asyncio.gather(*calls(here, 8, tokens=3))
        assert here.gateway.replica_tokens() == {a.url: 12, b.url: 12}
        a.faults = Faults(die_after_tokens=5, times=1)
        body = b'{"model":"scripted","prompt":"hi","stream":true,"max_tokens":20,"seed":1}'
        streams = [asyncio.create_task(here.raw(post("/v1/completions", body))) for _ in range(8)]
        seen = 24
        async with asyncio.timeout(20):
            while not all(one.done() for one in streams):
                await asyncio.sleep(0.01)
                before, seen = seen, sum(here.gateway.replica_tokens().values())
                assert before <= seen
                assert seen > 24 or not any(one.done() for one in streams)
        tokens = here.gateway.replica_tokens()
        assert sum(tokens.values()) == 24 + 5 + 7 * 20  # one stream failed after five tokens
        page = here.gateway.metrics.page().decode()
        sample = f'headway_replica_output_tokens_total{{model="{MODEL}",replica="{b.url}"}} {tokens[b.url]}.0'
        assert sample in page
        fleet_of(here).want([member(b)])
        await until_gone(here, a)
        assert here.gateway.replica_tokens() == {b.url: tokens[b.url]}
