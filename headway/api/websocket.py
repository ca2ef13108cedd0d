"""One WebSocket: messages in and out, over a connection that has left HTTP.

The frames are read and written by the sans-I/O layer of websockets. Here is what a stranger can cost: the size of a
message and the time it may take, the time to read frames, what is written and not read, and clients that are gone. No
compression is offered: its buffers would be larger than everything else that an idle socket costs.

Whoever owns the socket calls `check` from time to time; a socket has no timer of its own while it is idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol as Interface

from websockets.datastructures import Headers as FieldLines
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

from headway.api.check_time import FREE_S
from headway.api.connection import Connection
from headway.api.dialect import HeaderList
from headway.errors import HeadwayError, InvalidRequest

clock = time.monotonic

MESSAGE_TIMEOUT_S = 60.0  # from the first byte of a message to its last one
# A client that sent nothing for this long gets a ping, and must send something within as long again. Load balancers
# close connections that are idle for a minute.
PING_AFTER_S = 25.0
# How long frames are read before the event loop gets its turn, and how many bytes at least: a frame may have six.
TURN_S = FREE_S
PIECE_BYTES = 1024
HANDSHAKE_FIELDS = (b"upgrade", b"connection", b"sec-websocket-")
DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class UpgradeRequired(InvalidRequest):
    """The endpoint is a WebSocket, or would be one. Clients go on without it."""

    status = 426


class TooManySockets(HeadwayError):
    """No more sockets are opened now. Clients go on with `POST`, or retry."""

    retry_after_s = 1

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def answer_handshake(http_version: str, fields: Iterable[tuple[bytes, bytes]], added: HeaderList) -> bytes:
    """The answer that accepts a handshake. Raises UpgradeRequired if the request is none, or InvalidRequest."""
    lines = FieldLines(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in fields if name.startswith(HANDSHAKE_FIELDS)
    )
    response = ServerProtocol().accept(Handshake("/", lines, protocol=f"HTTP/{http_version}"))
    if response.status_code == UpgradeRequired.status:
        raise UpgradeRequired("This is a WebSocket. Open it with a WebSocket client, or send requests with `POST`.")
    if response.status_code != 101:
        raise InvalidRequest("The handshake of the WebSocket is not valid.")
    for name, value in added:
        response.headers[name.decode("latin-1")] = value.decode("latin-1")
    return response.serialize()


class MessageReader(Interface):
    """Who reads the messages of a socket."""

    def message_received(self, message: bytes, /) -> None: ...

    def socket_closed(self) -> None:
        """The socket takes and sends nothing any more. Called once, unless the client is gone."""

    def drain(self) -> None: ...


class WebSocket:
    """Implements connection.Upgraded. `charge` is called with the time that it took to read what arrived, and returns
    for how long the socket must not be read then."""

    def __init__(
        self,
        connection: Connection,
        reader: MessageReader,
        *,
        max_bytes: int,
        stall_s: float,
        charge: Callable[[float], float],
    ) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._reader = reader
        self._charge = charge
        self._stall_s = stall_s
        self._frames = Protocol(Side.SERVER, max_size=max_bytes)
        self._ahead = b""  # received and not read yet
        self._message = bytearray()  # its fragments so far
        self._began_at: float | None = None  # the message that is not complete
        self._heard_at = clock()
        self._pinged_at: float | None = None
        self._is_ending = False
        self._stall: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._streams: dict[object, tuple[Callable[[], None], Callable[[], None]]] = {}
        self.drain = reader.drain

    @property
    def is_open(self) -> bool:
        return self._frames.state is State.OPEN and not self._transport.is_closing()

    # --- in ---

    def data_received(self, data: bytes) -> None:
        self._heard_at, self._pinged_at = clock(), None
        self._ahead += data
        if self._rest is None and self._stall is None:
            self._read()

    def _read(self) -> None:
        """Read frames, for TURN_S at most: thousands fit into what arrives at once. The rest waits for another turn,
        and longer if the client's key has used up its time."""
        began = time.thread_time()
        took = 0.0
        while self._ahead and self._stall is None and took < TURN_S:
            piece, self._ahead = self._ahead[:PIECE_BYTES], self._ahead[PIECE_BYTES:]
            self._frames.receive_data(piece)
            self._take_frames()
            took = time.thread_time() - began
        if not self.is_open:
            self._ahead = b""
            return
        is_partial = self._frames.current_size is not None or self._frames.reader.buffer
        self._began_at = (self._began_at or self._heard_at) if is_partial else None
        rest_s = self._charge(took + (TURN_S if self._ahead else 0.0))  # only what takes one turn has free time
        if self._ahead or rest_s:
            self._connection.flow.pause_reading()
        if self._rest is None and (rest_s or (self._ahead and self._stall is None)):
            self._rest = asyncio.get_running_loop().call_later(rest_s, self._end_rest)

    def _take_frames(self) -> None:
        for frame in self._frames.events_received():
            if not isinstance(frame, Frame) or frame.opcode not in DATA or not self.is_open:
                continue
            if not frame.fin or self._message:
                self._message += frame.data
            if frame.fin:
                message = bytes(self._message or frame.data)
                self._message.clear()
                self._began_at = None
                self._reader.message_received(message)
        self._flush()

    def _end_rest(self) -> None:
        self._rest = None
        self._read_on()

    def _read_on(self) -> None:
        if self._ahead and self._rest is None and self._stall is None:
            self._read()
        if not self._ahead and self._rest is None and self._stall is None and self.is_open:
            self._connection.flow.resume_reading()

    # --- out ---

    def send(self, message: bytes) -> None:
        """Send a text message. If the socket is closed, nothing happens."""
        if self.is_open:
            self._frames.send_text(message)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        if self.is_open:
            self._frames.send_close(code, reason)
            self._flush()

    def abort(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        for piece in self._frames.data_to_send():
            if piece and not self._transport.is_closing():
                self._transport.write(piece)
        if self._frames.state is not State.OPEN and not self._is_ending:
            self._is_ending = True
            self._reader.socket_closed()
            if not self._transport.is_closing():
                self._connection.linger()

    # --- a client that does not read ---

    def watch(self, owner: object, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call `pause` when the client does not read, and `resume` when it has."""
        self._streams[owner] = pause, resume
        if self._stall is not None:
            pause()

    def unwatch(self, owner: object) -> None:
        self._streams.pop(owner, None)

    def pause(self) -> None:
        """Nothing is read either: each message and each ping has an answer, which would have to be kept."""
        if self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(self._stall_s, self.abort)
            self._connection.flow.pause_reading()
            for pause, _ in list(self._streams.values()):
                pause()

    def resume(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
            self._read_on()
            for _, resume in list(self._streams.values()):
                resume()

    # --- time ---

    def check(self, now: float) -> None:
        """Ping a client that is silent, and cut off one that is gone or takes too long for a message."""
        if not self.is_open or self._stall is not None or self._rest is not None:
            return
        if self._began_at is not None and now - self._began_at > MESSAGE_TIMEOUT_S:
            self.close(CloseCode.POLICY_VIOLATION, "The message arrives too slowly.")
        elif self._pinged_at is not None:
            if now - self._pinged_at > PING_AFTER_S:
                self.abort()
        elif now - self._heard_at > PING_AFTER_S:
            self._pinged_at = now
            self._frames.send_ping(b"")
            self._flush()

    def stop(self) -> None:
        """The connection is lost."""
        for timer in (self._stall, self._rest):
            if timer is not None:
                timer.cancel()
        self._streams.clear()
