"""How commands talk to a running gateway's `/admin`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from headway.errors import ConnectionFailed, SetupError
from headway.http1 import ConnectionPool

GatewayUrl = Annotated[str, typer.Option(help="URL of the running gateway.")]
AdminKey = Annotated[
    str,
    typer.Option(
        "--admin-key",
        envvar="HEADWAY_ADMIN_KEY",
        help="A key whose hash is in `admin_key_hashes`. Set the variable instead: others can see a command's options.",
        show_default=False,
    ),
]

ANSWER_S = 10.0


async def ask_admin(gateway: str, key: str, path: str, body: bytes | None = None) -> dict[str, Any]:
    """The gateway's answer to GET, or to POST if there is a body. Raises SetupError with what it says or what to do."""
    if not key:
        raise SetupError("An admin key is needed: set HEADWAY_ADMIN_KEY to a key whose hash is in `admin_key_hashes`.")
    pool = ConnectionPool(gateway)
    try:
        async with asyncio.timeout(ANSWER_S):
            method = b"GET" if body is None else b"POST"
            status, answer = await pool.exchange(method, path, body or b"", ((b"x-api-key", key.encode()),))
    except (ConnectionFailed, TimeoutError) as error:
        raise SetupError(f"The gateway at {gateway} does not answer: {error or 'it took too long'}.") from error
    finally:
        pool.close()
    try:
        told: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise SetupError(f"{gateway} answers with status {status}, but not as Headway does.") from None
    if status != 200:
        raise SetupError(f"{gateway} says: {told['error']['message']}")
    return told
