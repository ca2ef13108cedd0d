"""Calls through the whole gateway to a scripted engine, with the official SDKs: every endpoint, every ending."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import TextBlock

from headway.dispatch.record import replay
from headway.engines.scripted import Faults, Script, running
from tests.metric_table import check_page
from tests.running import MODEL, config_for, post, raw_server, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
ASK: Any = [{"role": "user", "content": "two words"}]
CHAT = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":20}'


async def test_the_openai_sdk() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        sdk = here.openai
        whole = await sdk.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
        assert len((whole.choices[0].message.content or "").split()) == 5
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 5
        stream = await sdk.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, stream=True)
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert all(chunk.usage is None for chunk in chunks), "usage is for those who ask"
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [5]
        completion = await sdk.completions.create(model=MODEL, prompt="hi", max_tokens=4)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 4
        streamed = await sdk.completions.create(model=MODEL, prompt="hi", max_tokens=4, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in streamed]) == completion.choices[0].text
        assert [model.id async for model in sdk.models.list()] == [MODEL]


async def test_the_anthropic_sdk() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        sdk = here.anthropic
        whole = await sdk.messages.create(model=MODEL, messages=ASK, max_tokens=5)
        assert isinstance(whole.content[0], TextBlock)
        assert whole.usage.output_tokens == 5
        async with sdk.messages.stream(model=MODEL, messages=ASK, max_tokens=5) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == whole.content[0].text
        assert final.usage.output_tokens == 5
        counted = await sdk.messages.count_tokens(model=MODEL, messages=ASK)
        assert counted.input_tokens == whole.usage.input_tokens
        assert [model.id async for model in sdk.models.list()] == [MODEL]


async def test_errors_have_the_form_of_their_dialect() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        with pytest.raises(openai.NotFoundError, match="Available: scripted"):
            await here.openai.chat.completions.create(model="nope", messages=ASK)
        with pytest.raises(anthropic.NotFoundError, match="Available: scripted"):
            await here.anthropic.messages.create(model="nope", messages=ASK, max_tokens=1)
        with pytest.raises(openai.BadRequestError, match="chat_template") as refused:
            await here.openai.chat.completions.create(model=MODEL, messages=ASK, extra_body={"chat_template": "x"})
        assert refused.value.param == "chat_template"
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await here.anthropic.messages.create(
                model=MODEL, messages=ASK, max_tokens=1, extra_body={"mcp_servers": [{"url": "x"}]}
            )
        # The engine's own word, in the dialect's form.
        with pytest.raises(openai.BadRequestError) as refused:
            await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=9_000)
        assert refused.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError) as said:
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=9_000)
        assert "invalid_request_error" in str(said.value.body)


async def test_a_replica_carries_no_more_than_its_seats() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], seats=3)) as here:

        async def call() -> int:
            done = await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=10)
            return done.usage.completion_tokens if done.usage else 0

        assert await asyncio.gather(*[call() for _ in range(20)]) == [10] * 20
        assert engine.record()["highest_running"] == 3
        await here.until_empty()


async def test_a_call_that_waits_too_long_is_refused_with_a_retry_after() -> None:
    slow = Script(model=MODEL, step_s=((1, 0.05),))
    tier = {"max_hold_s": 0.2}
    async with running(slow) as engine, running_gateway(config_for([engine], seats=1, tier=tier)) as here:
        first = asyncio.create_task(here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=20))
        while not here.gateway.machine.calls:
            await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError) as refused:
            await here.openai.completions.create(model=MODEL, prompt="hi")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.RateLimitError) as said:
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=1)
        assert int(said.value.response.headers["retry-after"]) >= 1
        await first
        await here.until_empty()


async def test_an_engine_that_is_overloaded_is_told_as_such() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        engine.faults = Faults(refuse=True)
        with pytest.raises(openai.InternalServerError, match="overloaded") as refused:
            await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5)
        assert (refused.value.status_code, refused.value.code) == (503, "engine_full")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        with pytest.raises(anthropic.APIStatusError, match="overloaded") as said:
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=5)
        assert said.value.status_code == 529


async def test_without_a_replica_the_answer_is_503_and_529() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        engine.faults = Faults(unhealthy=True)
        await here.until_up(0)
        with pytest.raises(openai.InternalServerError) as refused:
            await here.openai.completions.create(model=MODEL, prompt="hi")
        assert refused.value.status_code == 503
        assert "retry-after" in refused.value.response.headers
        with pytest.raises(anthropic.APIStatusError) as said:
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=1)
        assert said.value.status_code == 529
        assert "overloaded_error" in str(said.value.body)
        assert (await here.raw(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")).startswith(
            b"HTTP/1.1 503"
        )
        engine.faults = Faults()
        await here.until_up(1)
        await here.openai.completions.create(model=MODEL, prompt="hi")


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_engine_that_dies_before_the_first_byte_is_replaced(streaming: bool) -> None:
    async with running(QUICK) as bad, running(QUICK) as good, running_gateway(config_for([bad, good])) as here:
        bad.faults = Faults(die_after_tokens=0)
        for _ in range(6):
            body = CHAT if streaming else CHAT.replace(b"true", b"false")
            answer = await here.raw(post("/v1/chat/completions", body))
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.count(b"[DONE]") == streaming
        assert good.record()["finished"] >= 6
        await here.until_empty()


async def test_a_call_is_not_walked_through_the_whole_fleet() -> None:
    async with running(QUICK) as a, running(QUICK) as b, running(QUICK) as c:  # noqa: SIM117
        async with running_gateway(config_for([a, b, c], probe_interval_s=30.0)) as here:
            for engine in (a, b, c):
                engine.faults = Faults(die_after_tokens=0)
            with pytest.raises(openai.InternalServerError, match="failed before it answered"):
                await here.openai.completions.create(model=MODEL, prompt="hi")
            died = [engine.record()["died"] for engine in (a, b, c)]
            # Each engine the call reached may also have died on the probe that followed.
            assert sum(count > 0 for count in died) == 2


async def test_an_engine_that_dies_in_the_middle_gives_an_error_and_no_terminator() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        engine.faults = Faults(die_after_tokens=5)
        chat = await here.raw(post("/v1/chat/completions", CHAT))
        assert b'data: {"error":{"message":' in chat
        assert b"[DONE]" not in chat
        await here.until_up(1)
        messages = await here.raw(post("/v1/messages", CHAT))
        assert b'event: error\ndata: {"type":"error","error":{"type":"api_error"' in messages
        assert b"message_stop" not in messages
        await here.until_up(1)
        stream = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20, stream=True)
        with pytest.raises(openai.APIError, match="closed the connection"):
            [chunk async for chunk in stream]
        await here.until_empty()


async def test_an_engine_that_answers_in_one_piece_although_a_stream_was_asked_for_is_read_so() -> None:
    whole = b'{"choices":[{"index":0,"message":{"content":"all"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        asked.append(await reader.readexactly(int(length or 0)))
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(whole) + whole)

    async with raw_server(answer) as url:
        engine: Any = SimpleNamespace(url=url)
        async with running_gateway(config_for([engine])) as here:
            got = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
            assert got.choices[0].message.content == "all"
            assert any(b'"stream":true' in body for body in asked)


async def test_an_engine_whose_answer_is_not_json_is_a_lost_engine() -> None:
    """Whole, or in the middle of a stream, after an event that was sound."""
    sound = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length or 0))
        pieces = [b"no JSON"] if b"/chat/" in head else [b"{}"]
        if b'"stream":true' in body:
            pieces = [sound, b"data: {no JSON}\n\n"]
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with raw_server(answer) as url:
        engine: Any = SimpleNamespace(url=url)
        async with running_gateway(config_for([engine])) as here:
            streamed = await here.raw(post("/v1/chat/completions", CHAT))
            assert b'"content":"a"' in streamed
            assert b'data: {"error":{"message":"the engine\'s answer cannot be read' in streamed
            await here.until_up(1)
            whole = await here.raw(post("/v1/chat/completions", CHAT.replace(b"true", b"false")))
            assert whole.startswith(b"HTTP/1.1 503")
            await here.until_empty()


async def test_a_full_engine_sends_the_call_elsewhere_or_back() -> None:
    async with running(QUICK) as full, running(QUICK) as other, running_gateway(config_for([full, other])) as here:
        full.faults = Faults(refuse=True)
        for _ in range(4):
            await here.openai.completions.create(model=MODEL, prompt="hi")
        other.faults = Faults(refuse=True)
        with pytest.raises(openai.InternalServerError, match="overloaded"):
            await here.openai.completions.create(model=MODEL, prompt="hi")


async def test_an_engine_that_stands_still_is_found_and_its_calls_are_served_elsewhere() -> None:
    async with (
        running(QUICK) as stuck,
        running(QUICK) as other,
        running_gateway(config_for([stuck, other], stall_s=0.5)) as here,
    ):
        stuck.faults = Faults(hang_after_tokens=0)
        calls = [here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5) for _ in range(4)]
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*calls)
        assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [5] * 4
        assert here.gateway.machine.pools[MODEL].open_replicas == 1
        stuck.faults = Faults()
        await here.until_up(2)


async def test_a_stream_on_an_engine_that_stands_still_is_told() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], stall_s=0.5)) as here:
        engine.faults = Faults(hang_after_tokens=5)
        answer = await here.raw(post("/v1/messages", CHAT))
        assert b"event: error" in answer
        assert b"message_stop" not in answer
        await here.until_empty()


async def test_a_slow_but_living_engine_is_left_alone() -> None:
    slow = Script(model=MODEL, first_token_s=1.2, step_s=((1, 0.002),))
    async with running(slow) as engine, running_gateway(config_for([engine], stall_s=2.0)) as here:
        await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=5)
        assert here.gateway.machine.pools[MODEL].open_replicas == 1


async def test_a_recorded_run_gives_the_same_actions_again(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    async with running(QUICK) as a, running(QUICK) as b:  # noqa: SIM117
        async with running_gateway(config_for([a, b], seats=2, tier={"max_hold_s": 0.3}), record) as here:
            a.faults = Faults(die_after_tokens=3, times=4)
            calls = [here.raw(post("/v1/chat/completions", CHAT)) for _ in range(60)]
            await asyncio.gather(*calls)
            for _ in range(20):  # one tick may have refused many of those
                await here.raw(post("/v1/chat/completions", CHAT))
    result = replay(record)
    assert result.first_difference is None
    assert result.events >= 100


async def test_metrics_count_what_was_served() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        for _ in range(3):
            await here.raw(post("/v1/chat/completions", CHAT))
        answer = await here.raw(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        check_page(answer.partition(b"\r\n\r\n")[2], "gateway", "process", "policy")
        page = answer.decode()
        assert 'headway_calls_total{model="scripted",outcome="finished",tier="standard"} 3.0' in page
        assert 'headway_tokens_total{kind="output",model="scripted",tier="standard"} 60.0' in page
        assert 'headway_output_tokens_per_second_count{model="scripted",tier="standard"} 3.0' in page
        assert f'headway_replica_open{{model="scripted",replica="{engine.url}"}} 1.0' in page


async def test_a_seat_that_has_become_void_is_not_used_and_the_call_gets_another() -> None:
    """As when the core that granted it may no longer decide."""
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        dispatch, asked = here.gateway.dispatch, 0
        seen = len(engine.record()["requests"])

        def may_send(epoch: int) -> bool:
            nonlocal asked
            asked += 1
            return epoch == 0 and asked > 2

        dispatch.may_send = may_send  # type: ignore[method-assign]
        whole = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5)
        assert whole.usage is not None
        assert (whole.usage.completion_tokens, asked) == (5, 3)
        assert len(engine.record()["requests"]) == seen + 1
        await here.until_empty()
        assert here.gateway.machine.pools[MODEL].aboard(engine.url) == 0
