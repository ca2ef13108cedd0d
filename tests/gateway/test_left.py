"""What a call costs that is left before its end: its client is not billed for what it did not get, but its limits are
charged, and the ledger says what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import openai
import pytest

from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from headway.http1 import ConnectionPool
from headway.ledger.bill import make_bill
from headway.ledger.entries import Entry
from tests.gateway.test_books import ASK, KEY, SECRET, Desk, desk
from tests.running import MODEL, post, raw_server

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
LIMITED = msgspec.structs.replace(KEY, output_tpm=100)
CHAT: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 2_000}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}


@asynccontextmanager
async def asked(at: Desk, path: str, body: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """A call whose client leaves at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", at.here.port)
    writer.write(post(path, msgspec.json.encode(body), b"x-api-key: " + SECRET.encode()))
    try:
        yield reader
    finally:
        writer.close()


async def until_generated(engine: ScriptedEngine, tokens: int) -> None:
    async with asyncio.timeout(20):
        while engine.steps.tokens_sent < tokens:
            await asyncio.sleep(0.01)


async def booked(at: Desk) -> tuple[Entry, Entry]:
    """What was written when the client left, and when the engine had noticed."""
    async with asyncio.timeout(20):
        while not (seated := [entry for entry in at.store.entries() if entry.kind == "seated"]):
            await asyncio.sleep(0.02)
    return await at.one(), seated[0]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/messages", CHAT), ("/v1/chat/completions", CHAT | TOOLS)]
)
async def test_a_whole_answer_that_is_left_uses_up_the_limit(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine], LIMITED) as at:
        async with asked(at, path, body):
            await until_generated(engine, 150)
        await at.here.until_empty()
        with pytest.raises(openai.RateLimitError):
            await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=1)


async def test_it_is_not_billed_and_the_ledger_has_the_price_of_what_was_counted(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        async with asked(at, "/v1/chat/completions", CHAT):
            await until_generated(engine, 100)
        served, seated = await booked(at)
        assert (served.outcome, served.amount, served.prompt_tokens, served.output_tokens) == ("left", 0, 0, 0)
        assert served.undelivered is not None
        made = engine.steps.requests[served.call_id]
        tokens = (served.undelivered - made.prompt_tokens) / 10
        assert 90 <= tokens <= made.tokens_sent
        assert seated.undelivered is None, "nothing was judged"
        [row] = make_bill(at.store.entries(), ("key",), {})
        assert (row.total, row.undelivered) == (0, served.undelivered)


async def test_what_cannot_be_counted_is_judged_and_booked_when_the_seat_is_free(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        async with asked(at, "/v1/chat/completions", CHAT | TOOLS):
            await until_generated(engine, 100)
        served, seated = await booked(at)
        assert (served.outcome, served.amount) == ("left", 0)
        assert seated.undelivered is not None
        # The curve and the engine agree: 500 tokens/s, in two steps of rounding.
        assert 100 <= seated.undelivered / 10 <= seated.seat_us / 1e6 * 500 + 1
        assert seated.amount == 0


async def test_a_prompt_that_is_left_while_it_is_read_is_charged_by_its_length(tmp_path: Path) -> None:
    limited = msgspec.structs.replace(KEY, input_tpm=500)
    body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": "many words " * 400}]}
    async with running(QUICK) as engine, desk(tmp_path, [engine], limited, stall_s=60.0) as at:
        engine.faults = Faults(slow_factor=10_000.0)  # reads it for 50 s
        async with asked(at, "/v1/chat/completions", body), asyncio.timeout(20):
            while not engine.steps.prefilling:
                await asyncio.sleep(0.01)
        await at.here.until_empty()
        with pytest.raises(openai.RateLimitError):
            await at.here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=1)


async def test_all_choices_of_a_stream_that_is_left_are_billed(tmp_path: Path) -> None:
    """Continuous usage counts each choice by itself."""
    whole = b'{"choices":[{"message":{}}],"usage":{}}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))
            if b'"stream":true' not in body:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(whole), whole))
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for count in range(1, 101):
                for index in range(8):
                    usage = b'{"prompt_tokens":10,"completion_tokens":%d}' % count
                    event = b'data: {"choices":[{"index":%d,"delta":{"content":"w%d"}}],"usage":%b}\n\n'
                    event %= (index, count, usage)
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))

    async with raw_server(answer) as url:
        engine: Any = SimpleNamespace(url=url)
        async with desk(tmp_path, [engine]) as at:
            async with asked(
                at, "/v1/chat/completions", {**CHAT, "max_tokens": 100, "n": 8, "stream": True}
            ) as answers:
                for _ in range(8):
                    await answers.readuntil(b'"w100"')
            served = await at.one()
            assert (served.outcome, served.output_tokens, served.amount) == ("left", 800, 10 + 10 * 800)


@pytest.mark.parametrize("kind", ["chat/completions", "completions", "messages"])
@pytest.mark.parametrize("stop", [None, "river"])
async def test_a_collected_answer_is_the_engines_whole_answer(tmp_path: Path, kind: str, stop: str | None) -> None:
    path, body = f"/v1/{kind}", {"model": MODEL, "max_tokens": 300}
    body |= {"prompt": "hi"} if kind == "completions" else {"messages": ASK}
    if stop is not None:
        body |= {"stop_sequences": [stop]} if kind == "messages" else {"stop": [stop]}
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        async with asked(at, path, body) as reader:
            collected = (await reader.read()).partition(b"\r\n\r\n")[2]
        pool = ConnectionPool(engine.url)
        _, whole = await pool.exchange(b"POST", path, msgspec.json.encode(body))
        pool.close()
        assert _apart_from_its_own(collected) == _apart_from_its_own(whole)


def _apart_from_its_own(answer: bytes) -> dict[str, Any]:
    """Without what differs from call to call, and what the gateway adds."""
    fields: dict[str, Any] = msgspec.json.decode(answer)
    assert (fields.pop("metrics", None) is None) == (fields["usage"].get("input_tokens") is not None)
    for name in ("id", "created", "service_tier"):
        fields.pop(name, None)
    for name in ("headway", "speed"):
        fields["usage"].pop(name, None)
    return fields
