"""Engines that lie or break, and faults in Headway itself: the call ends in its dialect's error form, the seat returns, and
the replica is suspected if it is to blame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headway import http1
from headway.api import sparse_log
from headway.api.openai_meter import OpenAIMeter
from headway.core.types import Event, ReplicaSuspect
from headway.engines.scripted import Script, running
from headway.gateway.relay import Relay
from headway.gateway.serve import Gateway
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.wire import Usage
from tests.running import MODEL, Running, config_for, post, raw_server, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
CHAT = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":20}'
STREAM = CHAT.replace(b"}]", b'}],"stream":true')
TOKEN = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n'
)
ROUTES = ["/v1/chat/completions", "/v1/messages"]

Say = Callable[[asyncio.StreamWriter], Any]


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def gateway_before(
    answer: bytes, suspects: list[str] | None = None, probed: bytes = b"{}", **settings: Any
) -> AsyncIterator[Running]:
    """A gateway before one engine that is well when it is probed, and says `answer` to every call."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            is_probe = head.startswith(b"GET") or b'"content":"1"' in body
            writer.write(whole(probed) if is_probe else answer)
            await writer.drain()

    async with raw_server(serve) as url:
        engine: Any = SimpleNamespace(url=url)
        async with running_gateway(config_for([engine], **settings)) as here:
            tell = here.gateway.tell

            def note(event: Event) -> None:
                if isinstance(event, ReplicaSuspect) and suspects is not None:
                    suspects.append(event.name)
                tell(event)

            here.gateway.tell = note
            yield here


def error_of(answer: bytes) -> dict[str, Any]:
    """The error of an answer, from its body or from the last event of its stream."""
    body = answer.partition(b"\r\n\r\n")[2]
    line = [line for line in body.split(b"\n") if b'"error"' in line][-1]
    error: dict[str, Any] = msgspec.json.decode(line.removeprefix(b"data: "))["error"]
    return error


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("status", [b"101 X", b"103 X", b"204 X", b"301 X", b"304 X", b"600 X", b"999 X"])
async def test_a_status_that_is_no_answer_is_a_lost_engine(route: str, status: bytes) -> None:
    suspects: list[str] = []
    async with gateway_before(whole(b'{"error":{"message":"secret"}}', status), suspects) as here:
        answer = await here.raw(post(route, CHAT))
        assert answer.split(b" ")[1] in (b"503", b"529")
        assert error_of(answer)["type"] in ("server_error", "overloaded_error")
        assert b"secret" not in answer
        assert suspects
        await here.until_empty()


@pytest.mark.parametrize("usage", [b"-5", b"1.5", b'"5"', b"null", b"true"])
async def test_a_whole_answer_with_odd_figures_is_a_lost_engine(usage: bytes) -> None:
    suspects: list[str] = []
    body = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%b}}' % usage
    async with gateway_before(whole(body), suspects) as here:
        answer = await here.raw(post("/v1/chat/completions", CHAT))
        assert answer.startswith(b"HTTP/1.1 503")
        assert error_of(answer)["type"] == "server_error"
        assert suspects
        await here.until_empty()


async def test_a_stream_with_odd_figures_ends_in_an_error_and_keeps_no_seat() -> None:
    suspects: list[str] = []
    last = b'data: {"choices":[],"usage":{"prompt_tokens":"3","completion_tokens":"5"}}\n\n'
    said = STREAM_HEAD + b"".join(map(chunk, [TOKEN % 1, TOKEN % 2, last, b"data: [DONE]\n\n"])) + b"0\r\n\r\n"
    async with gateway_before(said, suspects) as here:
        answer = await here.raw(post("/v1/chat/completions", STREAM))
        assert "cannot be read" in error_of(answer)["message"]
        assert b"[DONE]" not in answer
        assert suspects
        await here.until_empty()


