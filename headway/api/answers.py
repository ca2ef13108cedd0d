"""Checks what engines answer. Nothing of it is believed before it is checked: not the counts, not the form.

Only what the gateway needs is decoded; the rest is copied as bytes. That also keeps large answers cheap: decoding a
megabyte of log-probabilities into Python objects takes 90 ms, during which no other stream moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

MAX_COUNT = 2**31 - 1
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]  # of tokens; never a float, a boolean, a string or null
Fields = dict[str, Raw]  # the fields of a JSON object, not decoded

# A larger object is not parsed to its end (4 ms a megabyte): what comes before its usage is copied unread.
PARSED_BYTES = 64 * 1024

read_fields = msgspec.json.Decoder(Fields).decode
_encode = msgspec.json.Encoder().encode


def cut_object(payload: bytes) -> tuple[bytes, Fields]:
    """A JSON object as its first part, unread, and the fields after that part. The first part of a small object is
    empty; that of a large one ends with the list before its usage, which is the list of choices or contents."""
    if len(payload) > PARSED_BYTES and (usage_at := payload.rfind(b',"usage":')) > 0:
        end = payload.rfind(b'}],"', 0, usage_at + 2) + 2
        try:
            return payload[:end], read_fields(b"{" + payload[end + 1 :])
        except msgspec.DecodeError:
            pass  # the usage is elsewhere than vLLM has it
    return b"", read_fields(payload)


def join_object(head: bytes, fields: Mapping[str, Any]) -> bytes:
    """The object that `cut_object` has cut."""
    if not head:
        return _encode(fields)
    return head + b"," + _encode(fields)[1:] if fields else head + b"}"
