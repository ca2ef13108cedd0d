"""The recorder in front of a scripted engine writes the journal that the torture's witness reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.engines.scripted import Script, ScriptedEngine, running
from headway.engines.scripted.steps import Faults
from headway.http1 import ConnectionPool
from headway.local.engine_process import free_port
from runs.torture.judge import Evidence, Rules, judge
from runs.torture.recorder import listening
from runs.torture.witness import Stream, read_journals

SCRIPT = Script("m", 0.01, ((1, 0.01),), 8)
SAID = [{"role": "user", "content": "one two three"}]
USAGE = {"include_usage": True, "continuous_usage_stats": True}
STREAMS = {
    "/v1/completions": {"prompt": "one two three", "max_tokens": 6, "stream_options": USAGE},
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 6, "stream_options": USAGE},
    "/v1/messages": {"messages": SAID, "max_tokens": 6},
    "/v1/responses": {"input": "one two three", "max_output_tokens": 6},
}


class Recording:
    def __init__(self, folder: Path, engine: ScriptedEngine, port: int) -> None:
        self.folder, self.engine, self.url = folder, engine, f"http://127.0.0.1:{port}"

    def read(self) -> list[Stream]:
        return read_journals(self.folder, {})

    async def post(self, path: str, body: Mapping[str, Any], call_id: str = "c" * 32) -> tuple[int, bytes]:
        pool = ConnectionPool(self.url)
        try:
            headers = ((b"x-request-id", call_id.encode()),) if call_id else ()
            answer = await pool.request(
                b"POST", path, msgspec.json.encode({"model": "m", **body}), headers, lambda: None
            )
            return answer.status, await answer.read()
        finally:
            pool.close()


@asynccontextmanager
async def recording(folder: Path, script: Script = SCRIPT) -> AsyncIterator[Recording]:
    port = free_port()
    async with running(script) as engine:
        server = await listening(folder, port, int(engine.url.rpartition(":")[2]))
        yield Recording(folder, engine, port)
        server.close()
        await server.wait_closed()
    await asyncio.sleep(0.1)  # what was closed is gone after the loop's next turns


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", STREAMS)
@in_loop
async def test_what_the_engine_counts_is_recorded(tmp_path: Path, path: str, is_stream: bool) -> None:
    body = {**STREAMS[path], "stream": is_stream}
    if not is_stream:
        body.pop("stream_options", None)
    async with recording(tmp_path) as recorded:
        before_s = time.monotonic()
        status, _ = await recorded.post(path, body)
        [stream] = recorded.read()
        truth = recorded.engine.steps.requests["c" * 32]
    assert status == 200
    assert (stream.tokens, stream.prompt_tokens, stream.state) == (6, truth.prompt_tokens, "finished")
    assert stream.call_id == "c" * 32
    assert stream.engine == recorded.url
    assert before_s < stream.received_s < stream.first_s <= stream.last_s <= stream.ended_s
    assert (stream.speed_tps() is not None) == is_stream


@in_loop
async def test_each_choice_is_a_stream(tmp_path: Path) -> None:
    async with recording(tmp_path) as recorded:
        await recorded.post("/v1/completions", {**STREAMS["/v1/completions"], "stream": True, "n": 2})
        streams = recorded.read()
    assert sorted((one.choice, one.tokens, one.call_id) for one in streams) == [(0, 6, "c" * 32), (1, 6, "c" * 32)]


@in_loop
async def test_what_has_no_id_or_is_refused_is_not_recorded(tmp_path: Path) -> None:
    async with recording(tmp_path) as recorded:
        status, _ = await recorded.post("/v1/completions", {"prompt": "1", "max_tokens": 1}, call_id="")
        refused, _ = await recorded.post("/v1/completions", {"prompt": "1", "max_tokens": -1})
        assert (status, refused) == (200, 400)
        assert recorded.read() == []


@in_loop
async def test_a_stream_that_goes_on_has_the_prompt_of_its_ids_at_once(tmp_path: Path) -> None:
    body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 2, "stream": True}
    async with recording(tmp_path) as recorded:
        await recorded.post("/v1/completions", body)
        [stream] = recorded.read()
    assert stream.prompt_tokens == 5


@in_loop
async def test_a_client_that_leaves_ends_its_stream(tmp_path: Path) -> None:
    body = {**STREAMS["/v1/completions"], "stream": True, "max_tokens": 1000}
    async with recording(tmp_path) as recorded:
        content = msgspec.json.encode({"model": "m", **body})
        head = f"POST /v1/completions HTTP/1.1\r\nx-request-id: {'c' * 32}\r\ncontent-length: {len(content)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(recorded.url.rpartition(":")[2]))
        writer.write(head.encode() + content)
        await reader.readuntil(b'"text":"')
        writer.transport.abort()
        async with asyncio.timeout(5):
            while not (streams := [one for one in recorded.read() if one.state == "aborted"]):
                await asyncio.sleep(0.05)
            while recorded.engine.steps.requests["c" * 32].state != "aborted":
                await asyncio.sleep(0.05)
    assert 0 < streams[0].tokens < 1000


@in_loop
async def test_an_engine_that_dies_ends_its_streams_and_the_client_has_all_that_is_recorded(tmp_path: Path) -> None:
    body = {**STREAMS["/v1/completions"], "stream": True, "max_tokens": 1000}
    async with recording(tmp_path) as recorded:
        recorded.engine.faults = Faults(die_after_tokens=5)
        got = b""

        def take(data: bytes) -> None:
            nonlocal got
            got += data

        pool = ConnectionPool(recorded.url)
        headers = ((b"x-request-id", b"c" * 32),)
        answer = await pool.request(
            b"POST", "/v1/completions", msgspec.json.encode({"model": "m", **body}), headers, lambda: None
        )
        with suppress(Exception):
            await answer.pipe(take)
        pool.close()
        [stream] = recorded.read()
    assert stream.state == "killed"
    assert stream.tokens == got.count(b'"text":"') > 0


def test_an_engine_that_said_nothing_before_it_died_counts_as_nothing() -> None:
    """And the same call on another engine has its own prompt."""
    rules = Rules(1, {"standard": 1}, {}, {"m": (1, 1)}, {"standard": 1000}, {"standard": 8.0}, 0.1, 4.0)
    dead = Stream("c", 0, "http://127.0.0.1:1", 0, 1.0, ended_s=1.5, state="killed")
    judged = judge(Evidence([], [dead], [], [], [], rules, {}))
    assert judged.findings["lost"] == ["c"]
