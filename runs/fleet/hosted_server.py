"""A stand-in for a hosted server: OpenAI's API over TLS with a key, on a scripted engine, which counts what it serves.

`python -m runs.fleet.hosted_server --port 9300 --cert FILE --private FILE --key KEY` serves until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from headway.engines.scripted import Script, ScriptedEngine
from headway.engines.scripted.server import ScriptedProtocol

REFUSED = b'{"error": {"message": "Incorrect API key provided: the operator\'s own.", "code": "invalid_api_key"}}'
RATE_LIMITED = b'{"error": {"message": "Rate limit reached for organization org-operator.", "code": "rate_limit"}}'


class HostedStandIn:
    """Serves who has the key; anybody may ask whether it is there. `is_limited` refuses calls with 429."""

    def __init__(self, script: Script, key: str) -> None:
        self.engine = ScriptedEngine(script)
        self.url = ""
        self.is_limited = False
        self.refused = 0
        self._key = b"Bearer " + key.encode()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"authorization") != self._key and scope["path"] != "/health":
            await self._refuse(send, 401, REFUSED)
        elif self.is_limited and scope["method"] == "POST":
            await self._refuse(send, 429, RATE_LIMITED)
        else:
            await self.engine.app(scope, receive, send)

    async def _refuse(self, send: Any, status: int, body: bytes) -> None:
        self.refused += 1
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself. Returns the certificate and its private key."""
    certificate, private = folder / "certificate.pem", folder / "private.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 -subj /CN=127.0.0.1"
    files = f" -addext subjectAltName=IP:127.0.0.1 -keyout {private} -out {certificate}"
    subprocess.run((command + files).split(), check=True, capture_output=True)
    return certificate, private


def _config(stand_in: HostedStandIn, certificate: Path, private: Path) -> uvicorn.Config:
    return uvicorn.Config(
        stand_in.app,
        interface="asgi3",
        http=ScriptedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        ssl_certfile=certificate,
        ssl_keyfile=private,
    )


@asynccontextmanager
async def running_hosted(script: Script, key: str, certificate: Path, private: Path) -> AsyncIterator[HostedStandIn]:
    """Serve it on this event loop, at `url`."""
    stand_in = HostedStandIn(script, key)
    config = _config(stand_in, certificate, private)
    config.load()
    state = stand_in.engine.server_state
    state.default_headers = config.encoded_headers
    listener = await asyncio.get_running_loop().create_server(
        lambda: ScriptedProtocol(config, state, {}), "127.0.0.1", 0, ssl=config.ssl
    )
    stand_in.url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield stand_in
    finally:
        listener.close()
        for connection in tuple(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for a hosted server.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--private", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", default="theirs")
    given = parser.parse_args()
    stand_in = HostedStandIn(Script(model=given.model, first_token_s=0.02, step_s=((1, 0.01),)), given.key)
    with socket.create_server(("127.0.0.1", given.port), backlog=2048) as listener:
        uvicorn.Server(_config(stand_in, given.cert, given.private)).run(sockets=[listener])


if __name__ == "__main__":
    main()
