"""One connection between a relay and the dispatcher, the same for both ends.

A frame is its length in 4 bytes, and one message (frames.py). What is sent while received data is handled is written
after that, and anything else at the end of the turn of the event loop; always in the order in which it was sent. Events
or actions that follow each other are one message.

Nothing is queued without a bound. Messages are handled as they arrive. If the other side does not read, the link is
closed: the relay connects again and says what it has, so nothing is lost by that.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from headway.core.types import Action, Event
from headway.dispatch.codec import ACTIONS_HEAD, EVENTS_HEAD, Row, action_row, encode, event_row, join
from headway.dispatch.frames import MAX_BATCH, Message
from headway.dispatch.handshake import MAX_HANDSHAKE_FRAME, Handshake
from headway.errors import ConnectionFailed

log = logging.getLogger("headway.dispatch")

MAX_FRAME = 8 * 2**20
MAX_BATCH_BYTES = 2**20
MAX_UNSENT = 32 * 2**20
CLOSE_S = 1.0  # for what is still to be sent when the link is closed
_LENGTH = struct.Struct(">I")

Received = TypeVar("Received", contravariant=True)


class Receiver(Protocol[Received]):
    """The user of a link. `on_lost` is called once, after the last message, when the connection is gone."""

    def on_message(self, message: Received) -> None: ...

    def on_lost(self, reason: str) -> None: ...


class Link:
    """Calls `make_receiver` once the other side is trusted. `opened` then has the result "", else why it is not.

    An asyncio.Protocol that does not inherit from it: compiled (setup.py), a class with such a base is slow."""

    def __init__(
        self,
        name: str,
        decode: Callable[[bytes | bytearray], Any],
        make_receiver: Callable[[Link], Receiver[Any]],
        handshake: Handshake | None = None,
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[str] = self._loop.create_future()
        self._decode = decode
        self._make_receiver = make_receiver
        self._receiver: Receiver[Any] | None = None
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._reason = ""  # why the link is closed; empty: it is not
        self._is_lost = False
        self._partial = bytearray()  # the beginning of a frame
        self._out: list[bytes] = []  # what this turn has sent
        self._rows: list[Row] = []  # what follows, as one message
        self._rows_bytes = 0
        self._rows_head = EVENTS_HEAD
        self._will_flush = False

    def as_protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self)

    # --- called by the user ---

    def send(self, message: Message) -> None:
        """Raises ValueError or OverflowError if the message cannot be sent. Does nothing once the link is closed."""
        if self._reason:
            return
        payload = encode(message)
        if len(payload) > MAX_FRAME:
            raise ValueError(f"a message of {len(payload)} bytes is longer than {MAX_FRAME}")
        self._end_batch()
        self._out += (_LENGTH.pack(len(payload)), payload)
        self._schedule_flush()

    def tell(self, event: Event) -> None:
        """Raises ValueError or OverflowError if the event cannot be sent. Does nothing once the link is closed."""
        if not self._reason:
            self._add(event_row(event), EVENTS_HEAD)

    def act(self, action: Action) -> None:
        """Raises ValueError or OverflowError if the action cannot be sent. Does nothing once the link is closed."""
        if not self._reason:
            self._add(action_row(action), ACTIONS_HEAD)

    def close(self, reason: str) -> None:
        """Send what was sent until now and close. `on_lost` follows, within CLOSE_S."""
        if self._reason or self._transport is None:
            return
        self._flush()
        if not self._reason:  # the flush may have found that the other side does not read
            self._reason = reason
            # Not now: uvloop fails if TLS is closed while it hands over data and the other side has closed it too.
            self._loop.call_soon(self._transport.close)
            self._loop.call_later(CLOSE_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close at once. `on_lost` follows in the next turn."""
        if not self._reason:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()
            # uvloop does not report the end of a connection if whoever waited for its beginning was cancelled.
            self._loop.call_soon(self.connection_lost, None)

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._reason:
            self._transport.abort()
        elif self._handshake is None:
            self._open()
        else:
            self._send_handshake(self._handshake.start())

    def data_received(self, data: bytes) -> None:
        if self._reason:
            return
        self._will_flush = True  # here, and not in a turn of its own: the loop would have to look for events once more
        self._take(data)
        self._flush()

    def _take(self, data: bytes) -> None:
        received: bytes | bytearray = data
        if self._partial:
            self._partial += data
            received = self._partial
        at, end = 0, len(received)
        while end - at >= _LENGTH.size and not self._reason:
            (length,) = _LENGTH.unpack_from(received, at)
            limit = MAX_FRAME if self._handshake is None else MAX_HANDSHAKE_FRAME
            if length > limit:
                self._fail(f"a frame of {length} bytes is longer than {limit}")
                return
            start = at + _LENGTH.size
            if end - start < length:
                break
            at = start + length
            self._receive(received[start:at])
        if received is self._partial:
            del self._partial[:at]
        elif at < end:
            self._partial += received[at:]

    def eof_received(self) -> None:
        self.abort("the other side closed the connection")

    def pause_writing(self) -> None:
        """What is not read is bounded by MAX_UNSENT."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if not self._reason:
            self._reason = f"the connection failed: {exc}" if exc else "the other side closed the connection"
        self._out, self._rows, self._partial = [], [], bytearray()
        if not self.opened.done():
            self.opened.set_result(self._reason)
        if self._receiver is not None:
            self._receiver.on_lost(self._reason)

    # --- receiving ---

    def _receive(self, payload: bytes | bytearray) -> None:
        if self._handshake is not None:
            self._shake_hands(self._handshake, bytes(payload))
            return
        try:
            message = self._decode(payload)
        except (ValueError, RecursionError) as error:
            self._fail(f"a message cannot be decoded: {str(error)[:200]}")
            return
        if self._receiver is not None:
            self._receiver.on_message(message)

    def _shake_hands(self, handshake: Handshake, frame: bytes) -> None:
        try:
            self._send_handshake(handshake.receive(frame))
        except ConnectionFailed as error:
            self._fail(error.message)
            return
        if handshake.is_done:
            self._handshake = None
            self._open()

    def _open(self) -> None:
        self._receiver = self._make_receiver(self)
        if not self.opened.done():
            self.opened.set_result("")

    def _fail(self, reason: str) -> None:
        if self._receiver is not None:  # else whoever waits for `opened` reports it
            log.warning("The link to %s is closed: %s.", self.name, reason)
        self.abort(reason)

    # --- sending ---

    def _send_handshake(self, frame: bytes) -> None:
        if frame and self._transport is not None:
            self._transport.write(_LENGTH.pack(len(frame)) + frame)

    def _add(self, row: Row, head: bytes) -> None:
        if len(row) > MAX_BATCH_BYTES:
            raise ValueError(f"an event or action of {len(row)} bytes is longer than {MAX_BATCH_BYTES}")
        is_full = len(self._rows) == MAX_BATCH or self._rows_bytes + len(row) > MAX_BATCH_BYTES
        if is_full or head is not self._rows_head:
            self._end_batch()
            self._rows_head = head
        self._rows.append(row)
        self._rows_bytes += len(row)
        self._schedule_flush()

    def _end_batch(self) -> None:
        if self._rows:
            payload = join(self._rows_head, self._rows)
            self._out += (_LENGTH.pack(len(payload)), payload)
            self._rows, self._rows_bytes = [], 0

    def _schedule_flush(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        self._end_batch()
        if not self._out:
            return
        out, self._out = self._out, []
        if self._reason or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(b"".join(out))
        unsent = self._transport.get_write_buffer_size()
        if unsent > MAX_UNSENT:
            self._fail(f"the other side does not read: {unsent} bytes wait to be sent")
