"""The links between relays and dispatchers, each through a forwarder that can cut it.

A link that is closed ends its connections and refuses new ones, as when a process or a firewall resets them. A link
that is frozen carries no more bytes and closes nothing, as when a cable is pulled. What was sent meanwhile arrives when
it flows again, if the connection is still there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

CHUNK = 65_536
RECENT_S = 0.6  # some heartbeats


class CuttableLink:
    """From one relay to one dispatcher. The relay connects to `port`."""

    def __init__(self, relay: str, dispatcher: str, target_port: int) -> None:
        self.relay = relay
        self.dispatcher = dispatcher
        self.port = 0
        self._target_port = target_port
        self._is_closed = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends = set[asyncio.StreamWriter]()
        self._serving = set[asyncio.Task[None]]()
        self._told: deque[tuple[float, int]] = deque()  # (when, bytes) that the dispatcher sent
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self.close()
        self._flows.set()
        if self._serving:
            await asyncio.wait(self._serving)

    def close(self) -> None:
        self._is_closed = True
        for end in tuple(self._ends):
            end.transport.abort()

    def freeze(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        self._is_closed = False
        self._flows.set()

    def told_lately(self) -> int:
        """Bytes that the dispatcher has sent to the relay. Only the leader sends more than a few."""
        since = time.monotonic() - RECENT_S
        while self._told and self._told[0][0] < since:
            self._told.popleft()
        return sum(count for _, count in self._told)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target_port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends, ways = [writer], list[asyncio.Task[None]]()
        self._ends.add(writer)
        try:
            await self._flows.wait()
            if self._is_closed:
                return
            to_reader, to_writer = await self._connect()
            ends.append(to_writer)
            self._ends.add(to_writer)
            ways.append(asyncio.create_task(self._carry(reader, to_writer, is_from_dispatcher=False)))
            ways.append(asyncio.create_task(self._carry(to_reader, writer, is_from_dispatcher=True)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await self._flows.wait()  # that one side has ended is not seen through a frozen link
        except OSError:
            pass  # the dispatcher does not listen: the relay sees its connection end
        finally:
            for way in ways:
                way.cancel()
            for end in ends:
                self._ends.discard(end)
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_from_dispatcher: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._flows.wait()
                if is_from_dispatcher:
                    self._told.append((time.monotonic(), len(data)))
                writer.write(data)
                await writer.drain()


def leader_of(links: list[CuttableLink]) -> str | None:
    """The dispatcher that relays hear from; None if no relay hears from any."""
    told: dict[str, int] = {}
    for link in links:
        told[link.dispatcher] = told.get(link.dispatcher, 0) + link.told_lately()
    loudest = max(told, key=lambda name: told[name])
    return loudest if told[loudest] else None
