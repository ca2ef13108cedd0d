"""An HTTP/1.1 client: a connection pool for one server, and responses whose body is passed on piece by piece.

Headway has its own client because this is the gateway's hot path: one asyncio protocol on httptools calls a sink for
each piece, with no task to wake and no queue in between (docs/design/0001 compares it with aiohttp and httpx).

Knows HTTP and TLS only. Does not support redirects, cookies, proxies or decompression, nor bodies that end when the
connection closes, because a body that was cut off looks the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

from headway.errors import ConnectionFailed, ResponseTooLarge

CONNECT_TIMEOUT_S = 5.0
# vLLM's server, uvicorn, closes connections that are idle for 5 s. A much shorter limit avoids sending a request on a
# connection that is being closed.
IDLE_REUSE_S = 2.0
MAX_HEAD_BYTES = 64 * 1024
MAX_WHOLE_BODY_BYTES = 32 * 2**20
# A read of this size has the tokens of several steps of a busy engine, in as many chunks. They are passed on in one
# piece, because a piece costs the relay more than a chunk costs the parser. A smaller read has one token.
MANY_CHUNKS_BYTES = 512

Headers = tuple[tuple[bytes, bytes], ...]
Sink = Callable[[bytes], None]


class _SinkErrors:
    """Aborts a connection with whatever its sink raises, as httptools lets a callback do: the error is raised where the
    body is piped. Errors of the parser pass."""

    def __init__(self, connection: PooledConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception) or isinstance(
            error, httptools.HttpParserError | httptools.HttpParserUpgrade
        ):
            return False
        self._connection.abort(error)
        return True


class PooledConnection(asyncio.Protocol):
    """One connection, with at most one response in progress."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self.idle_since = 0.0
        self.parser: httptools.HttpResponseParser
        self.transport: asyncio.Transport
        self._sink_errors = _SinkErrors(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def start(self, response: Response, message: list[bytes]) -> None:
        self.response = response
        self.parser = httptools.HttpResponseParser(response)
        self.transport.writelines(message)

    def data_received(self, data: bytes) -> None:
        response = self.response
        if response is None:  # it belongs to no request
            self.transport.abort()
            return
        try:
            if len(data) < MANY_CHUNKS_BYTES:
                self.parser.feed_data(data)
            else:
                self._feed_many(response, data)
            if not response.has_head:
                response.count_head(len(data))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # httptools wraps an error raised by a callback; the context is then the sink's own error.
            self.abort(error.__context__ or ConnectionFailed(f"the server's response is not valid HTTP: {error}"))

    def _feed_many(self, response: Response, data: bytes) -> None:
        with self._sink_errors:
            response.is_collecting = True
            try:
                self.parser.feed_data(data)
            finally:  # also what came before something that is not valid
                response.is_collecting = False
                response.pass_on()

    def abort(self, error: BaseException) -> None:
        self._fail(error)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionFailed(f"the server closed the connection{f': {exc}' if exc else ''}"))

    def _fail(self, error: BaseException) -> None:
        if self.response is not None and not self.response.ended:
            self.response.fail(error)


class Response:
    """The response to one request; its `on_*` methods are httptools' callbacks."""

    def __init__(self, pool: ConnectionPool, connection: PooledConnection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}  # by name in lower case; the last of several
        self.ended = False
        self.has_head = False
        self._head_bytes = 0
        self._keep_alive = False
        self._closed = False
        self._pool = pool
        self._connection = connection
        self._sink: Sink | None = None
        self._early: list[bytes] = []  # body received before `read` or `pipe`
        self._early_bytes = 0
        self.is_collecting = False  # the chunks of a large read, which are passed on in one piece
        self._chunks: list[bytes] = []
        loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[None] = loop.create_future()

    # --- called by httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self.ended:  # another response in the same read, which nobody asked for
            raise ConnectionFailed("the server sent more than it was asked for")
        parser = self._connection.parser
        self.status = parser.get_status_code()
        self.has_head = self.status >= 200  # "100 Continue" and the like: the response follows
        self._keep_alive = parser.should_keep_alive()  # the parser no longer knows it later

    def on_body(self, data: bytes) -> None:
        if self.is_collecting:
            self._chunks.append(data)
            return
        if self._sink is not None:
            self._sink(data)
            return
        self._early.append(data)
        self._early_bytes += len(data)
        if self._early_bytes > MAX_WHOLE_BODY_BYTES:
            advice = "ask for less in one call: fewer tokens, or fewer inputs"
            message = f"the server's response is larger than {MAX_WHOLE_BODY_BYTES} bytes; {advice}"
            self.fail(ResponseTooLarge(message))
            self._connection.transport.abort()
        elif not self._first.done():
            self._first.set_result(None)

    def on_message_complete(self) -> None:
        if not self.has_head:
            return
        self.is_collecting = False
        self.pass_on()
        self.ended = True
        for future in (self._first, self._end):
            if not future.done():
                future.set_result(None)

    # --- called by the connection ---

    def pass_on(self) -> None:
        """Pass on the chunks that were collected."""
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            self.on_body(b"".join(chunks))

    def count_head(self, count: int) -> None:
        """Count bytes that came before the end of the head, so that a head without an end is not kept for ever."""
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD_BYTES:
            self.fail(ConnectionFailed(f"the head of the server's response is larger than {MAX_HEAD_BYTES} bytes"))
            self._connection.transport.abort()

    # --- called by the user ---

    @property
    def content_type(self) -> bytes:
        return self.headers.get(b"content-type", b"")

    async def first_byte(self) -> None:
        """Returns at the first byte of the body, or at its end if it has none."""
        await self._first

    async def read(self) -> bytes:
        """The whole body, at most MAX_WHOLE_BODY_BYTES."""
        await self._end
        return b"".join(self._early)

    async def pipe(self, sink: Sink) -> None:
        """Call `sink` with what each read of the socket has of the body; returns at the end of the body.

        Raises ConnectionFailed if the body is cut off, and whatever `sink` raises.
        """
        early, self._early = self._early, []
        if early:
            sink(b"".join(early))  # at once: the times at which its pieces came are not known any more
        self._sink = sink
        await self._end

    def pause(self) -> None:
        """Stop reading, so that the server has to wait once the buffers in between are full."""
        if not self._closed:
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if not self._closed and not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    def close(self) -> None:
        """Return the connection to the pool. Before the body's end this aborts it, which tells the server to stop."""
        if self._closed:
            return
        self._closed = True
        self._sink = None
        for future in (self._first, self._end):
            # Mark the exception as retrieved, so that asyncio does not log one that nobody awaited.
            if future.done() and not future.cancelled():
                future.exception()
        self._pool.put_back(self._connection, reusable=self.ended and self._keep_alive)

    def fail(self, error: BaseException) -> None:
        for future in (self._first, self._end):
            if not future.done():
                future.set_exception(error)


