"""The HTTP server: uvicorn, with connections of our own (api/connection.py).

Streams are written straight to the socket. With ASGI's `send` each event costs a coroutine, a dict and a dozen checks,
about a third of the cost of the whole relay (docs/design/0001).
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

import uvicorn

from headway.api.connection import Connection, SmallReads
from headway.api.dialect import HeaderList
from headway.api.open_connections import OpenConnections
from headway.api.proof import proof_header
from headway.wire import Grant, Receipt

Send = Callable[[Any], Any]
TICK_S = 1.0  # how often uvicorn's own duties are done, such as the time in the headers


class HTTPClient:
    """The client of one call; implements wire.Client."""

    def __init__(
        self, connection: Connection, send: Send, headers: HeaderList, answer_headers: Callable[[Grant], HeaderList]
    ) -> None:
        self.started = self.is_streaming = False
        self._answer_headers = answer_headers
        self._connection = connection
        self._cycle = connection.cycle
        self._transport = connection.transport
        self._send = send
        self.headers = headers  # of every answer, also of errors

    async def send_whole(self, content_type: bytes, body: bytes, receipt: Receipt) -> None:
        headers = [*self._answer_headers(receipt.grant), proof_header(receipt)]
        await self.send_page(200, content_type, body, headers)

    async def send_page(self, status: int, content_type: bytes, body: bytes, headers: HeaderList) -> None:
        head = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
        await self._start(status, head)
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self, content_type: bytes, grant: Grant) -> None:
        head = [(b"content-type", content_type), (b"cache-control", b"no-cache"), *self._answer_headers(grant)]
        self.is_streaming = True
        await self._start(200, head)

    def write(self, data: bytes) -> None:
        # uvicorn has started a chunked body; this writes one chunk.
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._connection.on_backpressure(pause, resume)

    async def end_stream(self) -> None:
        self._connection.on_backpressure(None, None)
        await self._send({"type": "http.response.body", "body": b""})

    def abandon(self) -> None:
        self._transport.abort()

    async def _start(self, status: int, headers: HeaderList) -> None:
        self.started = True
        headers = self.headers + headers
        if self._cycle.more_body:  # the rest of the request's body would be taken for the next request
            self._connection.closes = True
        if self._connection.closes:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if self._connection.closes:
            self._cycle.keep_alive = True  # uvicorn would close at once; `linger` closes later


async def refuse_place(scope: Any, _receive: Any, send: Send) -> None:
    """An ASGI application for requests that no regular place is free for."""
    connection = cast(Connection, scope["state"]["connection"])
    connection.closes = True
    await HTTPClient(connection, send, [], lambda _: []).send_page(
        503, b"text/plain", b"Too many connections.\n", [(b"retry-after", b"1")]
    )


class Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers; see `drain_on_signals`."""

    on_listening: Callable[[int], None] | None = None  # called with the port
    cut_calls = 0  # calls still running when the drain timeout was over

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take no more connections, and return from `serve` when the calls have ended."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which looks ten times a second whether it should stop; this one is told."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.on_listening is not None:
            self.on_listening(self.servers[0].sockets[0].getsockname()[1])

    async def _wait_tasks_to_complete(self) -> None:
        try:
            await super()._wait_tasks_to_complete()
        except asyncio.CancelledError:
            self.cut_calls = len(self.server_state.tasks)
            raise


def make_server(
    app: Any, *, host: str, port: int, drain_timeout_s: float, max_connections: int, keep_alive_s: float
) -> Server:
    open_connections = OpenConnections(max_connections, keep_alive_s)

    def make_connection(**settings: Any) -> SmallReads:
        return SmallReads(Connection(open_connections, refuse_place, **settings))

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=cast(Any, make_connection),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(drain_timeout_s),
    )
    return Server(config)


class Drained(Protocol):
    """Whoever serves the calls."""

    leaving: bool

    def drain(self) -> None: ...


def drain_on_signals(server: Server, served: Drained, unready_s: float) -> None:
    """The first SIGTERM stops new calls after `unready_s`, in which `/ready` tells a load balancer, and waits for
    running streams. SIGINT does so at once, and so does the next signal; the one after that exits at once."""
    loop = asyncio.get_running_loop()

    def drain() -> None:
        if not server.should_exit:
            served.drain()
            server.stop()

    def on_signal(number: signal.Signals) -> None:
        if number == signal.SIGTERM and unready_s and not served.leaving:
            served.leaving = True
            loop.call_later(unready_s, drain)
        else:
            server.force_exit = server.should_exit
            drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
