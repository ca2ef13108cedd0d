"""What strangers may try at the door: routes and keys, heads and bodies, and requests made to confuse a parser."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from headway.api import body as api_body
from headway.api import connection, open_connections
from headway.api.server import HTTPClient
from headway.api.sparse_log import SparseLog
from headway.engines.scripted import Script, running
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
KEY = "hw-right"
HASH = hashlib.sha256(KEY.encode()).hexdigest()
OPEN = {("GET", "/health"), ("GET", "/ready")}
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
# A call that streams for longer than a test takes.
SLOW = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.05),))
STREAM = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":2000,"stream":true}'
PATHS = ["{}", "/{}", "{}/", "{}?x=1", "{}#x", "/.{}", "/x/..{}", "{}%00", "{};x", "http://127.0.0.1{}", "%2f{}"]
HOSTS = [b"x", b"127.0.0.1", b"x@y", b"/v1/models", b"x/health", b"health?", b"", b"[::1]", b"x:99999"]


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


VISITORS: list[Visitor] = []


@pytest.fixture(autouse=True)
async def visitors_leave() -> AsyncIterator[None]:
    yield
    while VISITORS:
        VISITORS.pop().writer.close()


class Visitor:
    """A client that sends what it likes and looks at what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, here: Running) -> Visitor:
        visitor = cls(*await asyncio.open_connection("127.0.0.1", here.port))
        VISITORS.append(visitor)
        return visitor

    async def ask(self, request: bytes) -> int:
        """Send a request and read its answer, which must have a content-length. Returns the status."""
        self.writer.write(request)
        async with asyncio.timeout(5):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            await self.reader.readexactly(int(length.split(b" ")[1]))
        return status(head)

    async def start_stream(self) -> None:
        self.writer.write(post("/v1/chat/completions", STREAM))
        async with asyncio.timeout(5):
            await self.reader.readuntil(b"data: ")

    async def until_closed(self) -> bytes:
        async with asyncio.timeout(5):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


async def test_no_route_opens_without_a_key_however_it_is_spelled() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=[HASH]), key=KEY) as here:
        from headway.api.app import App
        from headway.config import Config

        config: Config = config_for([engine])
        handle: Any = here.gateway.handle
        app = App(
            config, handle=handle, handle_auto=handle, is_ready=lambda: True, metrics_page=lambda: (200, b"", b"")
        )
        guarded = [
            (method, path.replace("{model*}", MODEL).replace("{response_id}", "resp_1"))
            for method, path in app.routes.names
            if (method, path) not in OPEN
        ]
        assert len(guarded) == 15
        for (method, path), spelling, host in product(guarded, PATHS, HOSTS):
            target = spelling.format(path).encode()
            for key in (b"", b"authorization: Bearer wrong\r\n"):
                head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bconnection: close\r\n" % (method.encode(), target, host, key)
                answer = await here.raw(head + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY))
                assert status(answer) in (400, 401, 404, 405), (method, target, host, answer[:80])
        for method, path in guarded:
            head = b"%b %b HTTP/1.1\r\nhost: x\r\nx-api-key: %b\r\n" % (method.encode(), path.encode(), KEY.encode())
            answer = await here.raw(head + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY))
            assert status(answer) in ((404,) if "resp_1" in path else (200, 400, 426)), (method, path, answer)
        assert status(await here.raw(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) == 200


async def test_a_body_too_large_is_refused_before_it_is_read() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], max_body_bytes=2048)) as here:
        announced = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n"
        answer = await here.raw(announced)
        assert status(answer) == 413
        assert b"request_too_large" in answer
        chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
        chunked = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3
        )
        assert status(await here.raw(chunked)) == 413


