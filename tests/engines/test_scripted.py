"""The scripted engine, seen as a gateway sees it: from the other end of a socket."""

import asyncio
import heapq
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest
import uvloop

from headway.engines.scripted import Faults, Script, ScriptedEngine, parse_curve, running
from headway.engines.scripted import steps as scripted_steps
from headway.engines.scripted.formats import WORDS
from headway.engines.scripted.steps import RequestRecord, StepLoop

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
QUICK = Script(model="m", first_token_s=0.001, step_s=((1, 0.001),))
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": "one two three"}
    if path != COMPLETIONS:
        prompt = {"messages": [{"role": "user", "content": "one two three"}]}
    return {"model": "m", "max_tokens": 3, **prompt, **fields}


class Connection:
    """A bare HTTP/1.1 client, which shows each chunk as it came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status, self.headers = 0, dict[str, str]()

    @classmethod
    async def to(cls, url: str) -> "Connection":
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, path: str, body: Any = None, request_id: str = "") -> None:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: engine\r\n"
        head += f"content-length: {len(content)}\r\n" + (f"x-request-id: {request_id}\r\n" if request_id else "")
        self.writer.write(head.encode() + b"\r\n" + content)
        await self.writer.drain()

    async def read_head(self) -> None:
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = dict(line.split(": ", 1) for line in lines)

    async def read_chunk(self) -> bytes:
        """The next chunk, empty at the terminator; IncompleteReadError where the connection was cut."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def read_chunks(self) -> list[bytes]:
        chunks = []
        while chunk := await self.read_chunk():
            chunks.append(chunk)
        return chunks

    async def read_body(self) -> bytes:
        return await self.reader.readexactly(int(self.headers["content-length"]))

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def open_call(url: str, path: str, body: Any = None, request_id: str = "") -> Connection:
    connection = await Connection.to(url)
    await connection.ask(path, body, request_id)
    return connection


async def fetch(url: str, path: str, body: Any = None, request_id: str = "") -> tuple[int, bytes]:
    connection = await open_call(url, path, body, request_id)
    await connection.read_head()
    content = await connection.read_body()
    await connection.close()
    return connection.status, content


async def fetch_json(url: str, path: str, body: Any = None, request_id: str = "") -> Any:
    return json.loads((await fetch(url, path, body, request_id))[1])


async def stream(url: str, path: str, **fields: Any) -> list[bytes]:
    connection = await open_call(url, path, body_for(path, stream=True, **fields), "r")
    await connection.read_head()
    assert connection.status == 200
    assert connection.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = await connection.read_chunks()
    await connection.close()
    return chunks


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():  # the test's own timeout ends a wait for what never comes
        await asyncio.sleep(0.001)


async def read_until_cut(connection: Connection) -> int:
    """How many chunks came before the connection was cut; it must be cut."""
    count = 0
    try:
        while await connection.read_chunk():
            count += 1
    except asyncio.IncompleteReadError:
        return count
    raise AssertionError("a terminator, where the stream should have been cut")