class ConnectionPool:
    """Connections to one server. Reuses idle connections; does not limit how many are open.

    Verifies https URLs against the system's certificates, or with the context `tls`.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if is_tls else 80)
        # One context for all connections, because making one loads all system certificates.
        self._tls = (tls or ssl.create_default_context()) if is_tls else None
        authority = f"[{self._host}]" if ":" in self._host else self._host
        self._prefix = parts.path.rstrip("/").encode()
        self._host_line = f" HTTP/1.1\r\nhost: {authority}:{self._port}\r\n".encode()
        self._idle: list[PooledConnection] = []
        self._closed = False

    async def request(
        self,
        method: bytes,
        path: str,
        body: bytes = b"",
        headers: Headers = (),
        before_write: Callable[[], None] | None = None,
    ) -> Response:
        """Send a request; returns at the first byte of the response's body, or at its end if it is empty.

        A reused connection that fails before that was most likely closed because it was idle, so the request is retried
        once on a new connection. `before_write` is called immediately before each write, and may raise to prevent it.
        """
        message = self._message(method, path, body, headers)
        connection = self._take_idle()
        is_reused = connection is not None
        if connection is not None:
            with contextlib.suppress(ConnectionFailed):
                return await self._first_byte(connection, message, before_write)
        try:
            connection = await self._connect()
        except ConnectionFailed as failed:
            failed.reached = is_reused  # the first try may have reached the server
            raise
        return await self._first_byte(connection, message, before_write)

    async def send(self, method: bytes, path: str, body: bytes = b"", headers: Headers = ()) -> Response:
        """Send a request; returns as soon as it is written, and never retries.

        For measurements: a sink that is passed to `pipe` at once also gets the first byte straight from the socket.
        """
        message = self._message(method, path, body, headers)
        return self._start(self._take_idle() or await self._connect(), message)

    async def exchange(self, method: bytes, path: str, body: bytes = b"", headers: Headers = ()) -> tuple[int, bytes]:
        """Send a request and read the whole response. Returns (status, body)."""
        response = await self.request(method, path, body, headers)
        try:
            return response.status, await response.read()
        finally:
            response.close()

    def put_back(self, connection: PooledConnection, *, reusable: bool) -> None:
        connection.response = None
        if reusable and not self._closed and not connection.transport.is_closing():
            connection.transport.resume_reading()  # the last response may have paused it
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.transport.abort()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().transport.abort()

    def _take_idle(self) -> PooledConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now - connection.idle_since < IDLE_REUSE_S:
                return connection
            connection.transport.abort()
        return None

    async def _connect(self) -> PooledConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(PooledConnection, self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            where = f"{self._host}:{self._port}"
            raise ConnectionFailed(f"cannot connect to {where}: {str(error) or 'timed out'}", reached=False) from error
        return connection

    def _start(self, connection: PooledConnection, message: list[bytes]) -> Response:
        if connection.transport.is_closing():
            raise ConnectionFailed("the server closed the connection", reached=False)
        response = Response(self, connection)
        connection.start(response, message)
        return response

    async def _first_byte(
        self, connection: PooledConnection, message: list[bytes], before_write: Callable[[], None] | None
    ) -> Response:
        if before_write is not None:
            with contextlib.ExitStack() as if_prevented:
                if_prevented.callback(self.put_back, connection, reusable=True)
                before_write()
                if_prevented.pop_all()
        response = self._start(connection, message)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(response.close)
            await response.first_byte()
            on_failure.pop_all()
        return response

    def _message(self, method: bytes, path: str, body: bytes, headers: Headers) -> list[bytes]:
        lines = [method, b" ", self._prefix, path.encode(), self._host_line]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if body:
            lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return [b"".join(lines), body]


async def fetch(pool: ConnectionPool, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET a small body. Returns (status, body), or (0, b"") if the server does not answer in time."""
    with contextlib.suppress(ConnectionFailed, TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await pool.exchange(b"GET", path)
    return 0, b""