async def test_a_head_is_bounded_in_bytes_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.3)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        many = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 1000) for number in range(100))
        assert status(await here.raw(b"GET /health HTTP/1.1\r\n" + many + b"\r\n")) == 431
        assert status(await here.raw(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")) == 431
        async with asyncio.timeout(5):
            assert await here.raw(b"") == b""  # says nothing
            assert await here.raw(b"GET /health HTTP/1.1\r\nx-slow: ") == b""  # stops in the middle
        # A connection that has had its answer is not held to that.
        assert status(await here.raw(post("/v1/messages", BODY))) == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5, 6\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: a\r\n b\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: localhost\r\nx\x00y: 1\r\n\r\n",
        b"GET health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_not_plain_http_is_turned_away(request_bytes: bytes) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        answer = await here.raw(request_bytes)
        assert status(answer) in (0, 400, 404, 405)
        assert len(engine.record()["requests"]) <= 1  # the probe's
        assert status(await here.raw(post("/v1/messages", BODY))) == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"]
)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model":1}', b"[" * 100_000, b'{"a":' * 50_000, b'{"model":"scripted"}', b"{} {}"],
)  # fmt: skip
async def test_bodies_that_make_no_sense_get_a_400_in_the_dialect(path: str, body: bytes) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        answer = await here.raw(post(path, body))
        assert status(answer) == 400
        assert b'"type":"invalid_request_error"' in answer


async def test_two_requests_sent_at_once_are_answered_in_order() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        first = post("/v1/messages", BODY).replace(b"connection: close\r\n", b"")
        answer = await here.raw(first + b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.endswith(b"ok\n")


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nx: ", b"GET /", b"GET /health HTTP/1.1\r\n", b"\r\n"])
async def test_a_head_without_an_end_is_cut_by_the_bytes_that_came(start: bytes) -> None:
    more = {b"\r\n": b"\r\n" * 500, b"GET /health HTTP/1.1\r\n": b"x: y\r\n" * 100}.get(start, b"a" * 1000)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        visitor = await Visitor.of(here)
        visitor.writer.write(start)
        for _ in range(100):
            visitor.writer.write(more)
            await asyncio.sleep(0)
        assert status(await visitor.until_closed()) == 431


@pytest.mark.parametrize("trailer", [b"0\r\nx: ", b"1;"])
async def test_trailers_and_extensions_of_chunks_are_cut_too(trailer: bytes) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        visitor = await Visitor.of(here)
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        visitor.writer.write(head + trailer + b"a" * 100_000)
        assert status(await visitor.until_closed()) == 431


@pytest.mark.parametrize("stray", [b"", b"\r\n", b"\r\n" * 20, b"G"])
async def test_no_byte_keeps_an_idle_connection_open(stray: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.4)
    async with running(QUICK) as engine, running_gateway(config_for([engine], keep_alive_s=0.4)) as here:
        visitor = await Visitor.of(here)
        assert await visitor.ask(HEALTH) == 200
        visitor.writer.write(stray)
        assert await visitor.until_closed() == b""


async def test_a_connection_is_kept_between_requests() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        visitor = await Visitor.of(here)
        for request in (
            HEALTH,
            b"\r\n" + HEALTH,
            HEALTH.replace(b"\r\n\r\n", b"\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
            HEALTH,
        ):
            assert await visitor.ask(request) == 200


async def test_a_request_that_asks_for_an_upgrade_is_answered_with_its_body_read() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        for protocol in (b"h2c", b"websocket"):
            visitor = await Visitor.of(here)
            request = post("/v1/messages", BODY, b"upgrade: " + protocol).replace(b"close", b"upgrade")
            assert await visitor.ask(request) == 200
            assert await visitor.ask(request + HEALTH) == 200
            assert await visitor.ask(b"") == 200
        chunked = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        answer = await here.raw(chunked + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + HEALTH)
        assert answer.count(b"HTTP/1.1") == 1
        assert status(answer) == 400


@pytest.mark.parametrize("key", [b"", b"x-api-key: hw-wrong\r\n"])
async def test_an_answer_to_a_body_that_was_not_read_closes_the_connection(key: bytes) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=[HASH]), key=KEY) as here:
        for path in (b"GET /health", b"POST /v1/messages"):
            visitor = await Visitor.of(here)
            visitor.writer.write(path + b" HTTP/1.1\r\nhost: x\r\n" + key + b"content-length: 400000\r\n\r\nab")
            answer = await visitor.until_closed()  # the rest of the body never comes
            assert status(answer) in (200, 401)
            assert b"connection: close" in answer
            # A client that sends the whole body before it reads still gets the answer.
            visitor = await Visitor.of(here)
            visitor.writer.write(path + b" HTTP/1.1\r\nhost: x\r\n" + key + b"content-length: 400000\r\n\r\n")
            visitor.writer.write(b" " * 400_000)
            await visitor.writer.drain()
            assert status(await visitor.until_closed()) in (200, 401)


async def test_a_body_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_body, "BODY_STALL_S", 0.2)
    monkeypatch.setattr(api_body, "BODY_TIMEOUT_S", 0.5)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
        stalled, dripping = await Visitor.of(here), await Visitor.of(here)
        stalled.writer.write(head + b"{")
        assert status(await stalled.until_closed()) == 400
        dripping.writer.write(head)
        async with asyncio.timeout(5):
            answer = asyncio.create_task(dripping.until_closed())
            while not answer.done():
                dripping.writer.write(b" ")
                await asyncio.sleep(0.05)
        assert status(await answer) == 400


