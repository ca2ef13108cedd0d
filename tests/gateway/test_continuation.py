"""Streams that go on at another engine, through the whole gateway, with the official SDK and scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.core.types import Cut, Event, Finished, Preempt
from headway.dispatch.local import LocalDispatch
from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from headway.engines.scripted.formats import WORDS
from headway.ledger.bill import make_bill
from tests.gateway.test_books import desk
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
STEADY = Script(model=MODEL, first_token_s=0.01, step_s=((1, 0.004),))
ASK: Any = [{"role": "user", "content": "two words"}]
STORY = "".join(WORDS)


@asynccontextmanager
async def two_engines(**settings: Any) -> AsyncIterator[tuple[list[ScriptedEngine], Running]]:
    async with (
        running(STEADY) as first,
        running(STEADY) as second,
        running_gateway(config_for([first, second], **settings)) as here,
    ):
        yield [first, second], here


def busy(here: Running, engines: list[ScriptedEngine]) -> ScriptedEngine:
    """The engine of the only call. Others may be running a probe."""
    [trip] = here.gateway._trips.values()
    [one] = [engine for engine in engines if engine.url == trip.grant.replica]
    return one


async def lose_after(here: Running, stream: Any, engines: list[ScriptedEngine], chunks: int) -> list[Any]:
    """Read the stream. After so many chunks its engine dies."""
    read = []
    async for chunk in stream:
        read.append(chunk)
        if len(read) == chunks:
            busy(here, engines).faults = Faults(die_after_tokens=1)
    return read


def text_of(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join((one.text if hasattr(one, "text") else one.delta.content) or "" for one in choices)


async def chat(here: Running, **asked: Any) -> Any:
    options = {"stream": True, "stream_options": {"include_usage": True}, **asked}
    return await here.openai.chat.completions.create(model=MODEL, messages=ASK, **options)


async def test_a_chat_goes_on_without_a_gap_or_a_double() -> None:
    async with two_engines() as (engines, here):
        chunks = await lose_after(here, await chat(here, max_tokens=60), engines, 20)
        assert text_of(chunks) == STORY[: len(text_of(chunks))]
        assert len(text_of(chunks).split()) == 60
        assert len({chunk.id for chunk in chunks}) == 1
        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == [
            "length"
        ]
        usage: Any = chunks[-1].usage
        assert (usage.completion_tokens, usage.prompt_tokens, usage.total_tokens) == (60, 6, 66)
        assert usage.headway["moves"] == 1
        assert b"token_ids" not in b"".join(chunk.model_dump_json(exclude_none=True).encode() for chunk in chunks)
        await here.until_empty()
        assert f'headway_moves_total{{model="{MODEL}",tier="standard"}} 1.0' in here.gateway.metrics.page().decode()


async def test_a_completion_goes_on_twice() -> None:
    async with (
        running(STEADY) as one,
        running(STEADY) as two,
        running(STEADY) as three,
        running_gateway(config_for([one, two, three])) as here,
    ):
        engines = [one, two, three]
        stream = await here.openai.completions.create(
            model=MODEL, prompt="hi", max_tokens=80, stream=True, stream_options={"include_usage": True}
        )
        read: list[Any] = []
        async for chunk in stream:
            read.append(chunk)
            if len(read) in (20, 50):
                busy(here, engines).faults = Faults(die_after_tokens=1)
        assert text_of(read) == STORY[: len(text_of(read))]
        assert len(text_of(read).split()) == 80
        assert (read[-1].usage.completion_tokens, read[-1].usage.headway["moves"]) == (80, 2)
        await here.until_empty()


async def test_a_third_loss_ends_the_call() -> None:
    async with (
        running(STEADY) as one,
        running(STEADY) as two,
        running(STEADY) as three,
        running(STEADY) as four,
        running_gateway(config_for([one, two, three, four])) as here,
    ):
        engines = [one, two, three, four]
        read = []
        with pytest.raises(openai.APIError, match="engine"):
            async for chunk in await chat(here, max_tokens=200):
                read.append(chunk)
                if len(read) in (20, 50, 80):
                    busy(here, engines).faults = Faults(die_after_tokens=1)
        await here.until_empty()


@pytest.mark.parametrize("dies_after", [30, 38])
async def test_a_stop_string_is_found_across_the_seam(dies_after: int) -> None:
    """The scripted engine finds stops of one word only, so the gateway finds this one."""
    words = [word.strip() for word in WORDS[42:44]]
    stop = " ".join(words)
    async with two_engines() as (engines, here):
        chunks = await lose_after(here, await chat(here, max_tokens=90, stop=[stop, "never said"]), engines, dies_after)
        assert text_of(chunks) == "".join(WORDS[:42]) + " "
        [choice] = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
        assert chunks[-1].usage.completion_tokens == 44
        await here.until_empty()


@pytest.mark.parametrize(
    "asked",
    [
        {"seed": 1},
        {"frequency_penalty": 0.5},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ],
)
async def test_what_cannot_go_on_fails_as_before(asked: dict[str, Any]) -> None:
    async with two_engines() as (engines, here):
        with pytest.raises(openai.APIError):
            await lose_after(here, await chat(here, max_tokens=60, **asked), engines, 20)
        await here.until_empty()


async def test_the_floor_counts_the_pause_and_the_refund_follows() -> None:
    express = [{"name": "fast", "floor_tps": 200.0, "price_multiple": 2.0}]
    settings = {"express": express, "curve": [[1, 250.0], [8, 240.0]]}
    async with two_engines(**settings) as (engines, here):
        stream = await chat(here, max_tokens=60, service_tier="fast")
        read = []
        async for chunk in stream:
            read.append(chunk)
            if len(read) == 20:
                [other] = [engine for engine in engines if engine is not busy(here, engines)]
                other.faults = Faults(slow_factor=30.0)
                busy(here, engines).faults = Faults(die_after_tokens=1)
        proof = read[-1].usage.headway
        assert (proof["moves"], proof["tier_served"], proof["kept"]) == (1, "fast", False)
        assert len(text_of(read).split()) == 60


async def test_the_bill_is_of_what_was_delivered_and_what_was_read_again_is_beside_it(tmp_path: Path) -> None:
    slow = Script(model=MODEL, first_token_s=0.02, step_s=((1, 0.02),))
    async with running(slow) as one, running(slow) as two, desk(tmp_path, [one, two]) as at:
        chunks = await lose_after(at.here, await chat(at.here, max_tokens=60, service_tier="fast"), [one, two], 20)
        usage = chunks[-1].usage
        [served] = [entry for entry in await at.entries() if entry.kind == "served"]
        assert (served.prompt_tokens, served.output_tokens, served.attempt) == (6, 60, 2)
        assert served.amount == 3 * (6 + 600) == usage.headway["billed_micro"] + usage.headway["refunded_micro"]
        before = len(text_of(chunks[:20]).split())
        assert served.repeated is not None
        assert 3 * (6 + before) <= served.repeated <= 3 * (6 + 60)
        [row] = make_bill(at.store.entries(), ("key",), {})
        assert row.repeated == served.repeated


async def test_a_fast_stream_that_could_not_go_on_is_billed_as_fast(tmp_path: Path) -> None:
    """While it waited it was downgraded. Nothing was served at that tier."""
    slow = Script(model=MODEL, first_token_s=0.02, step_s=((1, 0.02),))
    async with running(slow) as one, desk(tmp_path, [one], tier={"max_hold_s": 0.3}) as at:
        with pytest.raises(openai.APIError):
            async for _ in await chat(at.here, max_tokens=60, service_tier="fast"):
                if one.record()["tokens_sent"] == 20:
                    one.faults = Faults(die_after_tokens=1, refuse=True, unhealthy=True)
        [served] = [entry for entry in await at.entries() if entry.kind == "served"]
        assert (served.outcome, served.tier, served.prompt_tokens) == ("failed", "fast", 6)
        assert served.amount == 3 * (6 + 10 * served.output_tokens)
        assert served.output_tokens >= 20


async def test_draining_moves_streams_in_place_of_waiting() -> None:
    async with two_engines(seats=40) as (engines, here):
        streams = [asyncio.create_task(collect(await chat(here, max_tokens=1000))) for _ in range(6)]
        await until(lambda: all(engine.steps.running == 3 for engine in engines))
        drained = engines[0]
        assert isinstance(here.gateway.dispatch, LocalDispatch)
        here.gateway.dispatch.fleet.drain(drained.url)
        await until(lambda: not drained.steps.running, 3.0)
        await until(lambda: engines[1].steps.running == 6)
        for chunks in await asyncio.gather(*streams):
            assert len(text_of(chunks).split()) == 1000
        await here.until_empty()


@pytest.mark.parametrize("order", [Cut, Preempt])
async def test_an_order_that_crosses_the_end_of_an_answer_changes_nothing(order: type[Cut | Preempt]) -> None:
    async with two_engines() as (_, here):
        tell = here.gateway.tell

        def tell_and_cross(event: Event) -> None:
            tell(event)
            if isinstance(event, Finished):
                here.gateway.do(order(event.call_id))

        here.gateway.tell = tell_and_cross
        for _ in range(3):
            chunks = await collect(await chat(here, max_tokens=20))
            assert (chunks[-1].usage.completion_tokens, chunks[-1].usage.headway.get("moves")) == (20, None)
        await here.until_empty()


@pytest.mark.parametrize("moves_streams", [True, False])
async def test_streams_make_way_for_a_fast_call(moves_streams: bool) -> None:
    """About eight streams aboard each engine, of which a fast stream allows three beside it."""
    express = [{"name": "fast", "floor_tps": 100.0, "max_hold_s": 1.0}]
    curve = [[1, 250.0], [4, 120.0], [8, 60.0], [16, 30.0]]
    config = {"express": express, "curve": curve, "seats": 16, "moves_streams": moves_streams}
    async with two_engines(**config) as (engines, here):
        streams = [asyncio.create_task(collect(await chat(here, max_tokens=800))) for _ in range(16)]
        await until(lambda: sum(engine.steps.running for engine in engines) == 16)
        fast = await collect(await chat(here, max_tokens=20, service_tier="fast"))
        served = fast[-1].usage.headway
        assert served["tier_served"] == ("fast" if moves_streams else "standard")
        answers = await asyncio.gather(*streams)
        assert [len(text_of(chunks).split()) for chunks in answers] == [800] * 16
        moved = sum(chunks[-1].usage.headway.get("moves", 0) for chunks in answers)
        assert moved >= 3 if moves_streams else moved == 0
        await here.until_empty()


async def collect(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def until(condition: Any, limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)
