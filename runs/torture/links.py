"""A TCP link that can be made faulty: closed, frozen, slow, corrupt, cut off in the middle.

Clients connect to the link's port, and the link to its target. What it carries means nothing to it. While it is whole
it costs one read and one write for each piece that passes.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

LOCALHOST = "127.0.0.1"
MOST_LATE_BYTES = 256 * 1024  # that a slow link keeps for one direction of a connection; then it reads no more
PIECE_S = 0.02  # a link that is slow carries at most this much of its bytes per second at once
RESET = struct.pack("ii", 1, 0)  # linger for no time: the kernel sends RST, not FIN


class FaultyLink:
    """From whoever connects to `port` to one target. Faults add up; `mend` ends them all."""

    def __init__(self, name: str, target_port: int, *, host: str = LOCALHOST, port: int = 0) -> None:
        """The link listens at `host` and `port` (0: any), and its target at localhost."""
        self.name = name
        self.host = host
        self.port = port
        self.target_port = target_port
        self.connections = self.flipped_bytes = self.truncated = 0  # so far
        self.is_frozen = self.is_faulty = self._is_closed = False
        self.delay_s, self.bytes_per_s, self.split = 0.0, math.inf, 0
        self.truncates_after: int | None = None
        self._ends: dict[_End, None] = {}
        self._connecting = set[asyncio.Task[None]]()
        self._corruption: _Corruption | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self), self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.mend()
            self.close()
            for task in (connecting := list(self._connecting)):
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    # --- faults ---

    def close(self) -> None:
        """Reset all connections, and new ones when they are made."""
        self._is_closed = True
        for end in tuple(self._ends):
            end.reset()

    def freeze(self) -> None:
        """Carry nothing and close nothing, as when a cable is pulled. What is sent meanwhile arrives after `mend`."""
        self.is_frozen = self.is_faulty = True
        for end in self._ends:
            end.settle_reading()

    def slow(self, delay_s: float = 0.0, bytes_per_s: float = math.inf, split: int = 0) -> None:
        """Delay what passes, limit the speed of each connection and direction, and send `split` bytes at once."""
        self.delay_s, self.bytes_per_s, self.split = delay_s, bytes_per_s, split
        self.is_faulty = True

    def corrupt(self, chance: random.Random, rate: float, *, most: int | None = None, both_ways: bool = False) -> None:
        """Change bytes of what the target sends, this share of them and at most so many."""
        self._corruption = _Corruption(chance, rate, math.inf if most is None else most, both_ways=both_ways)
        self.is_faulty = True

    def truncate(self, after_bytes: int) -> None:
        """End each connection, also new ones, as if the target had: after so many more bytes from it."""
        self.truncates_after = after_bytes
        self.is_faulty = True
        for end in self._ends:
            end.bytes_left = after_bytes

    def mend(self) -> None:
        self._is_closed = self.is_frozen = self.is_faulty = False
        self.delay_s, self.bytes_per_s, self.split = 0.0, math.inf, 0
        self._corruption = self.truncates_after = None
        for end in tuple(self._ends):
            end.bytes_left = None
            end.go_on()

    # --- for its connections ---

    def heard(self, count: int) -> None:
        """The target has sent bytes."""

    def corrupted(self, data: bytes, *, is_from_target: bool) -> bytes:
        corruption = self._corruption
        if corruption is None or not (is_from_target or corruption.both_ways):
            return data
        changed = bytearray(data)
        self.flipped_bytes += corruption.apply(changed)
        return bytes(changed)

    def add(self, end: _End) -> None:
        self._ends[end] = None
        end.bytes_left = self.truncates_after
        if self._is_closed:
            end.reset()
        elif not end.is_target:
            self.connections += 1
            if not self.is_frozen:
                self.connect(end)

    def discard(self, end: _End) -> None:
        self._ends.pop(end, None)

    def connect(self, client: _End) -> None:
        client.is_connecting = True
        task = asyncio.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _End(self, client), LOCALHOST, self.target_port)
        except OSError:
            client.reset()  # the target does not listen


class _Corruption:
    def __init__(self, chance: random.Random, rate: float, most: float, *, both_ways: bool) -> None:
        self.both_ways = both_ways
        self._chance, self._rate, self._left = chance, rate, most
        self._next = self._draw()  # bytes until the next one that is changed

    def _draw(self) -> int:
        return int(self._chance.expovariate(self._rate)) if self._rate > 0 else 2**62

    def apply(self, data: bytearray) -> int:
        """Returns how many bytes were changed."""
        at, changed = self._next, 0
        while at < len(data) and self._left > 0:
            data[at] ^= self._chance.randint(1, 255)
            self._left -= 1
            changed += 1
            at += 1 + self._draw()
        self._next = at - len(data) if at >= len(data) else 0
        return changed


class _End(asyncio.Protocol):
    """One end of a connection. What it receives goes to its peer."""

    transport: asyncio.Transport

    def __init__(self, link: FaultyLink, client: _End | None = None) -> None:
        self._link = link
        self._peer = client  # of the target's end: known from the start
        self.is_target = client is not None
        self.is_connecting = False
        self.bytes_left: int | None = None  # until the link ends the connection
        self._is_full = False  # its write buffer
        self._has_ended = False  # it sends no more
        self._is_at_end = False  # and its peer knows
        self._lost: Exception | bool = False  # how it was lost: with an error, or without (True)
        self._late: deque[tuple[float, bytes]] = deque()  # (when due, what); b"" is its end
        self._late_bytes = 0
        self._free_at_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    # --- from the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        if self._peer is not None:
            self._peer._peer = self
            if self._peer._lost:  # it has left meanwhile
                self.transport.abort()
        self._link.add(self)
        self.settle_reading()
        if self._peer is not None:
            self._peer.go_on()

    def data_received(self, data: bytes) -> None:
        link, peer = self._link, self._peer
        if self.is_target:
            link.heard(len(data))
        # uvloop reads once before an end that has no peer yet, or a new one of a frozen link, can stop it.
        if peer is None or link.is_faulty or self._late:
            self._carry_badly(data)
        else:
            peer.transport.write(data)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._late or self._link.delay_s or self._link.is_frozen or self._peer is None:
            self._carry_late(b"")
        else:
            self._end_peer()
        return True  # the other direction goes on

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = error or True
        if not self._link.is_frozen:  # through a frozen link nobody sees it
            self._leave()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._peer is not None:
            self._peer.settle_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._peer is not None:
            self._peer.settle_reading()

    # --- from the link ---

    def reset(self) -> None:
        if not self._lost:
            with suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    def settle_reading(self) -> None:
        """Read only what can be passed on."""
        if self._lost or self._has_ended or self.transport.is_closing():
            return
        peer = self._peer
        if self._link.is_frozen or peer is None or peer._is_full or self._late_bytes > MOST_LATE_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def go_on(self) -> None:
        """The link is mended, or the peer is there."""
        if self._timer is not None:
            self._timer.cancel()
        self._pump()
        if self._lost:
            self._leave()
        elif self._peer is None and not self.is_connecting:
            self._link.connect(self)
        self.settle_reading()

    # --- what it does to bytes ---

    def _carry_badly(self, data: bytes) -> None:
        link, peer = self._link, self._peer
        data = link.corrupted(data, is_from_target=self.is_target)
        if self.is_target and self.bytes_left is not None:
            data = data[: self.bytes_left]
            self.bytes_left -= len(data)
        is_slow = link.delay_s or link.split or link.bytes_per_s < math.inf
        if data and (peer is None or link.is_frozen or self._late or is_slow):
            self._carry_late(data)
        elif data and peer is not None:
            peer.transport.write(data)
        if self.is_target and self.bytes_left == 0 and not self.transport.is_closing():
            link.truncated += 1
            self.transport.abort()  # what it has sent is written, and then its peer is closed

    def _carry_late(self, data: bytes) -> None:
        self._late.append((self._loop.time() + self._link.delay_s, data))
        self._late_bytes += len(data)
        self.settle_reading()
        if self._timer is None:
            self._pump()

    def _pump(self) -> None:
        """Write one piece of what is late, if it is due, and come back for the next. One write in each turn of the
        loop, because several are sent as one."""
        self._timer = None
        link, peer = self._link, self._peer
        if not self._late or peer is None or link.is_frozen:
            return
        now_s = self._loop.time()
        due_s, data = self._late[0]
        if link.is_faulty and (wait_s := max(due_s, self._free_at_s) - now_s) > 0:
            self._timer = self._loop.call_later(wait_s, self._pump)
            return
        most = link.split or (len(data) if link.bytes_per_s == math.inf else int(link.bytes_per_s * PIECE_S) or 1)
        piece, rest = data[:most], data[most:]
        if rest:
            self._late[0] = (due_s, rest)
        else:
            self._late.popleft()
        self._late_bytes -= len(piece)
        self._free_at_s = max(self._free_at_s, now_s - PIECE_S) + len(piece) / link.bytes_per_s
        if not piece:
            self._end_peer()
        elif not peer._lost:
            peer.transport.write(piece)
        self.settle_reading()
        if self._late:
            self._timer = self._loop.call_soon(self._pump)
        elif self._lost:
            self._leave()

    def _end_peer(self) -> None:
        peer = self._peer
        assert peer is not None
        self._is_at_end = True
        if peer._is_at_end:  # both directions have ended
            peer.transport.close()
            self.transport.close()
        elif not peer._lost and not peer.transport.is_closing():
            peer.transport.write_eof()

    def _leave(self) -> None:
        """The connection is lost: end its peer, after what is late."""
        if self._late:
            return
        self._link.discard(self)
        peer = self._peer
        if peer is not None and not peer._lost:
            if isinstance(self._lost, Exception) or self._link._is_closed:
                peer.reset()
            else:
                peer.transport.close()


async def break_for_a_while(links: Sequence[FaultyLink], cause: Callable[[FaultyLink], None], for_s: float) -> None:
    for link in links:
        cause(link)
    await asyncio.sleep(for_s)
    for link in links:
        link.mend()