async def test_many_requests_sent_ahead_are_answered_one_by_one() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        answer = await here.raw(HEALTH * 500 + post("/v1/messages", BODY))
        assert answer.count(b"HTTP/1.1 200") == 501


async def test_a_request_after_a_chunked_body_is_left_to_be_sent_again() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
        answer = await here.raw(chunked + HEALTH)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer
        visitor = await Visitor.of(here)
        assert await visitor.ask(chunked) == 200
        assert await visitor.ask(HEALTH) == 200


async def test_a_client_that_sends_ahead_and_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_STALL_S", 0.3)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        with socket.socket() as visitor:
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            visitor.connect(("127.0.0.1", here.port))
            visitor.settimeout(0)
            loop = asyncio.get_running_loop()
            page = HEALTH.replace(b"/health", b"/metrics")  # a long one, which soon fills the buffers
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(20):
                    while True:
                        await loop.sock_sendall(visitor, page * 100)


async def test_without_keys_only_this_machine_is_answered() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:

        async def answer(host: bytes, *headers: bytes) -> int:
            request = post("/v1/messages", BODY, b"content-type: text/plain", *headers)
            return status(await here.raw(request.replace(b"host: 127.0.0.1", b"host: " + host)))

        for host in (b"localhost", b"LOCALHOST:8000", b"127.0.0.1", b"127.1.2.3:80", b"[::1]", b"[::1]:8000"):
            assert await answer(host) == 200, host
            assert await answer(host, b"origin: http://" + host) == 200, host
        for host in (
            b"evil.example",
            b"evil.example:8000",
            b"127.0.0.1.evil.example",
            b"0.0.0.0",
            b"",
            b"localhost.evil",
        ):
            assert await answer(host) == 403, host
        for origin in (b"http://evil.example", b"null", b"https://localhost.evil.example", b"http://127.0.0.1:80@evil"):
            assert await answer(b"localhost", b"origin: " + origin) == 403, origin
        rebound = await here.raw(b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")
        assert status(rebound) == 403


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(b"", 400), (b"host: x\r\n", 200), (b"host: x\r\nhost: x\r\n", 400), (b"host: x\r\nHost: y\r\n", 400)],
)
async def test_a_request_has_one_host(hosts: bytes, expected: int) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=[HASH]), key=KEY) as here:
        for path in (b"/health", b"/v1/models"):
            head = b"GET " + path + b" HTTP/1.1\r\nconnection: close\r\nx-api-key: hw-right\r\n"
            assert status(await here.raw(head + hosts + b"\r\n")) == expected
        assert status(await here.raw(b"GET /health HTTP/1.0\r\n\r\n")) == 200


