"""Both ends of links for tests: receivers that remember, and a transport without a socket."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from headway.dispatch.codec import decode_from_relay
from headway.dispatch.link import Link

LENGTH = struct.Struct(">I")


class Remembering:
    """A receiver that remembers what it got."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.messages: list[Any] = []
        self.lost: list[str] = []
        self._changed = asyncio.Event()

    def on_message(self, message: Any) -> None:
        assert not self.lost
        self.messages.append(message)
        self._changed.set()

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self._changed.set()

    async def until(self, messages: int = 0, *, lost: bool = False) -> None:
        async with asyncio.timeout(20):
            while len(self.messages) < messages or (lost and not self.lost):
                self._changed.clear()
                await self._changed.wait()


class Sessions:
    """Makes receivers, and waits for them."""

    def __init__(self) -> None:
        self.made: list[Remembering] = []
        self._changed = asyncio.Event()

    def __call__(self, link: Link) -> Remembering:
        self.made.append(Remembering(link))
        self._changed.set()
        return self.made[-1]

    async def first(self) -> Remembering:
        async with asyncio.timeout(20):
            while not self.made:
                self._changed.clear()
                await self._changed.wait()
        return self.made[0]


class Wire(asyncio.Transport):
    """What a link writes is in `written`, one element for each write."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.unsent = 0
        self._protocol = protocol
        self._closing = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    close = abort


def wired() -> tuple[Link, Wire, Remembering]:
    """The dispatcher's end of a link, open, without a socket."""
    sessions = Sessions()
    link = Link("a relay", decode_from_relay, sessions)
    wire = Wire(link.as_protocol())
    return link, wire, sessions.made[0]


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def frames_in(data: bytes) -> list[bytes]:
    payloads = []
    while data:
        (length,) = LENGTH.unpack_from(data)
        payloads.append(data[LENGTH.size : LENGTH.size + length])
        data = data[LENGTH.size + length :]
    return payloads
