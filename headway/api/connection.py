"""One client's connection: uvicorn's protocol, with bounds on what a stranger can cost.

- Bounded are heads in bytes, in number of headers and in time, pauses between requests, requests sent ahead, answers
  that are not read, and the number of connections. uvicorn bounds few of these.
- One request is parsed at a time. Bytes of a later request wait until the present one has been answered.
- A call's task is cancelled when the client disconnects, whether the call is held, connecting or streaming.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headway.api.open_connections import OpenConnections

READ_BYTES = 32 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
# Sizes and extensions of chunks, and trailers. Each chunk costs a call of Python code.
MAX_FRAMING_BYTES = 32 * 1024
MAX_FRAMING_SHARE = 0.125
HEAD_END = b"\r\n\r\n"
HEAD_TIMEOUT_S = 15.0
# Bytes of later requests that are kept while a request is answered. With more, the gateway stops reading, and then it
# notices only when it writes that the client has disconnected.
MAX_AHEAD_BYTES = 4 * 1024
# Unread bytes of a stream that may be buffered for one client before the gateway stops reading from the engine.
MAX_UNREAD_BYTES = 256 * 1024
# A client that reads nothing of its answer for this long is disconnected. Streams have `reader_stall_s` instead.
WRITE_STALL_S = 30.0
# After the last answer on a connection the gateway still reads, and drops, this much: a connection that is closed while
# the client sends is reset, and the client may lose the answer.
LINGER_S = 2.0
LINGER_BYTES = 512 * 1024


class HeadTooLarge(Exception):
    """Raised inside the parser: the answer is 431."""


class RequestAhead(Exception):
    """Raised inside the parser if a request begins in the piece in which a chunked body ends. The parser cannot stop
    between the two, so the connection is closed after the answer, and the client sends the later request again."""


class Flow(FlowControl):
    """Calls `on_resume` when reading goes on."""

    def __init__(self, transport: asyncio.Transport, on_resume: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_resume = on_resume

    def resume_reading(self) -> None:
        super().resume_reading()
        self._on_resume()


class Upgraded(Protocol):
    """What a connection becomes that leaves HTTP (api/websocket.py)."""

    def data_received(self, data: bytes) -> None: ...

    def pause(self) -> None:
        """The client does not read what was written."""

    def resume(self) -> None: ...

    def drain(self) -> None:
        """The server stops: end, once the calls have ended."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    task: asyncio.Task[None] | None = None  # the call in progress
    closes = False  # after the present answer
    _in_head = True  # the head of the next request is not complete
    _head_has_begun = False
    _head_bytes = 0
    _head_tail = b""
    _wants_body = False  # the application has asked for the body: before, not a byte of it is parsed
    _body_left: int | None = None  # None if the body is chunked
    _is_body_unparsed = False
    _body_bytes = 0
    _framing_bytes = 0
    _ahead = b""  # received and not parsed yet
    _discarded: int | None = None  # bytes dropped, once nothing is parsed any more
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _pause: Callable[[], None] | None = None
    _resume: Callable[[], None] | None = None
    _upgraded: Upgraded | None = None

    def __init__(self, open_connections: OpenConnections, refuse: Any, **settings: Any) -> None:
        """`refuse` is the ASGI application for requests that no regular place is free for."""
        super().__init__(**settings)
        self._open_connections = open_connections
        self._serve, self._refuse_place = self.app, refuse

    # --- the life of a connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self._on_resume)
        self._close_in(HEAD_TIMEOUT_S)
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open_connections.remove(self)
        self._stop_timer()
        self._stop_write_timer()
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Close the connection once what was written has been sent. A client that does not read is cut off."""
        self._stop_timer()
        self.transport.close()
        self._watch_writes()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._watch_writes()
        elif self.closes:
            self.linger()
        else:
            self._in_head, self._head_has_begun = True, False
            self._head_bytes, self._head_tail = 0, b""
            self._close_in(self._open_connections.keep_alive_s)
            self._open_connections.begin_waiting(self)
            self.flow.resume_reading()

    def upgrade(self, upgraded: Upgraded, answer: bytes) -> None:
        """Leave HTTP: send the answer to the present request, and pass all that arrives to `upgraded`."""
        self._upgraded = upgraded
        self.cycle.response_started = self.cycle.response_complete = True  # uvicorn would add an answer of its own
        self.transport.write(answer)
        self.on_backpressure(upgraded.pause, upgraded.resume)
        ahead, self._ahead = self._ahead, b""
        self.flow.resume_reading()
        if ahead:
            upgraded.data_received(ahead)

    def shutdown(self) -> None:
        if self._upgraded is not None:
            self._upgraded.drain()
        else:
            super().shutdown()

    def linger(self) -> None:
        """Send the end of the stream, drop what still arrives, and close soon."""
        self._discarded = 0
        self._ahead = b""
        self._close_in(LINGER_S)
        self._open_connections.begin_waiting(self)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _close_in(self, seconds: float) -> None:
        """No byte of the client stops this timer: only the end of a head, or of an answer."""
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.close()
        elif self._upgraded is not None:
            self._upgraded.data_received(data)
        else:
            self._ahead += data
            self._feed()

    def _on_resume(self) -> None:
        self._wants_body = True
        self._feed()

    def _feed(self) -> None:
        """Parse what has arrived, to the end of the present request at most."""
        if self.transport.is_closing():
            return
        while self._ahead and self._in_head:
            self._feed_head()
        if self._ahead and not self._in_head and self._wants_body and self.cycle.more_body:
            self._feed_body()
        if len(self._ahead) > MAX_AHEAD_BYTES:
            self.flow.pause_reading()

    def _feed_head(self) -> None:
        if not self._head_has_begun:  # empty lines before a request are allowed and mean nothing
            size = len(self._ahead)
            self._ahead = self._ahead.lstrip(b"\r\n")
            self._head_bytes += size - len(self._ahead)
        end = (self._head_tail + self._ahead).find(HEAD_END)
        size = len(self._ahead) if end < 0 else end + len(HEAD_END) - len(self._head_tail)
        piece = self._take(min(size, max(0, MAX_HEAD_BYTES - self._head_bytes)))
        self._head_bytes += len(piece)
        self._head_tail = (self._head_tail + piece[-3:])[-3:]
        self._parse(piece)
        if self._in_head and self._head_bytes >= MAX_HEAD_BYTES:
            self._refuse(431, "The request's head is too large.")

    def _feed_body(self) -> None:
        if self.flow.read_paused:
            return
        size_before = len(self.cycle.body)
        if self._body_left is not None:
            piece = self._take(self._body_left)
            self._body_left -= len(piece)
        else:
            piece = self._take(len(self._ahead))
        if self._is_body_unparsed:
            self.on_body(piece)
            if not self._body_left:
                self.on_message_complete()
        else:
            self._parse(piece)
        self._body_bytes += len(self.cycle.body) - size_before
        self._framing_bytes += len(piece) - (len(self.cycle.body) - size_before)
        if self._framing_bytes > MAX_FRAMING_BYTES + self._body_bytes * MAX_FRAMING_SHARE:
            self._refuse(431, "The request's chunks are too small, or its trailers too large.")

    def _take(self, size: int) -> bytes:
        piece, self._ahead = self._ahead[:size], self._ahead[size:]
        return piece

    def _parse(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # The application decides whether to upgrade; else the request is answered as it is. The parser has ended it
            # with its head.
            if self._body_left:
                self.cycle.more_body = self._is_body_unparsed = True
            elif any(name == b"transfer-encoding" for name, _ in self.headers):
                self._stop_parsing()
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, RequestAhead):
                self._stop_parsing()
            elif isinstance(error.__context__, HeadTooLarge):
                self._refuse(431, "The request's head is too large.")
            else:
                self._refuse(400, "Invalid HTTP request.")

    def _stop_parsing(self) -> None:
        self.closes = True
        self._discarded = 0
        self._ahead = b""

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that could not be parsed, and close the connection."""
        if self._discarded is not None:
            return
        self._open_connections.log.write(f"{message} Answered with {status}.")
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.close()
                return
            self.cycle.disconnected = True  # ends the task, which waits for the rest of the body
            self.cycle.waiting_for_100_continue = False  # else the task may write after the end
            self.cycle.message_event.set()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(message) + message.encode())
        self.linger()

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            raise RequestAhead
        super().on_message_begin()
        self._head_has_begun = True
        self._close_in(HEAD_TIMEOUT_S)
        self.scope["state"]["connection"] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = self._wants_body = self._is_body_unparsed = False
        self._body_bytes = self._framing_bytes = 0
        self._stop_timer()
        self._open_connections.end_waiting(self)
        may_serve = self._open_connections.may_serve(self, self.url.partition(b"?")[0])
        self.app = self._serve if may_serve else self._refuse_place
        super().on_headers_complete()
        length = next((value for name, value in self.headers if name == b"content-length"), None)
        self._body_left = int(length) if length is not None else None
        if self.flow.write_paused:
            self._watch_writes()

    # --- answers ---

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._pause is not None:
            self._pause()
        else:
            self._watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_write_timer()
        if self._resume is not None:
            self._resume()

    def on_backpressure(self, pause: Callable[[], None] | None, resume: Callable[[], None] | None) -> None:
        self._pause, self._resume = pause, resume
        if pause is None:
            if self.flow.write_paused:
                self._watch_writes()
            return
        self._stop_write_timer()
        self.transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        if self.flow.write_paused:
            pause()

    def _watch_writes(self, unsent_before: int | None = None) -> None:
        self._stop_write_timer()
        unsent = self.transport.get_write_buffer_size()
        if unsent_before is not None and unsent >= unsent_before:
            self.transport.abort()
        elif unsent:
            self._write_timer = self.loop.call_later(WRITE_STALL_S, self._watch_writes, unsent)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class SmallReads(asyncio.BufferedProtocol):
    """Passes a connection what it receives in pieces of READ_BYTES at most. uvloop's own pieces have up to 256 kB,
    which the gateway would have to keep for every client that sends more than it may."""

    _buffer = memoryview(bytearray(READ_BYTES))  # shared: a piece is copied before the next one is read

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._connection.data_received(bytes(self._buffer[:size]))
