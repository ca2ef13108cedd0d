"""HTTP/1.1 to one engine: a pool of connections, and answers that are handed over piece by piece.

Our own because it is the hot path: one asyncio protocol on httptools calls a sink for each piece, with no task to wake
and no queue in between (docs/design/0001 has the measurements against aiohttp and httpx). It speaks only to engines the
owner configured: no redirects, no cookies, no proxies, no decompression.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

from headway.errors import EngineLost

CONNECT_TIMEOUT_S = 5.0
# uvicorn, which serves vLLM, closes connections that are idle for 5 s. Staying well below keeps us from sending into
# a connection that is just being closed.
IDLE_REUSE_S = 2.0
MAX_WHOLE_BODY_BYTES = 64 * 2**20


class Connection(asyncio.Protocol):
    """One TCP connection, with at most one answer under way."""

    def __init__(self) -> None:
        self.answer: HTTPAnswer | None = None
        self.idle_since = 0.0
        self.transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def start(self, answer: HTTPAnswer, request: list[bytes]) -> None:
        self.answer = answer
        self._parser = httptools.HttpResponseParser(answer)
        answer.parser = self._parser
        self.transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What the sink raised comes wrapped; anything else is the engine not speaking HTTP.
            cause = error.__context__
            self._lose(
                cause if isinstance(cause, EngineLost) else EngineLost(f"the engine's answer is no HTTP: {error}")
            )
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(EngineLost(f"the engine closed the connection{f': {exc}' if exc else ''}"))

    def _lose(self, error: EngineLost) -> None:
        if self.answer is not None and not self.answer.ended:
            self.answer.fail(error)


class HTTPAnswer:
    """The answer to one request; its `on_*` methods are httptools' callbacks."""

    def __init__(self, pool: EnginePool, connection: Connection) -> None:
        self.status = 0
        self.content_type = b""
        self.ended = False
        self.parser: httptools.HttpResponseParser
        self._keep_alive = False
        self._pool = pool
        self._connection = connection
        self._sink: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []  # what came before anyone asked for it
        self._early_bytes = 0
        loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[None] = loop.create_future()

    # --- what httptools calls ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self._keep_alive = self.parser.should_keep_alive()  # asked later, the parser has forgotten

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink(data)
            return
        self._early.append(data)
        self._early_bytes += len(data)
        if self._early_bytes > MAX_WHOLE_BODY_BYTES:
            self.fail(EngineLost("the engine's answer is too long"))
            self._connection.transport.abort()
        elif not self._first.done():
            self._first.set_result(None)

    def on_message_complete(self) -> None:
        self.ended = True
        for future in (self._first, self._end):
            if not future.done():
                future.set_result(None)

    # --- what the gateway calls ---

    async def first_byte(self) -> None:
        await self._first

    async def read(self) -> bytes:
        await self._end
        return b"".join(self._early)

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        early, self._early = self._early, []
        for data in early:
            sink(data)
        self._sink = sink
        await self._end

    def pause(self) -> None:
        self._connection.transport.pause_reading()

    def resume(self) -> None:
        if not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    def close(self, reason: str | None = None) -> None:
        if reason is not None and not self.ended:
            self.fail(EngineLost(reason))
        self._sink = None
        for future in (self._first, self._end):
            # Whoever still cares has been told; this keeps asyncio from reporting the others as never retrieved.
            if future.done() and not future.cancelled():
                future.exception()
        self._pool.put_back(self._connection, reusable=self.ended and self._keep_alive)

    def fail(self, error: EngineLost) -> None:
        for future in (self._first, self._end):
            if not future.done():
                future.set_exception(error)


class EnginePool:
    """Connections to one engine. Takes an idle one where there is one, and makes one where there is not."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").encode()
        self._authority = f"[{self._host}]" if ":" in self._host else self._host
        self._idle: list[Connection] = []
        self._closed = False

    async def request(
        self, method: bytes, path: str, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> HTTPAnswer:
        """Send a request; returns at the first byte of the answer's body, or at its end if it has none."""
        message = [self._head(method, path, body, headers), body]
        connection = self._take_idle()
        reused = connection is not None
        if connection is not None:
            with contextlib.suppress(EngineLost):  # most likely closed for being idle: a fresh one will tell
                return await self._exchange(connection, message)
        try:
            connection = await self._connect()
        except EngineLost as lost:
            lost.reached = reused  # over the connection that was reused, it may have got there
            raise
        return await self._exchange(connection, message)

    def put_back(self, connection: Connection, *, reusable: bool) -> None:
        connection.answer = None
        if reusable and not self._closed and not connection.transport.is_closing():
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.transport.abort()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().transport.abort()

    def _take_idle(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now - connection.idle_since < IDLE_REUSE_S:
                return connection
            connection.transport.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=True if self._tls else None
                )
        except (OSError, TimeoutError) as error:
            raise EngineLost(f"cannot connect to the engine: {error or 'timed out'}", reached=False) from error
        return connection

    async def _exchange(self, connection: Connection, message: list[bytes]) -> HTTPAnswer:
        answer = HTTPAnswer(self, connection)
        if connection.transport.is_closing():
            raise EngineLost("the engine closed the connection", reached=False)
        connection.start(answer, message)
        try:
            await answer.first_byte()
        except BaseException:
            answer.close()
            raise
        return answer

    def _head(self, method: bytes, path: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        lines = [
            b"%b %b%b HTTP/1.1\r\nhost: %b:%d\r\n"
            % (method, self._prefix, path.encode(), self._authority.encode(), self._port)
        ]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if body:
            lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return b"".join(lines)


async def fetch(pool: EnginePool, path: str, timeout_s: float) -> tuple[int, bytes]:
    """A small GET: (status, body), or (0, b"") when the engine cannot be reached or does not answer in time."""
    with contextlib.suppress(EngineLost, TimeoutError):
        async with asyncio.timeout(timeout_s):
            answer = await pool.request(b"GET", path)
            try:
                return answer.status, await answer.read()
            finally:
                answer.close()
    return 0, b""
