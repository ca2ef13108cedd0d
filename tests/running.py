"""Runs a gateway, or a server that a test scripts by hand, inside a test, on a real port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from headway import run
from headway.config import Config
from headway.engines.scripted import ScriptedEngine
from headway.gateway.serve import Gateway

MODEL = "scripted"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Running:
    gateway: Gateway
    port: int
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until_up(self, replicas: int) -> None:
        """Wait until that many replicas take calls."""
        pool = self.gateway.machine.pools[MODEL]
        async with asyncio.timeout(20):
            while pool.open_replicas != replicas:
                await asyncio.sleep(0.01)

    async def until_empty(self) -> None:
        """Wait until no call is left anywhere in the gateway."""
        async with asyncio.timeout(20):
            while self.gateway.machine.calls or self.gateway._trips:
                await asyncio.sleep(0.01)

    async def raw(self, request: bytes) -> bytes:
        """Send bytes and read until the gateway closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"host: 127.0.0.1", b"connection: close", *headers]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


def config_for(
    engines: list[ScriptedEngine],
    *,
    seats: int = 8,
    tier: dict[str, Any] | None = None,
    express: list[dict[str, Any]] | None = None,
    curve: list[list[float]] | None = None,
    price: dict[str, float] | None = None,
    ledger: dict[str, Any] | None = None,
    moves_streams: bool = False,
    **gateway: Any,
) -> Config:
    """`tier` has settings of the standard tier, `express` more tiers, `curve` the measured curve of each replica."""
    settings = {"port": 0, "probe_interval_s": 0.05, **gateway}
    replicas = [{"url": engine.url, "seats": seats, "curve": curve} for engine in engines]
    tiers = [{"name": "standard", **(tier or {})}, *(express or [])]
    model = {
        "name": MODEL,
        "tiers": tiers,
        "replicas": replicas,
        "price": price,
        "moves_streams": moves_streams,
    }
    return Config.model_validate({"gateway": settings, "models": [model], "ledger": ledger})


@cache
def tls() -> ssl.SSLContext:
    """Reading the machine's certificates takes longer than most tests, and each SDK client would do it."""
    return ssl.create_default_context()


def http_client() -> DefaultAsyncHttpxClient:
    """As the SDKs make it."""
    return DefaultAsyncHttpxClient(verify=tls())


@asynccontextmanager
async def running_gateway(
    config: Config, record: Path | None = None, key: str = "none", source: Path | None = None
) -> AsyncIterator[Running]:
    async with run.running_gateway(config, record, source=source) as (gateway, port):
        url = f"http://127.0.0.1:{port}"
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http_client()) as openai,
            AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http_client()) as anthropic,
        ):
            running = Running(gateway, port, openai, anthropic)
            await running.until_up(len(config.models[0].replicas))
            yield running


@asynccontextmanager
async def raw_server(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that does what `serve` says with each connection. Gives its URL; ends its connections at the end.

    Without this, a connection that is open at the end of a test is ended by the event loop's own clean-up, and asyncio
    of Python 3.11 reports the cancelled handler as an error.
    """
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=tls)
    async with listener:
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await asyncio.sleep(0)  # a handler that was created in this turn of the loop registers itself
            ending = list(open_tasks)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending)