async def test_books_and_checkpoints_go_on_after_odd_figures_in_a_stream(tmp_path: Path) -> None:
    """`usage: {}` in the middle of a stream. The checkpoint finds it, the next piece ends the call."""
    running_here: list[Running] = []

    async def until(is_so: Callable[[Any], bool]) -> None:
        """Wait until the call's account or meter is so. The checkpoint does it."""
        books = running_here[0].gateway.books
        assert books is not None
        async with asyncio.timeout(20):
            while not any(is_so(account) for account in books._accounts.values()):
                await asyncio.sleep(0.01)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            if head.startswith(b"GET") or b'"content":"1"' in body:
                writer.write(whole(b"{}"))
                continue
            odd = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{}}\n\n'
            writer.write(STREAM_HEAD + chunk(TOKEN % 1) + chunk(TOKEN % 2))
            await until(lambda account: account.counted == Usage(3, 0, (2,)))
            writer.write(chunk(odd))
            await until(lambda account: account._meter._fault is not None)
            writer.write(chunk(odd))
            await reader.read()

    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(b"hw-a-key-for-tests")))
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with raw_server(serve) as url:
        engine: Any = SimpleNamespace(url=url)
        config = config_for([engine], ledger=ledger, price={"input": 1.0, "output": 10.0}, stall_s=5.0)
        async with running_gateway(config) as here:
            running_here.append(here)
            answer = await here.raw(post("/v1/chat/completions", STREAM, b"authorization: Bearer hw-a-key-for-tests"))
            assert "cannot be read" in error_of(answer)["message"]
            await here.until_empty()
            assert here.gateway.supervisor.restarts()["checkpoint"] == 0
            async with asyncio.timeout(20):
                while not (served := [entry for entry in store.entries() if entry.kind == "served"]):
                    await asyncio.sleep(0.02)
    assert [(entry.prompt_tokens, entry.output_tokens) for entry in served] == [(3, 2)]


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_only_a_size_that_the_client_has_bounded_is_the_engines_fault(
    is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "MAX_WHOLE_BODY_BYTES", 10_000)
    suspects: list[str] = []
    async with gateway_before(whole(b"x" * 20_000), suspects) as here:
        body = CHAT if is_bounded else CHAT.replace(b',"max_tokens":20', b"")
        answer = await here.raw(post("/v1/chat/completions", body))
        assert answer.startswith(b"HTTP/1.1 503" if is_bounded else b"HTTP/1.1 502")
        assert error_of(answer)["type"] == "server_error"
        assert bool(suspects) == is_bounded
        await here.until_empty()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_fault_in_headway_is_told_in_the_dialect_and_keeps_no_seat(
    route: str, body: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: object, *_values: object) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(sparse_log, "INTERVAL_S", 3600.0)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        monkeypatch.setattr(Gateway, "_settle", fail)
        for _ in range(3):
            answer = await here.raw(post(route, body))
            error = error_of(answer)
            assert error["type"] in ("server_error", "api_error")
            assert "Headway failed" in error["message"]
            assert b"no such luck" not in answer
            assert b"\r\nx-request-id: " in answer
            assert answer.startswith(b"HTTP/1.1 200" if body is STREAM else b"HTTP/1.1 500")
        await here.until_empty()
    assert sum("no such luck" in (record.exc_text or "") for record in caplog.records) == 1


async def test_a_fault_in_the_middle_of_a_stream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, fed = Relay._feed, [0]

    def fail_later(self: Relay, data: bytes) -> None:
        fed[0] += 1
        if fed[0] == 5:
            raise ZeroDivisionError
        feed(self, data)

    monkeypatch.setattr(Relay, "_feed", fail_later)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        answer = await here.raw(post("/v1/messages", STREAM))
        assert answer.count(b"content_block_delta") > 1
        assert "Headway failed" in error_of(answer)["message"]
        assert b"message_stop" not in answer
        await here.until_empty()


async def test_a_meter_that_fails_keeps_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = OpenAIMeter.usage

    def fail(self: OpenAIMeter) -> Any:
        if self.first_at is not None:
            raise ZeroDivisionError
        return usage(self)

    monkeypatch.setattr(OpenAIMeter, "usage", fail)
    async with running(QUICK) as engine, running_gateway(config_for([engine], seats=1)) as here:
        for _ in range(3):
            answer = await here.raw(post("/v1/chat/completions", STREAM))
            assert "Headway failed" in error_of(answer)["message"]
        await here.until_empty()


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'{"error":{"message":["x"]}}', b'{"error":"x"}'])
async def test_an_error_of_an_engine_that_cannot_be_read_is_told_all_the_same(body: bytes) -> None:
    async with gateway_before(whole(body, b"418 X")) as here:
        answer = await here.raw(post("/v1/messages", CHAT))
        assert answer.startswith(b"HTTP/1.1 418")
        assert error_of(answer)["message"] == "the engine answered with status 418"


REFUSED = b'data: {"error":{"message":"Token id 999 is out of vocabulary","type":"BadRequestError","code":400}}\n\n'


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_a_request_that_the_engine_refuses_in_its_stream_is_the_clients_fault(body: bytes) -> None:
    """vLLM looks at token ids only when its stream has begun."""
    suspects: list[str] = []
    said = STREAM_HEAD + chunk(REFUSED) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    plain = b'{"choices":[{"message":{"reasoning":null}}],"usage":{}}'
    async with gateway_before(said, suspects, probed=plain) as here:
        answer = await here.raw(post("/v1/chat/completions", body))
        assert answer.startswith(b"HTTP/1.1 200" if body is STREAM else b"HTTP/1.1 400")
        assert error_of(answer)["message"] == "Token id 999 is out of vocabulary"
        await here.until_empty()
    assert not suspects


async def test_an_error_after_the_first_token_is_the_engines_fault() -> None:
    suspects: list[str] = []
    said = STREAM_HEAD + chunk(TOKEN % 1) + chunk(REFUSED) + b"0\r\n\r\n"
    async with gateway_before(said, suspects) as here:
        assert error_of(await here.raw(post("/v1/chat/completions", STREAM)))["type"] == "server_error"
    assert suspects
