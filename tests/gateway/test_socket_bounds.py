"""What a client of the Responses WebSocket can cost: one that vanishes, does not read, sends too much, or nonsense."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from headway.api import responses_socket, websocket
from headway.api.responses_items import EarlierItems
from headway.api.responses_store import Continued
from headway.api.socket_memory import SocketMemory, SocketResponses
from headway.engines.scripted import Faults, Script, running
from tests.gateway.test_books import KEY, SECRET, desk
from tests.gateway.test_responses_socket import SCRIPT, SLOW, opened, with_table
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.0005),))
LONG = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.0005),), max_model_len=200_000)
CREATE = json.dumps({"type": "response.create", "model": MODEL, "input": "hi", "max_output_tokens": 3}).encode()
FRAMES = int(os.environ.get("HEADWAY_FRAMES", "3000"))


def handshake(*headers: bytes) -> bytes:
    key = base64.b64encode(bytes(16))
    lines = [b"GET /v1/responses HTTP/1.1", b"host: localhost", b"upgrade: websocket", b"connection: upgrade"]
    lines += [b"sec-websocket-version: 13", b"sec-websocket-key: " + key, *headers]
    return b"\r\n".join([*lines, b"", b""])


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """Masked with zeros; also one that is not allowed."""
    size = len(data)
    length = bytes([128 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if size >= 2**16:
        length = b"\xff" + size.to_bytes(8, "big")
    return bytes([opcode | (128 if fin else 0)]) + length + bytes(4) + data


@asynccontextmanager
async def raw(here: Running, *headers: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection after its handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(handshake(*headers))
    async with asyncio.timeout(20):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    try:
        yield reader, writer
    finally:
        writer.close()


async def frames_until_close(reader: asyncio.StreamReader) -> list[tuple[int, bytes]]:
    """The opcodes and payloads that arrive until the gateway closes the connection."""
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(20):
        data = await reader.read()
    while data:
        size, start = data[1], 2
        if size > 125:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[2:start], "big")
        found.append((data[0] & 15, data[start : start + size]))
        data = data[start + size :]
    return found


def close_code(frames: list[tuple[int, bytes]]) -> int:
    opcode, payload = frames[-1]
    assert opcode == Opcode.CLOSE, frames
    return int.from_bytes(payload[:2], "big")


# --- handshakes ------------------------------------------------------------------------------------------------------


async def test_a_get_that_is_no_handshake_is_told_what_to_do() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        for request, status in (
            (b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", 426),
            (handshake().replace(b"websocket\r\n", b"h2c\r\n", 1), 426),
            (handshake().replace(b"version: 13", b"version: 8"), 400),
            (handshake().replace(b"key: A", b"key: !"), 400),
            (handshake(b"sec-websocket-key: " + base64.b64encode(b"x" * 16)), 400),
            (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
            (handshake(b"content-length: 5") + b"hello", 400),
            (handshake(b"transfer-encoding: chunked") + b"0\r\n\r\n", 400),
            (handshake(b"origin: https://evil.example"), 403),
        ):
            answer = await here.raw(request.replace(b"connection: upgrade", b"connection: upgrade, close"))
            assert int(answer.split(b" ")[1]) == status, (request, answer)
            if status == 426:
                assert b"\r\nupgrade: websocket\r\n" in answer
                assert b"`POST`" in answer
        assert (await here.raw(post_of(b"/v1/responses"))).startswith(b"HTTP/1.1 200 ")


def post_of(path: bytes) -> bytes:
    body = json.dumps({"model": MODEL, "input": "hi", "max_output_tokens": 2}).encode()
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nupgrade: websocket\r\n" % path
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def test_without_the_socket_clients_are_sent_to_post_at_once() -> None:
    """Codex goes on over HTTP for the whole session if it gets 426."""
    async with running(SCRIPT) as engine, running_gateway(with_table(config_for([engine]), websocket=False)) as here:
        with pytest.raises(InvalidStatus) as refused:
            async with opened(here):
                pass
        assert refused.value.response.status_code == 426
        assert b"turned off" in refused.value.response.body
        await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=2)


async def test_sockets_are_bounded_by_key_and_in_all(tmp_path: Path) -> None:
    hashes = [sha256(key).hexdigest() for key in (b"ada", b"bob")]
    async with running(SCRIPT) as engine:
        config = with_table(config_for([engine], key_hashes=hashes), max_sockets=3, max_sockets_per_key=2)
        async with running_gateway(config, key="ada") as here:
            for key, status in (("wrong", 401), ("", 401)):
                with pytest.raises(InvalidStatus) as refused:
                    async with opened(here, key):
                        pass
                assert refused.value.response.status_code == status
            async with opened(here, "ada"), opened(here, "ada"):
                with pytest.raises(InvalidStatus) as refused:
                    async with opened(here, "ada"):
                        pass
                assert (refused.value.response.status_code, refused.value.response.headers["retry-after"]) == (429, "1")
                async with opened(here, "bob"):
                    with pytest.raises(InvalidStatus) as refused:
                        async with opened(here, "bob"):
                            pass
                    assert refused.value.response.status_code == 503
            async with opened(here, "ada") as socket:  # closed ones do not count
                assert (await socket.ask(input="hi", max_output_tokens=3))["type"] == "response.incomplete"


# --- clients that vanish, or do not read -----------------------------------------------------------------------------


async def test_open_sockets_and_their_calls_are_counted() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        async with opened(here) as socket, opened(here):
            await socket.ask(input="hi", max_output_tokens=2)
            await socket.ask(input="hi", generate=False)  # a warm-up is no call
            page = here.gateway.metrics.page()
            assert b"\nheadway_sockets 2.0\n" in page
            assert b"\nheadway_socket_calls_total 1.0\n" in page
        await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=2)
        async with asyncio.timeout(20):
            while b"\nheadway_sockets 0.0\n" not in (page := here.gateway.metrics.page()):
                await asyncio.sleep(0.01)
        assert b"\nheadway_socket_calls_total 1.0\n" in page


async def test_a_client_that_vanishes_frees_its_seats_and_pays_for_what_it_got(tmp_path: Path) -> None:
    async with running(SLOW) as engine, desk(tmp_path, [engine]) as at:
        async with raw(at.here, b"x-api-key: " + SECRET.encode()) as (reader, writer):
            writer.write(frame(CREATE.replace(b": 3}", b": 500}")))
            async with asyncio.timeout(20):
                for _ in range(10):
                    await reader.readuntil(b'"response.output_text.delta"')
            writer.transport.abort()
        await at.here.until_empty()
        served = await at.one()
        assert served.outcome == "left"
        assert 10 <= served.output_tokens <= engine.steps.requests[served.call_id].tokens_sent < 500
        assert served.amount == served.prompt_tokens + 10 * served.output_tokens


async def test_every_message_is_billed_at_its_tier(tmp_path: Path) -> None:
    key = msgspec.structs.replace(KEY, default_tier="fast")
    async with running(QUICK) as engine, desk(tmp_path, [engine], key=key) as at, opened(at.here, SECRET) as socket:
        event = await socket.ask(input="two words", max_output_tokens=20)
        usage = event["response"]["usage"]
        cost = 3 * (usage["input_tokens"] + 10 * 20)
        assert (usage["headway"]["tier_served"], usage["headway"]["billed_micro"]) == ("fast", cost)
        served = await at.one()
        assert (served.tier, served.amount, served.output_tokens) == ("fast", cost, 20)
        assert event["response"]["id"] == f"resp_{served.call_id}"
        await socket.ask(input="two words", generate=False)
        assert len([entry for entry in await at.entries() if entry.kind == "served"]) == 1


async def test_an_error_has_the_headers_that_it_has_on_http(tmp_path: Path) -> None:
    key = msgspec.structs.replace(KEY, requests_pm=1)
    async with running(QUICK) as engine, desk(tmp_path, [engine], key=key) as at, opened(at.here, SECRET) as socket:
        events = [await socket.ask(input="hi", max_output_tokens=2) for _ in range(2)]
        assert (events[1]["status"], events[1]["error"]["code"]) == (429, "over_limit")
        assert int(events[1]["headers"]["retry-after"]) > 0
        assert events[1]["headers"]["x-ratelimit-limit-requests"] == "1"
        assert events[1]["headers"] == events[1]["error"]["headers"]


async def test_an_engine_that_dies_is_told_and_other_streams_go_on() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, opened(here) as socket:
        engine.faults = Faults(die_after_tokens=7, times=1)
        event = await socket.ask(input="hi", max_output_tokens=50, stream_id="a")
        assert (event["type"], event["stream_id"]) == ("response.failed", "a")
        assert (await socket.ask(input="hi", max_output_tokens=3, stream_id="a"))["type"] == "response.incomplete"
        await here.until_empty()


@asynccontextmanager
async def deaf(here: Running, streams: int) -> AsyncIterator[sockets.socket]:
    """A client that asks for long answers and reads none of them."""
    loop = asyncio.get_running_loop()
    with sockets.socket() as client:
        client.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", here.port))
        client.settimeout(0)
        await loop.sock_sendall(client, handshake())
        assert (await loop.sock_recv(client, 1024)).startswith(b"HTTP/1.1 101 ")
        for number in range(streams):
            asked = json.loads(CREATE) | {"max_output_tokens": 100_000, "stream_id": str(number)}
            await loop.sock_sendall(client, frame(json.dumps(asked).encode()))
        yield client


async def test_a_client_that_does_not_read_pauses_its_own_streams_only() -> None:
    async with running(LONG) as engine, running_gateway(config_for([engine], seats=16, reader_stall_s=60.0)) as here:
        async with deaf(here, 4) as client, opened(here) as other, asyncio.timeout(50):
            while sum(trip.reader_was_slow for trip in here.gateway._trips.values()) < 4:
                assert (await other.ask(input="hi", max_output_tokens=20))["type"] == "response.incomplete"
            before = process_rss()
            with suppress(BlockingIOError):  # nor are its pings answered without end
                for _ in range(100_000):
                    client.send(frame(b"", Opcode.PING) * 100)
            for _ in range(5):
                event = await other.ask(input="hi", max_output_tokens=20)
                assert event["type"] == "response.incomplete"
            assert process_rss() - before < 4 * 2**20
        await here.until_empty()


async def test_a_client_that_never_reads_is_cut_off() -> None:
    async with (
        running(LONG) as engine,
        running_gateway(config_for([engine], reader_stall_s=0.3)) as here,
        deaf(here, 4),
        asyncio.timeout(50),
    ):
        while len(here.gateway._trips) < 4:
            await asyncio.sleep(0.01)
        while here.gateway._trips:
            await asyncio.sleep(0.05)
        while engine.record()["aborted"] < 4:  # it notices the end of its connections by itself
            await asyncio.sleep(0.01)


def process_rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- frames ----------------------------------------------------------------------------------------------------------


async def test_a_message_in_fragments_is_one_message() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, raw(here) as (reader, writer):
        text = CREATE.replace(b'"hi"', '"h\u00e9"'.encode())
        cut = text.index(b"\xc3") + 1  # in the middle of a character
        writer.write(frame(text[:5], fin=False) + frame(b"", Opcode.PING))
        await asyncio.sleep(0.01)
        for piece in (frame(text[5:cut], Opcode.CONT, fin=False), frame(b"", Opcode.CONT, fin=False)):
            for byte in piece:
                writer.write(bytes([byte]))
        writer.write(frame(text[cut:], Opcode.CONT))
        async with asyncio.timeout(20):
            await reader.readuntil(b'"response.incomplete"')
        writer.write(frame((1000).to_bytes(2, "big"), Opcode.CLOSE))
        async with asyncio.timeout(20):
            assert (await reader.read()).endswith(b"\x88\x02\x03\xe8")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(Frame(Opcode.TEXT, CREATE).serialize(mask=False), 1002, id="not masked"),
        pytest.param(b"\xf1" + frame(CREATE)[1:], 1002, id="reserved bits"),
        pytest.param(b"\x83" + frame(CREATE)[1:], 1002, id="unknown opcode"),
        pytest.param(frame(b"x", Opcode.CONT), 1002, id="continues nothing"),
        pytest.param(frame(b"x", fin=False) + frame(b"y"), 1002, id="message in a message"),
        pytest.param(frame(b"x" * 126, Opcode.PING), 1002, id="large ping"),
        pytest.param(frame(b"x", Opcode.PING, fin=False), 1002, id="ping in fragments"),
        pytest.param(frame(b"\x03", Opcode.CLOSE), 1002, id="close of one byte"),
        pytest.param(frame((1006).to_bytes(2, "big"), Opcode.CLOSE), 1002, id="close with a reserved code"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 1002, id="HTTP"),
        pytest.param(frame(b" " * 4097), 1009, id="too large"),
        pytest.param(frame(b" " * 4000, fin=False) + frame(b" " * 97, Opcode.CONT), 1009, id="too large in fragments"),
        pytest.param(b"\x81\xff" + b"\x7f" * 8 + b"mask", 1009, id="announced too large"),
    ],
)
async def test_what_is_no_frame_closes_the_socket(sent: bytes, code: int) -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine], max_body_bytes=4096)) as here:
        async with raw(here) as (reader, writer):
            writer.write(sent)
            assert close_code(await frames_until_close(reader)) == code
        await here.until_empty()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"type": 1}',
        b'{"type": "response.steer"}',
        b'{"type": "' + b"x" * 999 + b'"}',
        b'{"type": "response.create"}',
        b"[" * 50_000,
        b'{"a":' * 50_000,
        CREATE.replace(b'"hi"', b"7"),
        CREATE + b"x",
    ],
    ids=lambda message: ascii(message[:16] + message[-8:]),
)
async def test_what_is_no_request_gets_an_error_and_the_socket_stays(message: bytes) -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, opened(here) as socket:
        for opcode in (True, False):
            await socket.connection.send(message, text=opcode)
            event = await socket.receive()
            assert (event["type"], event["status"], event["error"]["type"]) == ("error", 400, "invalid_request_error")
        assert (await socket.ask(input="hi", max_output_tokens=3))["type"] == "response.incomplete"


async def test_pings_are_answered_and_silent_clients_are_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    real, later = websocket.clock, [0.0]
    monkeypatch.setattr(websocket, "clock", lambda: real() + later[0])
    monkeypatch.setattr(responses_socket, "clock", lambda: real() + later[0])
    monkeypatch.setattr(responses_socket, "CHECK_S", 0.02)
    async with (
        running(SCRIPT) as engine,
        running_gateway(config_for([engine])) as here,
        opened(here) as lively,
        raw(here) as (reader, _),
        asyncio.timeout(20),
    ):
        await (await lively.connection.ping(b"are you there"))
        later[0] = 26.0
        assert await reader.readexactly(2) == b"\x89\x00"  # a ping, which this client does not answer
        await lively.ask(input="hi", generate=False)  # and this one does
        later[0] = 52.0
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        await lively.ask(input="hi", generate=False)


async def test_a_message_that_arrives_too_slowly_closes_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MESSAGE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(responses_socket, "CHECK_S", 0.02)
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        for begun in (frame(CREATE)[:-1], frame(CREATE[:9], fin=False)):
            async with raw(here) as (reader, writer):
                writer.write(frame(CREATE) + begun)
                assert close_code(await frames_until_close(reader)) == 1008


async def test_a_flood_of_frames_takes_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its key is not read for a while once it has used up its time."""
    turns: list[tuple[float, float]] = []
    charge = responses_socket.Sockets.charge

    def charged(self: Any, tenant: str, seconds: float) -> float:
        turns.append((seconds, charge(self, tenant, seconds)))
        return turns[-1][1]

    monkeypatch.setattr(responses_socket.Sockets, "charge", charged)
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here, raw(here) as (reader, writer):
        reading = asyncio.create_task(drained(reader))
        async with asyncio.timeout(50):
            while not turns or not turns[-1][1]:
                writer.write(frame(b"", Opcode.PING) * 5_000)
                await asyncio.sleep(0.01)
        assert sorted(seconds for seconds, _ in turns)[len(turns) // 2] < 0.02
        assert 0 < turns[-1][1] <= responses_socket.MAX_REST_S
        writer.transport.abort()
        await reading


async def test_calls_that_run_when_the_drain_timeout_is_over_are_told() -> None:
    async with running(SLOW) as engine:
        async with running_gateway(config_for([engine], drain_timeout_s=1.0)) as here:
            one = opened(here)
            busy = await one.__aenter__()
            await busy.send(input="hi", max_output_tokens=2_000, stream_id="a")
            assert (await busy.receive())["type"] == "response.created"
            ended = asyncio.create_task(busy.end("a"))
        event = await ended
        assert (event["status"], event["error"]["code"]) == (503, "draining")
        assert await busy.closed() == 1001
        await one.__aexit__(None, None, None)


async def test_a_gateway_that_stops_lets_calls_end_and_closes_idle_sockets() -> None:
    async with running(SLOW) as engine:
        async with running_gateway(config_for([engine])) as here:
            stack = opened(here), opened(here)
            idle, busy = [await one.__aenter__() for one in stack]
            await busy.send(input="hi", max_output_tokens=30)
            assert (await busy.receive())["type"] == "response.created"
            ended = asyncio.create_task(busy.end())
        assert await idle.closed() == 1001
        assert (await ended)["type"] == "response.incomplete"
        assert await busy.closed() == 1001
        for one in stack:
            await one.__aexit__(None, None, None)


async def test_idle_sockets_are_cheap() -> None:
    """At most 64 KiB each, their clients included."""
    count = 300
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:

        async def open_all(number: int) -> list[Any]:
            found = []
            for _ in range(number):
                reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
                writer.write(handshake())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
                found.append((reader, writer))
            return found

        clients = await open_all(20)
        before = process_rss()
        clients += await open_all(count)
        assert (process_rss() - before) / count <= 64 * 1024
        for _, writer in clients:
            writer.close()


async def test_generated_frames_never_break_the_gateway() -> None:
    """HEADWAY_FRAMES sets their number. Whatever a client sends, the socket answers or closes, and others are served."""
    dice = random.Random(20261117)
    async with running(QUICK) as engine, running_gateway(config_for([engine], max_body_bytes=4096)) as here:
        sent = 0
        while sent < FRAMES:
            async with raw(here) as (reader, writer):
                pieces = [generated(dice) for _ in range(dice.randint(1, 40))]
                sent += len(pieces)
                data = b"".join(pieces)
                while data:
                    cut = dice.choice((1, 7, 200, 5_000))
                    writer.write(data[:cut])
                    data = data[cut:]
                    if dice.random() < 0.1:
                        await asyncio.sleep(0)
                if dice.random() < 0.5:
                    writer.write(frame(b"", Opcode.CLOSE))
                    writer.write_eof()  # the gateway may still wait for the rest of a frame
                    await asyncio.wait_for(drained(reader), 20)
                else:
                    writer.transport.abort()
        await here.until_empty()
        async with opened(here) as socket:
            assert (await socket.ask(input="hi", max_output_tokens=3))["type"] == "response.incomplete"


async def drained(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read()


def generated(dice: random.Random) -> bytes:
    """Mostly valid frames, some of which are damaged."""
    text = dice.choice(
        (
            CREATE,
            CREATE.replace(b"}", b',"generate":false}'),
            CREATE.replace(b"}", b',"stream_id":"s%d"}' % dice.randint(0, 40)),
            CREATE.replace(b"}", b',"previous_response_id":"resp_%d"}' % dice.randint(0, 9)),
            b"{}",
            dice.randbytes(dice.randint(0, 300)),
        )
    )
    opcode = dice.choices(list(Opcode), (1, 8, 1, 0.2, 1, 1))[0]
    encoded = bytearray(frame(text[:125] if opcode >= 8 else text, opcode, fin=dice.random() < 0.9))
    if dice.random() < 0.1:
        encoded[dice.randrange(len(encoded))] ^= 1 << dice.randrange(8)
    if dice.random() < 0.02:
        del encoded[dice.randrange(len(encoded)) :]
    return bytes(encoded)


# --- memory ----------------------------------------------------------------------------------------------------------


def stored(size: int) -> Continued:
    return Continued(EarlierItems(b"x" * size, 1), (b"",))


def test_what_sockets_remember_is_bounded() -> None:
    memory = SocketMemory(100)
    ada, ada_too, bob = [SocketResponses(memory, name, 60) for name in ("ada", "ada", "bob")]
    ada.keep("", "a1", stored(40))
    bob.keep("", "b1", stored(20))
    ada_too.keep("", "a2", stored(40))
    ada_too.keep("x", "a3", stored(10))  # in all 110: the oldest of the key with the most goes
    assert ada.find("a1") is None
    assert [one.id for one in (ada_too.find("a2"), ada_too.find("a3"), bob.find("b1")) if one is not None] == [
        "a2",
        "a3",
        "b1",
    ]
    ada_too.keep("y", "a4", stored(20))  # more than one socket may remember
    assert ada_too.find("a2") is None
    ada_too.keep("y", "a5", stored(61))  # too large: and the older one of its stream is not the newest any more
    assert (ada_too.find("a4"), ada_too.find("a5"), ada_too.newest("y")) == (None, None, None)
    for one in (ada, ada_too, bob):
        one.forget_all()
    assert (memory._total, memory._bytes, memory._oldest_first) == (0, {}, {})
