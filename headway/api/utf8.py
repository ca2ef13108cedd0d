"""Whether bytes are UTF-8. msgspec checks only what it decodes, and much of what passes the gateway is not decoded."""

from __future__ import annotations

import codecs

PIECE_BYTES = 64 * 1024


def is_utf8(data: bytes) -> bool:
    """Large data is decoded piece by piece, because a text with one emoji takes four times its bytes."""
    try:
        if len(data) <= PIECE_BYTES:
            data.decode()
        elif not data.isascii():
            decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(data)
            for at in range(0, len(data), PIECE_BYTES):
                decoder.decode(view[at : at + PIECE_BYTES], final=at + PIECE_BYTES >= len(data))
    except UnicodeDecodeError:
        return False
    return True
