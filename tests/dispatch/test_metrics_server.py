"""The dispatcher's page over HTTP, and the bounds of whoever asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headway.dispatch import metrics_server
from headway.dispatch.address import TcpAddress
from headway.dispatch.metrics_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsServer
from headway.errors import SetupError

pytestmark = pytest.mark.anyio
GET = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    server = MetricsServer(TcpAddress("127.0.0.1", 0), lambda: b"a 1.0\n")
    await server.start()
    yield server
    await server.stop()


async def ask(server: MetricsServer, request: bytes) -> bytes:
    """The whole answer; empty if the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_the_page(server: MetricsServer) -> None:
    head, _, body = (await ask(server, GET)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: 6\r\n")
    assert body == b"a 1.0\n"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", "404"),
        ("GET /metrics?name=a HTTP/1.1", "200"),
        ("POST /metrics HTTP/1.1", "405"),
        ("x", "400"),
    ],
    ids=["another path", "a query", "another method", "no http"],
)
async def test_what_else_is_asked(server: MetricsServer, request_line: str, status: str) -> None:
    assert (await ask(server, f"{request_line}\r\n\r\n".encode())).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_request_that_is_too_long_is_not_answered(server: MetricsServer) -> None:
    assert await ask(server, GET[:-2] + b"x: " + b"y" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n") == b""


async def test_a_request_that_does_not_end_is_given_up(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "ANSWER_S", 0.1)
    assert await ask(server, GET[:-2]) == b""


async def test_too_many_connections_are_refused_and_later_ones_served(server: MetricsServer) -> None:
    waiting = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MAX_CONNECTIONS)]
    assert await ask(server, GET) == b""
    for reader, writer in waiting:
        writer.write(GET)
        assert b" 200 OK" in await reader.read()
        writer.close()
    assert b" 200 OK" in await ask(server, GET)


async def test_a_port_that_is_taken_is_named(server: MetricsServer) -> None:
    with pytest.raises(SetupError, match=f"127.0.0.1:{server.port}"):
        await MetricsServer(TcpAddress("127.0.0.1", server.port), lambda: b"").start()
