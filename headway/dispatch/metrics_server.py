"""One page over HTTP: the metrics of a dispatcher, which has no gateway that could serve them.

Each connection gets one answer. A request is bounded in size and time, and so is the number of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.dispatch.address import TcpAddress
from headway.errors import SetupError

MAX_HEAD_BYTES = 8 * 2**10
MAX_CONNECTIONS = 16
ANSWER_S = 5.0  # to read the request and to send the page
PAGE_TYPE = "text/plain; version=0.0.4"


class MetricsServer:
    def __init__(self, address: TcpAddress, page: Callable[[], bytes]) -> None:
        self._address = address
        self._page = page
        self._server: asyncio.Server | None = None
        self._connections = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Raises SetupError if this is not possible."""
        where = self._address
        try:
            self._server = await asyncio.start_server(self._serve, where.host, where.port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise SetupError(
                f"Cannot serve metrics on {where.host}:{where.port}: the port may be in use. Choose another one."
            ) from error

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # a TimeoutError is an OSError
            writer.transport.abort()
        finally:
            self._connections -= 1

    def _answer(self, head: bytes) -> bytes:
        match head.split(b"\r\n", 1)[0].split(b" "):
            case [b"GET", target, _] if target.split(b"?")[0] == b"/metrics":
                return _response("200 OK", self._page())
            case [b"GET", _, _]:
                return _response("404 Not Found", b"The metrics are at /metrics.\n")
            case [_, _, _]:
                return _response("405 Method Not Allowed", b"Only GET is supported.\n", "allow: GET\r\n")
        return _response("400 Bad Request", b"This is not HTTP.\n")


def _response(status: str, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {PAGE_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    return f"{head}{headers}\r\n".encode() + body
