"""Reads the body of a request, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headway.api.dialect import Headers
from headway.errors import InvalidRequest, TooLarge

# How long a body may pause, and how long it may take: this long, and more for what has arrived.
BODY_STALL_S = 15.0
BODY_TIMEOUT_S = 60.0
MIN_BODY_BYTES_PER_S = 64 * 1024

Receive = Callable[[], Awaitable[Any]]


async def read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    if int(headers.get(b"content-length", b"0") or b"0") > max_bytes:
        raise TooLarge(f"The request is larger than {max_bytes} bytes.")
    parts: list[bytes] = []
    size = 0
    started_at = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(started_at + BODY_STALL_S) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise asyncio.CancelledError
                parts.append(message["body"])
                size += len(message["body"])
                if size > max_bytes:
                    raise TooLarge(f"The request is larger than {max_bytes} bytes.")
                if not message["more_body"]:
                    return b"".join(parts)
                stalled_at = asyncio.get_running_loop().time() + BODY_STALL_S
                limit.reschedule(min(stalled_at, started_at + BODY_TIMEOUT_S + size / MIN_BODY_BYTES_PER_S))
    except TimeoutError:
        raise InvalidRequest("The request's body arrives too slowly.") from None
