"""What strangers may try at the door: routes and keys, heads and bodies, and requests made to confuse a parser."""

from __future__ import annotations

import asyncio
import hashlib
from itertools import product
from typing import Any

import pytest

from headway.api import server
from headway.engines.scripted import Script, running
from tests.running import MODEL, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
KEY = "hw-right"
HASH = hashlib.sha256(KEY.encode()).hexdigest()
OPEN = {("GET", "/health"), ("GET", "/ready")}
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
PATHS = ["{}", "/{}", "{}/", "{}?x=1", "{}#x", "/.{}", "/x/..{}", "{}%00", "{};x", "http://127.0.0.1{}", "%2f{}"]
HOSTS = [b"x", b"127.0.0.1", b"x@y", b"/v1/models", b"x/health", b"health?", b"", b"[::1]", b"x:99999"]


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_no_route_opens_without_a_key_however_it_is_spelled() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=[HASH]), key=KEY) as here:
        from headway.api.app import App
        from headway.config import Config

        config: Config = config_for([engine])
        handle: Any = here.gateway.handle
        app = App(config, handle=handle, handle_auto=handle, is_ready=lambda: True, metrics_page=lambda: b"")
        guarded = [
            (method, path.replace("{model}", MODEL)) for method, path in app.routes.names if (method, path) not in OPEN
        ]
        assert len(guarded) == 7
        for (method, path), spelling, host in product(guarded, PATHS, HOSTS):
            target = spelling.format(path).encode()
            for key in (b"", b"authorization: Bearer wrong\r\n"):
                head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bconnection: close\r\n" % (method.encode(), target, host, key)
                answer = await here.raw(head + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY))
                assert status(answer) in (400, 401, 404), (method, target, host, answer[:80])
        for method, path in guarded:
            head = b"%b %b HTTP/1.1\r\nhost: x\r\nx-api-key: %b\r\n" % (method.encode(), path.encode(), KEY.encode())
            answer = await here.raw(head + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY))
            assert status(answer) in (200, 400), (method, path, answer)
        assert status(await here.raw(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) == 200


async def test_a_body_too_large_is_refused_before_it_is_read() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], max_body_bytes=2048)) as here:
        announced = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n"
        answer = await here.raw(announced)
        assert status(answer) == 413
        assert b"request_too_large" in answer
        chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
        chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3
        assert status(await here.raw(chunked)) == 413


async def test_a_head_is_bounded_in_bytes_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.3)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        many = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 1000) for number in range(100))
        assert status(await here.raw(b"GET /health HTTP/1.1\r\n" + many + b"\r\n")) == 400
        assert status(await here.raw(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")) in (0, 400)
        async with asyncio.timeout(5):
            assert await here.raw(b"") == b""  # says nothing
            assert await here.raw(b"GET /health HTTP/1.1\r\nx-slow: ") == b""  # stops in the middle
        # A connection that has had its answer is not held to that.
        assert status(await here.raw(post("/v1/messages", BODY))) == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5, 6\r\n\r\nhello",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\r\nx\x00y: 1\r\n\r\n",
        b"GET health HTTP/1.1\r\nhost: x\r\n\r\n",
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
        answer = await here.raw(first + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.endswith(b"ok\n")
