"""What browsers, load balancers and proxies send besides calls: other methods, origins, slashes and compressed bodies."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest

from headway.api.body import FREE_EXPANSION_BYTES, MAX_EXPANSION, decompress
from headway.config import Config
from headway.engines.scripted import Script, running
from headway.errors import InvalidRequest, TooLarge
from tests.running import MODEL, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
KEY = "hw-right"
HASH = hashlib.sha256(KEY.encode()).hexdigest()
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
STREAM = BODY.replace(b"}],", b'}],"stream":true,')
PAGE = b"https://chat.example"
GZIP = b"content-encoding: gzip"


class Seen:
    """An answer, taken apart."""

    def __init__(self, answer: bytes) -> None:
        head, _, self.body = answer.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split(b" ")[1])
        self.headers = {name.decode(): value.decode() for name, _, value in (line.partition(b": ") for line in lines)}

    @property
    def cors(self) -> dict[str, str]:
        return {name.removeprefix("access-control-"): value for name, value in self.headers.items() if "access" in name}


def ask(method: bytes, path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join(
        [method + b" " + path + b" HTTP/1.1", b"host: localhost", b"connection: close", *headers, b"", b""]
    )


async def test_head_is_get_without_a_body() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        for path in (b"/health", b"/ready", b"/v1/models", b"/v1/models/scripted", b"/metrics"):
            got, head = [Seen(await here.raw(ask(method, path))) for method in (b"GET", b"HEAD")]
            assert (got.status, head.status, head.body) == (200, 200, b"")
            assert got.body
            assert head.headers["content-type"] == got.headers["content-type"]
            if path != b"/metrics":  # its length changes from request to request
                assert head.headers["content-length"] == got.headers["content-length"]
        missing = Seen(await here.raw(ask(b"HEAD", b"/v1/models/none")))
        assert (missing.status, missing.body) == (404, b"")
        kept = ask(b"HEAD", b"/health").replace(b"connection: close\r\n", b"")
        assert (await here.raw(kept + ask(b"GET", b"/health"))).count(b"HTTP/1.1 200") == 2


async def test_other_methods_are_told_which_ones_there_are() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=[HASH]), key=KEY) as here:
        for method, path, allow in (
            (b"GET", b"/v1/chat/completions", "POST, OPTIONS"),
            (b"HEAD", b"/v1/messages", "POST, OPTIONS"),
            (b"POST", b"/v1/models", "GET, HEAD, OPTIONS"),
            (b"DELETE", b"/v1/models/a/b", "GET, HEAD, OPTIONS"),
            (b"PUT", b"/health", "GET, HEAD, OPTIONS"),
        ):
            refused = Seen(await here.raw(ask(method, path)))
            assert (refused.status, refused.headers["allow"]) == (405, allow)
            assert method == b"HEAD" or msgspec.json.decode(refused.body)["error"]["type"] == "invalid_request_error"
            asked = Seen(await here.raw(ask(b"OPTIONS", path)))
            assert (asked.status, asked.headers["allow"], asked.body, asked.cors) == (200, allow, b"", {})
        for method in (b"GET", b"POST", b"OPTIONS", b"HEAD"):
            unknown = Seen(await here.raw(ask(method, b"/v1/nothing")))
            assert (unknown.status, unknown.headers.get("allow")) == (404, None)


async def test_a_last_slash_means_nothing() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        for path in (b"/v1/models/", b"/health/", b"/v1/models/scripted/"):
            assert Seen(await here.raw(ask(b"GET", path))).status == 200
        for call in ("/v1/messages/", "/v1/chat/completions/"):
            assert Seen(await here.raw(post(call, BODY))).status == 200
        for path in (b"/", b"//", b"/v1/models//", b"//health"):
            assert Seen(await here.raw(ask(b"GET", path))).status == 404


async def test_a_models_name_may_have_slashes() -> None:
    async with running(QUICK) as engine:
        tables = config_for([engine]).model_dump()
        other = {"name": "org/name", "replicas_of": MODEL}
        async with running_gateway(Config.model_validate({**tables, "models": [*tables["models"], other]})) as here:
            assert (await here.openai.models.retrieve("org/name")).id == "org/name"
            assert (await here.anthropic.models.retrieve("org/name")).id == "org/name"


async def test_a_browser_is_told_that_a_listed_page_may_call() -> None:
    config: dict[str, Any] = {"cors_origins": [PAGE.decode(), "http://localhost:3000"], "key_hashes": [HASH]}
    origin, key = b"origin: " + PAGE, b"x-api-key: " + KEY.encode()
    asked = [b"access-control-request-method: POST", b"access-control-request-headers: authorization,x-stainless-os"]
    seen = {"allow-origin": PAGE.decode(), "expose-headers": "*"}
    async with running(QUICK) as engine, running_gateway(config_for([engine], **config), key=KEY) as here:
        before = Seen(await here.raw(ask(b"OPTIONS", b"/v1/chat/completions", origin, *asked)))
        allowed = {"allow-methods": "POST, OPTIONS", "allow-headers": "authorization,x-stainless-os", "max-age": "600"}
        assert (before.status, before.cors) == (200, seen | allowed)
        for call in (BODY, STREAM):
            answer = Seen(await here.raw(post("/v1/chat/completions", call, origin, key)))
            assert (answer.status, answer.cors, answer.headers["vary"]) == (200, seen, "origin")
        for refused in (
            post("/v1/messages", BODY, origin),
            ask(b"GET", b"/none", origin),
            ask(b"PUT", b"/ready", origin),
        ):
            assert Seen(await here.raw(refused)).cors == seen  # or the page could not read why
        for other in ([b"origin: https://evil.example"], [b"origin: https://chat.example.evil"], [b"origin: null"], []):
            answer = Seen(await here.raw(post("/v1/messages", BODY, key, *other)))
            assert (answer.status, answer.cors, answer.headers["vary"]) == (200, {}, "origin")
            before = Seen(await here.raw(ask(b"OPTIONS", b"/v1/messages", *asked, *other)))
            assert "allow-origin" not in before.cors


async def test_all_pages_may_call_if_the_owner_says_so() -> None:
    config: dict[str, Any] = {"cors_origins": ["*"], "key_hashes": [HASH]}
    async with running(QUICK) as engine, running_gateway(config_for([engine], **config), key=KEY) as here:
        answer = Seen(await here.raw(post("/v1/messages", BODY, b"origin: null", b"x-api-key: " + KEY.encode())))
        assert answer.cors == {"allow-origin": "*", "expose-headers": "*"}


async def test_without_keys_a_listed_page_may_call_and_no_other() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], cors_origins=[PAGE.decode()])) as here:
        assert Seen(await here.raw(post("/v1/messages", BODY, b"origin: " + PAGE))).status == 200
        for headers in ([b"origin: https://evil.example"], [b"origin: " + PAGE, b"origin: https://evil.example"]):
            assert Seen(await here.raw(post("/v1/messages", BODY, *headers))).status == 403
        rebound = post("/v1/messages", BODY, b"origin: " + PAGE).replace(b"host: 127.0.0.1", b"host: evil.example")
        assert Seen(await here.raw(rebound)).status == 403


@pytest.mark.parametrize("names", [b"x" * 5000, b"a\tb", b"a\x80", b"a:b"])
async def test_a_browser_can_not_put_anything_into_our_headers(names: bytes) -> None:
    config: dict[str, Any] = {"cors_origins": [PAGE.decode()], "key_hashes": [HASH]}
    asked = [b"origin: " + PAGE, b"access-control-request-method: POST", b"access-control-request-headers: " + names]
    async with running(QUICK) as engine, running_gateway(config_for([engine], **config), key=KEY) as here:
        answer = Seen(await here.raw(ask(b"OPTIONS", b"/v1/messages", *asked)))
        assert answer.status in (200, 400)
        assert "allow-headers" not in answer.cors


async def test_a_compressed_call_is_served() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        for encoding in (b"gzip", b"GZIP", b"x-gzip"):
            answer = Seen(await here.raw(post("/v1/messages", gzip.compress(BODY), b"content-encoding: " + encoding)))
            assert answer.status == 200
        assert Seen(await here.raw(post("/v1/messages", BODY, b"content-encoding: identity"))).status == 200
        for path in ("/v1/messages", "/v1/chat/completions"):
            for encoding in (b"br", b"zstd", b"deflate", b"gzip, gzip", b"\xff"):
                refused = Seen(await here.raw(post(path, BODY, b"content-encoding: " + encoding)))
                assert (refused.status, b"must be `gzip` or `identity`" in refused.body) == (415, True)
            refused = Seen(await here.raw(post(path, BODY, GZIP)))
            assert (refused.status, b"not valid gzip" in refused.body) == (400, True)


async def test_a_compressed_body_is_bounded_by_what_it_becomes() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], max_body_bytes=4096)) as here:
        large = BODY.replace(b"hi", hashlib.sha256(b"x").hexdigest().encode() * 100)
        for body, expected in (
            (gzip.compress(large), 413),
            (gzip.compress(large) * 2, 413),
            (gzip.compress(BODY), 200),
        ):
            assert Seen(await here.raw(post("/v1/messages", body, GZIP))).status == expected


def test_a_zip_bomb_costs_no_more_than_it_sent() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    limit = FREE_EXPANSION_BYTES + MAX_EXPANSION * len(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="64 times"):
            decompress(bomb, {b"content-encoding": b"gzip"}, 2**30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit < 10_000_000
    assert peak < 4 * limit


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x1f\x8b",
        gzip.compress(BODY)[:-1],
        gzip.compress(BODY)[:-8] + bytes(8),
        gzip.compress(BODY) + b"x",
        gzip.compress(BODY) + gzip.compress(BODY),
        zlib.compress(BODY),
    ],
    # Names of their own: gzip writes the time into its bytes, and each worker of the suite must find the same tests.
    ids=("empty", "start", "cut off", "wrong checksum", "more after it", "two streams", "zlib"),
)
def test_what_is_not_one_gzip_stream_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="gzip"):
        decompress(body, {b"content-encoding": b"gzip"}, 2**20)


def test_a_body_of_exactly_the_limit_is_taken() -> None:
    plain = bytes(range(256)) * 16
    headers = {b"content-encoding": b"gzip"}
    assert decompress(gzip.compress(plain), headers, len(plain)) == plain
    with pytest.raises(TooLarge):
        decompress(gzip.compress(plain), headers, len(plain) - 1)
    assert decompress(b"as it is", {}, 2**20) == b"as it is"
