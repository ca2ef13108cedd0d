"""The client to engines: connections are reused, lost ones are noticed, and nothing is kept for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from headway.engines import http
from headway.engines.http import EnginePool, fetch
from headway.errors import EngineLost

pytestmark = pytest.mark.anyio
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """A server that does what a test says with each connection, and counts them."""

    def __init__(self, serve: Serve) -> None:
        self.connections = 0
        self.url = ""
        self._serve = serve

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[Server, EnginePool]]:
    server = Server(serve)
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    pool = EnginePool(server.url)
    try:
        yield server, pool
    finally:
        pool.close()
        listener.close()


async def say_hi_always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(OK)


async def say_hi_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)


async def whole(pool: EnginePool) -> bytes:
    answer = await pool.request(b"GET", "/")
    try:
        return await answer.read()
    finally:
        answer.close()


async def test_a_connection_is_used_again() -> None:
    async with serving(say_hi_always) as (server, pool):
        for _ in range(5):
            assert await whole(pool) == b"hi"
        assert server.connections == 1


async def test_chunked_answers_leave_the_connection_usable() -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")

    async with serving(chunked) as (server, pool):
        for _ in range(5):
            answer = await pool.request(b"POST", "/", b"{}")
            got: list[bytes] = []
            await answer.pipe(got.append)
            answer.close()
            assert b"".join(got) == b"hi"
        assert server.connections == 1


async def test_a_connection_the_engine_closed_meanwhile_is_replaced() -> None:
    async with serving(say_hi_once) as (server, pool):
        for _ in range(3):
            assert await whole(pool) == b"hi"
        assert server.connections == 3


async def test_calls_at_the_same_time_have_connections_of_their_own() -> None:
    async with serving(say_hi_always) as (server, pool):
        assert await asyncio.gather(*[whole(pool) for _ in range(8)]) == [b"hi"] * 8
        assert server.connections == 8
        await asyncio.gather(*[whole(pool) for _ in range(8)])
        assert server.connections == 8


async def test_an_old_idle_connection_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_REUSE_S", 0.0)
    async with serving(say_hi_always) as (server, pool):
        for _ in range(3):
            await whole(pool)
        assert server.connections == 3


async def test_an_answer_that_is_given_up_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n")
        await reader.read()
        gone.set()

    async with serving(endless) as (_server, pool):
        answer = await pool.request(b"GET", "/")
        answer.close()
        await asyncio.wait_for(gone.wait(), 5)


async def test_nobody_there() -> None:
    async with serving(say_hi_always) as (server, _pool):
        url = server.url
    with pytest.raises(EngineLost, match="cannot connect") as lost:
        await EnginePool(url).request(b"GET", "/")
    assert not lost.value.reached
    assert await fetch(EnginePool(url), "/health", 1.0) == (0, b"")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhi",
    ],
)
async def test_an_answer_that_breaks_off_is_a_lost_engine(said: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with serving(broken) as (_server, pool):
        with pytest.raises(EngineLost) as lost:
            await whole(pool)
        assert lost.value.reached


async def test_a_whole_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_WHOLE_BODY_BYTES", 1000)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000)
        await reader.read()

    async with serving(flood) as (_server, pool):
        with pytest.raises(EngineLost, match="too long"):
            await whole(pool)


async def test_an_engine_that_does_not_answer_a_small_question_is_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as (_server, pool):
        assert await fetch(pool, "/health", 0.1) == (0, b"")
