"""The HTTP server: uvicorn, with three additions to its protocol.

- It limits request heads in bytes and in time; uvicorn limits neither.
- It cancels a call's task when the client disconnects, whether the call is held, connecting or streaming.
- It writes streams straight to the socket. With ASGI's `send` each event costs a coroutine, a dict and a dozen checks,
  about a third of the cost of the whole relay (docs/design/0001).
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.api.dialect import HeaderList
from headway.wire import Grant

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 15.0
# Unread bytes of an answer that may be buffered for one client before the gateway stops reading from the engine.
MAX_UNREAD_BYTES = 256 * 1024

Send = Callable[[Any], Any]


class HeadTooLarge(Exception):
    """Raised inside the parser, which answers 400 and closes the connection."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None  # the call in progress
    _pause: Callable[[], None] | None = None
    _resume: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_head_timer()
        if self.task is not None:
            self.task.cancel()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._start_head_timer()
        self.scope["state"]["connection"] = self

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._pause is not None:
            self._pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._resume is not None:
            self._resume()

    def on_backpressure(self, pause: Callable[[], None] | None, resume: Callable[[], None] | None) -> None:
        self._pause, self._resume = pause, resume
        if pause is not None and self.flow.write_paused:
            pause()

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HTTPClient:
    """The client of one call; implements wire.Client."""

    def __init__(
        self, connection: Connection, send: Send, headers: HeaderList, answer_headers: Callable[[Grant], HeaderList]
    ) -> None:
        self.started = self.is_streaming = False
        self._answer_headers = answer_headers
        self._connection = connection
        self._transport = connection.transport
        self._send = send
        self._headers = headers

    async def send_whole(self, content_type: bytes, body: bytes, grant: Grant) -> None:
        await self.send_page(200, content_type, body, self._answer_headers(grant))

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
        await self._send({"type": "http.response.start", "status": status, "headers": self._headers + headers})


class Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers; see `drain_on_signals`."""

    on_listening: Callable[[int], None] | None = None  # called with the port
    cut_calls = 0  # calls still running when the drain timeout was over

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


def make_server(app: Any, *, host: str, port: int, drain_timeout_s: float, max_connections: int) -> Server:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(drain_timeout_s),
        limit_concurrency=max_connections,
    )
    return Server(config)


def drain_on_signals(server: Server, drain: Callable[[], None]) -> None:
    """The first SIGTERM or SIGINT stops new calls and waits for running streams; the second exits at once."""

    def on_signal() -> None:
        server.force_exit = server.should_exit
        if not server.should_exit:
            drain()
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
