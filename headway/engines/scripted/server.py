"""Serves a scripted engine: in this process (`running`), or as a process of its own
(`headway mock-engine --port 9100 --step-ms 1:10,64:40`)."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headway.engines.scripted.answers import ProgrammedAnswers
from headway.engines.scripted.engine import ScriptedEngine
from headway.engines.scripted.steps import Script


class ScriptedProtocol(HttpToolsProtocol):
    """Gives the app the transport, because ASGI has no message to abort a connection, and the time of a request's first
    byte, because the app is called after its head was read."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport
        self.scope["state"]["received_s"] = time.monotonic()


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _cut_connections(self.server_state)  # like vLLM, which cuts its streams on SIGTERM
        await super().shutdown(sockets)


def _cut_connections(server_state: ServerState) -> None:
    for connection in tuple(server_state.connections):
        assert isinstance(connection, ScriptedProtocol)
        connection.transport.abort()


def _config(engine: ScriptedEngine) -> uvicorn.Config:
    return uvicorn.Config(
        engine.app,
        interface="asgi3",
        loop="uvloop",
        http=ScriptedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_config=None,
    )


@asynccontextmanager
async def running(
    script: Script,
    host: str = "127.0.0.1",
    port: int = 0,
    answers: ProgrammedAnswers | None = None,
    kind: Callable[[Script, ProgrammedAnswers | None], ScriptedEngine] = ScriptedEngine,
) -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine on this event loop, at `engine.url`."""
    engine = kind(script, answers)
    config = _config(engine)
    config.load()
    engine.server_state.default_headers = config.encoded_headers
    listener = await asyncio.get_running_loop().create_server(
        lambda: ScriptedProtocol(config, engine.server_state, {}), host, port, backlog=config.backlog
    )
    engine.url = f"http://{host}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        listener.close()
        _cut_connections(engine.server_state)
        await asyncio.gather(*engine.server_state.tasks, return_exceptions=True)
        await listener.wait_closed()


def serve_scripted(engine: ScriptedEngine, host: str, port: int) -> None:
    """Serve a scripted engine until interrupted, and print its URL. Port 0 selects a free port."""
    with socket.create_server((host, port), backlog=2048) as listener:
        engine.url = f"http://{host}:{listener.getsockname()[1]}"
        print(f"scripted engine on {engine.url} (pid {os.getpid()})", flush=True)
        server = _Server(_config(engine))
        server.server_state = engine.server_state
        server.run(sockets=[listener])


def parse_curve(text: str) -> tuple[tuple[int, float], ...]:
    """Parse `1:10,64:40` (batch:milliseconds per token) into a script's `step_s`."""
    points = (point.split(":") for point in text.split(","))
    return tuple((int(batch), float(step_ms) / 1e3) for batch, step_ms in points)
