"""Reads the body of a request, bounded in bytes and in time, and decompresses it if the client has compressed it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from headway.api.dialect import Headers
from headway.errors import InvalidRequest, TooLarge, UnknownEncoding

# How long a body may pause, and how long it may take: this long, and more for what has arrived.
BODY_STALL_S = 15.0
BODY_TIMEOUT_S = 60.0
MIN_BODY_BYTES_PER_S = 64 * 1024

# A compressed body may become this many times as large, and this many bytes more. Prompts become about 3 to 20 times as
# large, and a body that was made to harm a thousand times.
MAX_EXPANSION = 64
FREE_EXPANSION_BYTES = 64 * 1024
PLAIN, GZIP = (b"", b"identity"), (b"gzip", b"x-gzip")
GZIP_WINDOW = 16 + zlib.MAX_WBITS  # zlib's number for a gzip header and the largest window

Receive = Callable[[], Awaitable[Any]]


async def read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    if int(headers.get(b"content-length", b"0") or b"0") > max_bytes:
        raise TooLarge(f"The request is larger than {max_bytes} bytes.")
    if _encoding(headers) not in PLAIN + GZIP:
        raise UnknownEncoding("`Content-Encoding` must be `gzip` or `identity`.")
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


async def read_text(receive: Receive, headers: Headers, max_bytes: int) -> str:
    try:
        return decompress(await read_body(receive, headers, max_bytes), headers, max_bytes).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The request's body is not UTF-8.") from None


def decompress(body: bytes, headers: Headers, max_bytes: int) -> bytes:
    """The body as the client made it. Its size is bounded before it is there: by `max_bytes`, and by what was sent."""
    if _encoding(headers) not in GZIP:
        return body
    limit = min(max_bytes, FREE_EXPANSION_BYTES + MAX_EXPANSION * len(body))
    decompressor = zlib.decompressobj(GZIP_WINDOW)
    try:
        plain = decompressor.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidRequest("The request's body is not valid gzip.") from None
    if len(plain) > limit:
        raise TooLarge(
            f"The request is larger than {max_bytes} bytes when decompressed, or more than {MAX_EXPANSION} times as "
            "large as when compressed: send it without compression."
        )
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidRequest("The request's body is not one complete gzip stream.")
    return plain


def _encoding(headers: Headers) -> bytes:
    return headers.get(b"content-encoding", b"").strip().lower()
