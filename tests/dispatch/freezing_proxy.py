"""A TCP connection to a server, through a proxy that can stop carrying bytes without closing anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.running import raw_server


class FreezingProxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._flows = asyncio.Event()
        self._flows.set()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [
            asyncio.create_task(self._carry(reader, server_writer)),
            asyncio.create_task(self._carry(server_reader, writer)),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            server_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
            writer.write_eof()
        except (ConnectionError, OSError):
            writer.close()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[tuple[FreezingProxy, int]]:
    """Gives the link and the port at which it listens."""
    link = FreezingProxy(port)
    async with raw_server(link.serve) as url:
        yield link, urlsplit(url).port or 0