def with_engine(script: Script, scenario: Callable[[ScriptedEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(script) as engine:
            await scenario(engine)

    uvloop.run(run())


def without_clocks(chunk: bytes) -> str:
    text = re.sub(r'"created":\d+', '"created":0', chunk.decode())
    return re.sub(r'"metrics":\{[^}]*\}', '"metrics":{}', text)


# Speed


def test_curve_is_linear_between_its_points_and_flat_outside() -> None:
    script = Script(step_s=parse_curve("4:10,8:30,16:40"))
    assert [script.step_time_s(batch) for batch in (1, 4, 6, 8, 12, 16, 99)] == pytest.approx(
        [0.01, 0.01, 0.02, 0.03, 0.035, 0.04, 0.04]
    )


@pytest.mark.parametrize("points", [(), ((2, 0.1), (1, 0.2)), ((1, 0.1), (1, 0.2))])
def test_curve_needs_rising_batches(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="rising"):
        Script(step_s=points)


class StepsWithoutWaiting(StepLoop):
    """The step loop with its timers run in the order of their deadlines, at once."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.now_s = 0.0
        self.due: list[tuple[float, int, asyncio.TimerHandle]] = []

    def _at(self, due_s: float, callback: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(due_s, callback, arguments, asyncio.get_running_loop())
        heapq.heappush(self.due, (due_s, len(self.due), timer))
        return timer

    def run(self) -> None:
        while self.due:
            self.now_s, _, timer = heapq.heappop(self.due)
            if not timer.cancelled():
                timer._run()


def test_each_step_lasts_what_its_batch_costs_and_a_newcomer_boards_at_the_next() -> None:
    async def scenario() -> tuple[list[float], list[float]]:
        steps = StepsWithoutWaiting(Script(first_token_s=1.0, step_s=((1, 0.1), (2, 0.3))))
        first_times, second_times = list[float](), list[float]()
        first = steps.board("a", 1, 5, lambda _: first_times.append(steps.now_s))
        second = steps.board("b", 1, 3, lambda _: second_times.append(steps.now_s))
        second.seated_s = first.seated_s
        steps.run()
        assert first.record.state == second.record.state == "finished"
        return [at_s - first.seated_s for at_s in first_times], [at_s - first.seated_s for at_s in second_times]

    first_times, second_times = asyncio.run(scenario())
    # The second's first token falls into the first's first step, so it boards at 1.1 s.
    assert first_times == pytest.approx([1.0, 1.1, 1.4, 1.7, 1.8], abs=1e-2)
    assert second_times == pytest.approx([1.0, 1.4, 1.7], abs=1e-2)


def test_no_token_comes_before_its_time() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        for slow_factor in (1.0, 3.0):
            engine.faults = Faults(slow_factor=slow_factor)
            connection = await Connection.to(engine.url)
            start_s = time.monotonic()
            await connection.ask(COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=20))
            await connection.read_head()
            for number in range(20):
                await connection.read_chunk()
                assert time.monotonic() - start_s >= slow_factor * (0.02 + 0.005 * number)
            await connection.close()

    with_engine(Script(model="m", first_token_s=0.02, step_s=((1, 0.005),)), scenario)


# Wire formats


def test_chat_stream() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        chunks = [without_clocks(chunk) for chunk in await stream(engine.url, CHAT, **USAGE)]
        head = 'data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":0,"model":"m","choices":'
        details = '"completion_tokens_details":null}'
        assert chunks == [
            head + '[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            '"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0,' + details + ","
            '"prompt_token_ids":null,"prompt_text":null}\n\n',
            head + '[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":null}],'
            '"usage":{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1,' + details + "}\n\n",
            head + '[{"index":0,"delta":{"content":" morning"},"logprobs":null,"finish_reason":null,"token_ids":null}],'
            '"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,' + details + "}\n\n",
            head + '[{"index":0,"delta":{"content":" train"},"logprobs":null,"finish_reason":"length",'
            '"stop_reason":null,"token_ids":null}],'
            '"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3,' + details + "}\n\n",
            head + '[],"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3},'
            '"system_fingerprint":"vllm-0.32.0-scripted","metrics":{}}\n\n',
            "data: [DONE]\n\n",
        ]

    with_engine(QUICK, scenario)


@pytest.mark.parametrize(
    ("options", "usage_on_tokens", "usage_at_end"),
    [({}, False, False), ({"include_usage": True}, False, True), (USAGE["stream_options"], True, True)],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_comes_as_asked(path: str, options: Any, *, usage_on_tokens: bool, usage_at_end: bool) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        *events, done = await stream(engine.url, path, stream_options=options)
        assert done == b"data: [DONE]\n\n"
        parsed = [json.loads(event.removeprefix(b"data: ")) for event in events]
        last = [event for event in parsed if not event["choices"]]
        assert len(last) == usage_at_end
        assert all(event["usage"]["completion_tokens"] == 3 for event in last)
        assert {"usage" in event for event in parsed if event["choices"]} == {usage_on_tokens}

    with_engine(QUICK, scenario)


def test_completion_stream() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        chunks = [without_clocks(chunk) for chunk in await stream(engine.url, COMPLETIONS, max_tokens=2, **USAGE)]
        head = 'data: {"id":"cmpl-r","object":"text_completion","created":0,"model":"m","choices":'
        ids = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],'
        assert chunks == [
            head + '[{"index":0,"text":" the","logprobs":null,"finish_reason":null,' + ids + ""
            '"usage":{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1}}\n\n',
            head + '[{"index":0,"text":" morning","logprobs":null,"finish_reason":"length",' + ids + ""
            '"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}\n\n',
            head + '[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2},'
            '"system_fingerprint":"vllm-0.32.0-scripted","metrics":{}}\n\n',
            "data: [DONE]\n\n",
        ]

    with_engine(QUICK, scenario)


def test_messages_stream() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        assert [chunk.decode() for chunk in await stream(engine.url, MESSAGES, max_tokens=1, system="be brief")] == [
            'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-r","type":"message",'
            '"role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,'
            '"usage":{"input_tokens":9,"output_tokens":0}}}\n\n',
            "event: content_block_start\n"
            'data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}\n\n',
            "event: content_block_delta\n"
            'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":" the"},"index":0}\n\n',
            'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
            'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens",'
            '"stop_sequence":null},"usage":{"input_tokens":9,"output_tokens":1}}\n\n',
            'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ]

    with_engine(QUICK, scenario)


def test_whole_answers() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        usage = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}
        chat = await fetch_json(engine.url, CHAT, body_for(CHAT), "r")
        assert ",".join(chat) == (
            "id,object,created,model,choices,service_tier,system_fingerprint,usage,prompt_logprobs,prompt_token_ids,"
            "prompt_text,kv_transfer_params,ec_transfer_params,metrics"
        )
        assert chat["object"] == "chat.completion"
        assert chat["choices"][0]["message"]["content"] == " the morning train"
        assert chat["choices"][0]["finish_reason"] == "length"
        assert chat["usage"] == usage | {"prompt_tokens_details": None, "completion_tokens_details": None}
        assert chat["metrics"]["time_to_first_token_ms"] >= 1
        completion = await fetch_json(engine.url, COMPLETIONS, body_for(COMPLETIONS), "r")
        assert completion["choices"][0]["text"] == " the morning train"
        assert completion["id"] == "cmpl-r"
        assert await fetch_json(engine.url, MESSAGES, body_for(MESSAGES), "r") == {
            "id": "chatcmpl-r",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": " the morning train"}],
            "model": "m",
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 7, "output_tokens": 3},
        }

    with_engine(QUICK, scenario)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_n_choices_are_n_requests_in_one_answer(path: str) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        *tokens, usage, done = await stream(engine.url, path, n=3, **USAGE)
        for index in range(3):
            own = [chunk for chunk in tokens if b'"choices":[{"index":%d,' % index in chunk]
            assert b'"completion_tokens":3' in own[-1]
            assert [word for word in (b" the", b" morning", b" train") if any(word in chunk for chunk in own)] == [
                b" the", b" morning", b" train"
            ]  # fmt: skip
        assert b'"prompt_tokens":7,"total_tokens":16,"completion_tokens":9' in usage
        assert done == b"data: [DONE]\n\n"
        assert engine.record()["highest_running"] == 3
        whole = await fetch_json(engine.url, path, body_for(path, n=2))
        assert [choice["index"] for choice in whole["choices"]] == [0, 1]
        assert whole["usage"]["completion_tokens"] == 6
        leaver = await open_call(engine.url, path, body_for(path, n=4, max_tokens=8000))
        await eventually(lambda: engine.record()["running"] == 4)
        await leaver.close()
        await eventually(lambda: engine.record()["aborted"] == 4)
        assert engine.record()["running"] == 0

    with_engine(QUICK, scenario)


def test_a_stop_word_ends_the_answer_unsent_but_counted() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        *_, last, usage, _ = await stream(engine.url, CHAT, max_tokens=9, stop=["train"], **USAGE)
        assert b'"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":"train"' in last
        assert b'"completion_tokens":3}' in usage
        *_, delta, _, ending, _ = await stream(engine.url, MESSAGES, max_tokens=9, stop_sequences=[" train"])
        assert b'"text":" morning"' in delta
        assert b'{"stop_reason":"stop_sequence","stop_sequence":" train"}' in ending
        whole = await fetch_json(engine.url, COMPLETIONS, body_for(COMPLETIONS, stop="train", max_tokens=9))
        assert whole["choices"][0]["text"] == " the morning"
        assert whole["choices"][0]["finish_reason"] == "stop"

    with_engine(QUICK, scenario)


def test_words_do_not_repeat_soon() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 200
    assert all(re.fullmatch(" [a-z]+", word) for word in WORDS)


@pytest.mark.parametrize(
    ("path", "fields", "status", "kind"),
    [
        (CHAT, {"model": "nope"}, 404, "NotFoundError"),
        (MESSAGES, {"model": "nope"}, 404, "NotFoundError"),
        (MESSAGES + "/count_tokens", {"model": "nope"}, 404, "NotFoundError"),
        (CHAT, {"service_tier": "fast"}, 400, "BadRequestError"),
        (CHAT, {"max_tokens": 0}, 400, "BadRequestError"),
        (COMPLETIONS, {"max_tokens": 8190}, 400, "BadRequestError"),
        (CHAT, {"max_tokens": "many"}, 400, "Bad Request"),
    ],
)
def test_errors(path: str, fields: dict[str, Any], status: int, kind: str) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        got, content = await fetch(engine.url, path, body_for(path) | fields)
        error = json.loads(content)
        assert (got, error["error"]["type"]) == (status, kind)
        assert error.get("type") == ("error" if path.startswith(MESSAGES) else None)
        if not path.startswith(MESSAGES):
            assert error["error"]["code"] == status

    with_engine(QUICK, scenario)


def test_the_other_endpoints() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        assert (await fetch_json(engine.url, "/v1/models"))["data"][0]["id"] == "m"
        assert await fetch(engine.url, "/health") == (200, b"")
        counts = await fetch_json(engine.url, MESSAGES + "/count_tokens", body_for(MESSAGES))
        assert counts == {"input_tokens": 7, "context_management": {"original_input_tokens": 7}}
        assert (await fetch(engine.url, "/nope"))[0] == 404
        assert (await fetch(engine.url, CHAT))[0] == 405
        assert (await fetch(engine.url, CHAT, b'{"model":'))[0] == 400
        await fetch(engine.url, CHAT, body_for(CHAT))
        metrics = (await fetch(engine.url, "/metrics"))[1].decode()
        assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n' in metrics
        assert 'vllm:prompt_tokens_total{engine="0",model_name="m"} 7.0\n' in metrics
        assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0\n' in metrics

    with_engine(QUICK, scenario)


def test_a_connection_serves_one_answer_after_another() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        connection = await Connection.to(engine.url)
        for path in (CHAT, MESSAGES, COMPLETIONS):
            await connection.ask(path, body_for(path, stream=True))
            await connection.read_head()
            assert await connection.read_chunks()
            await connection.ask(path, body_for(path))
            await connection.read_head()
            assert json.loads(await connection.read_body())["model"] == "m"
        assert engine.record()["connections"] == 1
        await connection.close()
        await eventually(lambda: engine.record()["connections"] == 0)

    with_engine(QUICK, scenario)


def test_the_official_clients_read_it() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        async with openai.AsyncOpenAI(api_key="-", base_url=engine.url + "/v1") as client:
            text = ""
            async for chunk in await client.chat.completions.create(
                model="m", max_tokens=3, stream=True, messages=[{"role": "user", "content": "hello"}]
            ):
                text += chunk.choices[0].delta.content or ""
            assert text == " the morning train"
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="nope", prompt="hello")
        async with (
            anthropic.AsyncAnthropic(api_key="-", base_url=engine.url) as claude,
            claude.messages.stream(model="m", max_tokens=3, messages=[{"role": "user", "content": "hello"}]) as events,
        ):
            assert await events.get_final_text() == " the morning train"

    with_engine(QUICK, scenario)


# Seats


def test_beyond_its_seats_requests_wait_in_order_and_beyond_its_queue_are_refused() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        engine.faults = Faults(hang_after_tokens=0)  # so that nobody moves while we look
        ended = list[str]()

        async def call(name: str) -> None:
            await fetch(engine.url, CHAT, body_for(CHAT), name)
            ended.append(name)

        calls = list[asyncio.Task[None]]()
        for number, name in enumerate("abc", start=1):
            calls.append(asyncio.create_task(call(name)))
            await eventually(lambda number=number: len(engine.record()["requests"]) == number)  # type: ignore[misc]
        assert [engine.record()[key] for key in ("running", "waiting")] == [1, 2]
        status, content = await fetch(engine.url, CHAT, body_for(CHAT))
        assert status == 503
        error = json.loads(content)["error"]
        assert (error["type"], error["param"], error["code"]) == ("Service Unavailable", None, 503)
        engine.faults = Faults()
        await asyncio.gather(*calls)
        record = engine.record()
        assert ended == ["a", "b", "c"]
        assert (record["finished"], record["refused"], record["highest_running"]) == (3, 1, 1)

    with_engine(Script(model="m", first_token_s=0.001, step_s=((1, 0.001),), max_num_seqs=1, max_queued=2), scenario)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_seat(streamed: bool) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        leaver = await open_call(engine.url, CHAT, body_for(CHAT, stream=streamed, max_tokens=8000), "leaver")
        await eventually(lambda: engine.record()["tokens_sent"] > 2)
        waiter = await open_call(engine.url, CHAT, body_for(CHAT, stream=streamed), "waiter")
        impatient = await open_call(engine.url, CHAT, body_for(CHAT, stream=streamed), "impatient")
        await eventually(lambda: engine.record()["waiting"] == 2)
        await impatient.close()
        await eventually(lambda: engine.record()["waiting"] == 1)
        await leaver.close()
        await waiter.read_head()
        await eventually(lambda: engine.record()["finished"] == 1)
        record = engine.record()
        assert (record["running"], record["waiting"], record["aborted"]) == (0, 0, 2)
        assert {name: request.state for name, request in record["requests"].items()} == {
            "leaver": "aborted",
            "waiter": "finished",
            "impatient": "aborted",
        }
        assert record["requests"]["leaver"].tokens_sent + 3 == record["tokens_sent"]
        await waiter.close()

    with_engine(Script(model="m", first_token_s=0.001, step_s=((1, 0.001),), max_num_seqs=1), scenario)


def test_the_record_keeps_only_the_last_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_steps, "KEPT_REQUESTS", 2)

    async def scenario(engine: ScriptedEngine) -> None:
        for name in "abc":
            await fetch(engine.url, CHAT, body_for(CHAT), name)
        record = await fetch_json(engine.url, "/scripted/record")
        assert list(record["requests"]) == ["b", "c"]
        assert all((one["tokens_sent"], one["state"]) == (3, "finished") for one in record["requests"].values())
        assert (record["finished"], record["tokens_sent"]) == (3, 9)

    with_engine(QUICK, scenario)


def test_the_record_says_in_whose_company_a_request_ran() -> None:
    async def scenario() -> tuple[list[RequestRecord], list[tuple[int, int]], int]:
        steps = StepsWithoutWaiting(Script(first_token_s=1.0, step_s=((1, 0.1),), max_num_seqs=3))

        def give(number: int) -> None:
            if number == 1:
                steps.abort(waits)
            if number == 4:
                steps.abort(leaves)

        streams = [steps.board(name, 1, tokens, give if name == "stays" else lambda _: None) for name, tokens in calls]
        _, leaves, _, waits = streams
        steps.run()
        return [stream.record for stream in streams], list(steps.running_changes), steps.steps_begun

    calls = [("stays", 6), ("leaves", 9), ("is short", 1), ("waits", 9)]
    (stays, leaves, short, waits), changes, steps_begun = asyncio.run(scenario())
    assert steps_begun == 5  # one for every token but the first
    assert changes == [(1, 3), (2, 2), (4, 1)]  # whoever prefills is company too
    assert (stays.first_step, stays.last_step) == (1, 5)
    assert (leaves.first_step, leaves.last_step) == (1, 3)
    assert (short.first_step, short.last_step) == (1, 1)
    assert (waits.first_step, waits.last_step) == (None, 0)


def test_the_record_has_the_times_of_the_first_and_the_last_token() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        before_s = time.monotonic()
        await stream(engine.url, CHAT, max_tokens=11)
        record = engine.record()["requests"]["r"]
        # A token can be late by the loop's own lateness, never early; the ones after it keep to the schedule,
        # so the distance between two recorded times may be shorter than their steps.
        assert before_s + 0.02 <= record.first_token_s < record.ended_s
        assert record.ended_s >= before_s + 0.02 + 10 * 0.005
        assert record.ended_s <= time.monotonic()
        assert record.last_step - record.first_step == 9

    with_engine(Script(model="m", first_token_s=0.02, step_s=((1, 0.005),)), scenario)


@pytest.mark.parametrize("streamed", [True, False])
def test_the_record_has_the_times_of_the_first_and_the_last_byte(streamed: bool) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        content = json.dumps(body_for(CHAT, stream=streamed)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: engine\r\nx-request-id: r\r\ncontent-length: {len(content)}\r\n\r\n"
        connection = await Connection.to(engine.url)
        before_s = time.monotonic()
        connection.writer.write(head.encode() + content[:10])
        await fetch(engine.url, "/health")  # the engine has read what came before
        between_s = time.monotonic()
        connection.writer.write(content[10:])
        await connection.read_head()
        await (connection.read_chunks() if streamed else connection.read_body())
        await connection.close()
        record = engine.record()["requests"]["r"]
        assert before_s <= record.received_s <= between_s < record.first_token_s
        assert record.ended_s <= record.answered_s <= time.monotonic()

    with_engine(QUICK, scenario)


def test_the_record_keeps_only_the_last_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_steps, "KEPT_CHANGES", 3)

    async def scenario(engine: ScriptedEngine) -> None:
        for lengths in ((3,), (9, 3), (9, 3)):
            calls = [fetch(engine.url, CHAT, body_for(CHAT, max_tokens=length)) for length in lengths]
            await asyncio.gather(*calls)
        changes = engine.record()["running_changes"]
        assert len(changes) == 3
        assert [running for _, running in changes] == [1, 2, 1]

    with_engine(QUICK, scenario)


# Faults


async def set_faults(engine: ScriptedEngine, **faults: Any) -> None:
    assert (await fetch(engine.url, "/scripted/faults", faults))[0] == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
def test_a_stream_dies_after_its_tokens(path: str) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        await set_faults(engine, die_after_tokens=2, times=1)
        connection = await open_call(engine.url, path, body_for(path, stream=True), "r")
        await connection.read_head()
        before_tokens = {CHAT: 1, COMPLETIONS: 0, MESSAGES: 2}[path]
        assert await read_until_cut(connection) == before_tokens + 2
        await connection.close()
        record = engine.record()
        assert (record["requests"]["r"].state, record["requests"]["r"].tokens_sent) == ("died", 2)
        assert record["requests"]["r"].answered_s is None
        assert await stream(engine.url, path)  # once was enough

    with_engine(QUICK, scenario)


# A stream's first bytes are its headers, before any token: only 0 comes before those.
@pytest.mark.parametrize(("streamed", "tokens"), [(True, 0), (False, 0), (False, 2)])
def test_death_before_the_first_byte(streamed: bool, tokens: int) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        await set_faults(engine, die_after_tokens=tokens)
        connection = await open_call(engine.url, CHAT, body_for(CHAT, stream=streamed))
        assert await connection.reader.read() == b""
        await connection.close()
        assert engine.record()["died"] == 1
        assert engine.record()["running"] == 0

    with_engine(QUICK, scenario)


def test_a_fault_without_times_takes_the_streams_that_run_already() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        connection = await open_call(engine.url, CHAT, body_for(CHAT, stream=True, max_tokens=8000), "r")
        await eventually(lambda: engine.record()["tokens_sent"] > 5)
        await set_faults(engine, die_after_tokens=5)
        await connection.read_head()
        assert await read_until_cut(connection) == 1 + engine.record()["requests"]["r"].tokens_sent
        await connection.close()

    with_engine(QUICK, scenario)


def test_a_hang_stops_everyone_until_the_faults_are_cleared() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        await set_faults(engine, hang_after_tokens=4)
        runner = await open_call(engine.url, COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=8))
        await runner.read_head()
        for _ in range(4):
            await runner.read_chunk()
        newcomer = await open_call(engine.url, COMPLETIONS, body_for(COMPLETIONS, stream=True))
        await newcomer.read_head()  # as from vLLM, headers come before the first token
        await eventually(lambda: None in engine.steps.prefilling.values())  # its token is due, and held
        assert (await fetch(engine.url, "/health"))[0] == 200
        record = await fetch_json(engine.url, "/scripted/record")
        assert (record["running"], record["tokens_sent"]) == (2, 4)
        await set_faults(engine)
        assert len(await runner.read_chunks()) == 4 + 1
        assert len(await newcomer.read_chunks()) == 3 + 1
        for connection in (runner, newcomer):
            await connection.close()

    with_engine(QUICK, scenario)


def test_a_slow_factor_slows_every_step_from_the_next_on() -> None:
    async def scenario() -> list[float]:
        steps = StepsWithoutWaiting(Script(first_token_s=1.0, step_s=((1, 0.1),)))
        times = list[float]()

        def give(number: int) -> None:
            times.append(steps.now_s)
            steps.faults = Faults(slow_factor=4.0 if number == 3 else 1.0)

        steps.board("a", 1, 6, give)
        steps.run()
        return [after - before for before, after in pairwise(times)]

    assert asyncio.run(scenario()) == pytest.approx([0.1, 0.1, 0.4, 0.1, 0.1], abs=1e-2)


def test_refuse_and_unhealthy() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        await set_faults(engine, refuse=True, unhealthy=True)
        for path in (CHAT, COMPLETIONS, MESSAGES):
            assert (await fetch(engine.url, path, body_for(path)))[0] == 503
        assert (await fetch(engine.url, "/health"))[0] == 503
        assert engine.record()["refused"] == 3
        await set_faults(engine)
        assert (await fetch(engine.url, CHAT, body_for(CHAT)))[0] == 200
        assert (await fetch(engine.url, "/health"))[0] == 200

    with_engine(QUICK, scenario)


@pytest.mark.parametrize("faults", [b'{"die":1}', b'{"times":"x"}', b"[", b"[]"])
def test_a_misspelt_fault_is_an_error(faults: bytes) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        assert (await fetch(engine.url, "/scripted/faults", faults))[0] == 400
        assert engine.faults == Faults()

    with_engine(QUICK, scenario)


# As a process of its own


def with_process(scenario: Callable[[str, asyncio.subprocess.Process], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        options = ["--port=0", "--model=m", "--first-token-ms=1", "--step-ms=1:1,64:2", "--max-num-seqs=64"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headway", "mock-engine", *options, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            url = (await process.stdout.readline()).decode().split()[3]
            await scenario(url, process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    uvloop.run(run())


def test_the_process_exits_after_its_tokens() -> None:
    async def scenario(url: str, process: asyncio.subprocess.Process) -> None:
        await fetch(url, "/scripted/faults", {"exit_after_tokens": 3})
        connection = await open_call(url, COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=9))
        await connection.read_head()
        assert await read_until_cut(connection) == 3
        await connection.close()
        assert await process.wait() == 9

    with_process(scenario)


def test_the_process_ends_on_sigterm_with_streams_aboard() -> None:
    async def scenario(url: str, process: asyncio.subprocess.Process) -> None:
        connection = await open_call(url, COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=8000))
        await connection.read_head()
        await connection.read_chunk()
        process.terminate()
        await read_until_cut(connection)
        await connection.close()
        await process.wait()

    with_process(scenario)
