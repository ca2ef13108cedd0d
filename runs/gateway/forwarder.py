"""Copies bytes between clients and an engine and does nothing else: what any gateway in Python costs at the least.

`python -m runs.gateway.forwarder PORT ENGINE_PORT`
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class ToClient(asyncio.Protocol):
    """The connection to the engine."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._client.close()


class ToEngine(asyncio.Protocol):
    """The connection of a client."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self._early: list[bytes] = []  # what came before the engine was connected
        self._engine: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast(asyncio.Transport, transport)  # uvloop's transports are of classes of their own
        self._connecting = asyncio.get_running_loop().create_task(self._connect(client))

    async def _connect(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            engine, _ = await loop.create_connection(lambda: ToClient(client), "127.0.0.1", self._engine_port)
        except OSError:
            client.close()
            return
        engine.writelines(self._early)
        self._engine = engine

    def data_received(self, data: bytes) -> None:
        if self._engine is None:
            self._early.append(data)
        else:
            self._engine.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._engine is not None:
            self._engine.close()


async def serve(port: int, engine_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ToEngine(engine_port), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