async def test_malformed_requests_are_logged_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        caplog.set_level(logging.INFO)
        for _ in range(50):
            await here.raw(b"\x16\x03\x01 nonsense\r\n\r\n")
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 1 <= len(lines) <= 10, "a test of less than ten seconds"
        warnings = SparseLog(logging.WARNING)
        caplog.clear()
        for _ in range(5):
            warnings.write("odd")
        warnings._logged_at -= 1
        warnings.write("odd")
        assert [record.getMessage() for record in caplog.records] == ["odd", "odd (4 earlier warnings left out)"]


async def test_connections_without_a_request_give_way_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], max_connections=3)) as here:
        call = post("/v1/messages", BODY).replace(b"connection: close\r\n", b"")
        first, second, third = [await Visitor.of(here) for _ in range(3)]
        assert await second.ask(HEALTH) == 200
        assert await first.ask(HEALTH) == 200
        newcomer = await Visitor.of(here)
        assert await newcomer.ask(call) == 200
        assert await second.until_closed() == b""
        # Then those that have sent no request yet, if they had time to.
        third.writer.write(b"GET /health HTTP/1.1\r\nx: ")
        busy = [first, newcomer]
        head = call.removesuffix(b"\r\n" + BODY) + b"expect: 100-continue\r\n\r\n"
        for visitor in busy:
            visitor.writer.write(head)
            assert status(await visitor.reader.readuntil(b"\r\n\r\n")) == 100  # the body is awaited
        assert status(await here.raw(call)) == 503
        monkeypatch.setattr(open_connections, "UNHEARD_S", 0.0)
        assert await (await Visitor.of(here)).ask(call) == 200
        assert await third.until_closed() == b""
        for visitor in busy:
            assert await visitor.ask(BODY) == 200


async def test_health_is_answered_when_every_connection_is_busy() -> None:
    async with running(SLOW) as engine, running_gateway(config_for([engine], max_connections=2)) as here:
        busy = [await Visitor.of(here), await Visitor.of(here)]
        for visitor in busy:
            await visitor.start_stream()
        for path, expected in ((b"/health", 200), (b"/ready?x", 200), (b"/v1/models", 503)):
            assert status(await here.raw(LAST.replace(b"/health", path))) == expected
        assert status(await here.raw(post("/v1/messages", BODY))) == 503
        silent = [await Visitor.of(here) for _ in range(2 * open_connections.SPARE_CONNECTIONS)]
        assert status(await here.raw(LAST)) == 200
        assert await silent[0].until_closed() == b""
        busy.pop().writer.close()
        last = silent[-1]
        async with asyncio.timeout(5):
            while await last.ask(HEALTH.replace(b"/health", b"/v1/models")) == 503:
                last = await Visitor.of(here)
        busy.pop().writer.close()


async def test_a_body_that_is_not_text_is_refused_also_in_fields_that_are_not_decoded() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        call = b'{"model":"scripted","messages":[{"role":"user","content":"%b"}],"logit_bias":{"5":1,"\xfe":2}}'
        for text in (b"hi", b"x" * 100_000, "🚂".encode() * 50_000):
            answer = await here.raw(post("/v1/chat/completions", call % text))
            assert status(answer) == 400
            assert b"invalid_request_error" in answer


async def test_a_client_may_leave_while_it_is_told_of_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def never_sent(*_: object, **__: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        monkeypatch.setattr(HTTPClient, "send_page", never_sent)
        visitor = await Visitor.of(here)
        visitor.writer.write(b"GET /unknown HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            await began.wait()
            visitor.writer.transport.abort()
            await ended.wait()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_refused_client_is_not_told_to_continue(caplog: pytest.LogCaptureFixture) -> None:
    """The parser finds the fault when it has begun the call, which has not run yet."""
    lines = (
        b"POST /v1/chat/completions HTTP/1.1", b"host: localhost", b"expect: 100-continue", b"transfer-encoding: gzip",
    )  # fmt: skip
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        visitor = await Visitor.of(here)
        visitor.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + BODY)
        async with asyncio.timeout(10):
            answer = await visitor.reader.read(-1)
    assert status(answer) == 400
    assert not [record for record in caplog.records if record.exc_info]
