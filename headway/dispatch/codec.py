"""Messages in msgpack, typed and checked as they are decoded.

Apart from frames.py, so that setup.py can compile it: msgspec does not find the types of a Struct that was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import astuple

from headway.core.types import Action, Event
from headway.dispatch.fleet import Member
from headway.dispatch.frames import (
    ACTION_ROWS,
    EVENT_ROWS,
    GATE_DECISION_ROWS,
    GATE_EVENT_ROWS,
    MAX_BATCH,
    MEMBER_ROWS,
    Actions,
    Events,
    FromDispatcher,
    FromRelay,
    GateDecided,
    GateTold,
    HadMembers,
    Members,
    Message,
)
from headway.dispatch.rows import RowSet, batch_struct, union_of

Row = bytes  # an encoded event or action

_encode = msgspec.msgpack.Encoder().encode
_event_to_row = EVENT_ROWS.to_row
_action_to_row = ACTION_ROWS.to_row


def _tag(message: Any) -> Any:
    return message.__struct_config__.tag


def encode(message: Message) -> bytes:
    """Raises ValueError or OverflowError if a value cannot be encoded: a text with half a character in it, or a number
    of more than 64 bits."""
    if isinstance(message, Events):
        return join(EVENTS_HEAD, [event_row(event) for event in message.events])
    if isinstance(message, Actions):
        return join(ACTIONS_HEAD, [action_row(action) for action in message.actions])
    if isinstance(message, Members | HadMembers):
        return _encode((_tag(message), [MEMBER_ROWS.to_row[Member](one) for one in message.members]))
    if isinstance(message, GateTold):
        told = [GATE_EVENT_ROWS.to_row[type(event)](event) for event in message.events]
        return _encode((_tag(message), message.model, told))
    if isinstance(message, GateDecided):
        decided = [GATE_DECISION_ROWS.to_row[type(one)](one) for one in message.decisions]
        return _encode((_tag(message), message.model, decided))
    return _encode(message)


# --- events and actions ----------------------------------------------------------------------------------------------
# Each is encoded as it is told, so that one that cannot be encoded fails alone, and not with others that it would have
# been sent with.


def event_row(event: Event) -> Row:
    """Raises ValueError or OverflowError as `encode` does."""
    return _encode(_event_to_row[type(event)](event))


def action_row(action: Action) -> Row:
    """Raises ValueError or OverflowError as `encode` does."""
    return _encode(_action_to_row[type(action)](action))


def _head(kind: Any) -> bytes:
    # In msgpack: an array of two, the tag, and an array whose length takes four bytes.
    return b"\x92" + _encode(_tag(kind)) + b"\xdd"


EVENTS_HEAD: Final = _head(Events)
ACTIONS_HEAD: Final = _head(Actions)


def join(head: bytes, rows: list[Row]) -> bytes:
    return b"".join([head, len(rows).to_bytes(4, "big"), *rows])


# --- decoding --------------------------------------------------------------------------------------------------------


def _decoder(messages: Any, batches: dict[Any, RowSet]) -> Callable[[bytes | bytearray], Any]:
    """`batches` are the messages whose last field is a list of rows."""
    encoded = {batch_struct(kind, rows, MAX_BATCH): (kind, rows.from_row) for kind, rows in batches.items()}
    others = [kind for kind in get_args(messages) if kind not in batches]
    decode = msgspec.msgpack.Decoder(union_of([*encoded, *others])).decode

    def decode_whole(payload: bytes | bytearray) -> Any:
        message = decode(payload)
        found = encoded.get(type(message))
        if found is None:
            return message
        kind, from_row = found
        fields = astuple(message)
        decoded = [from_row[type(row)](row) for row in fields[-1]]
        return kind(decoded) if len(fields) == 1 else kind(*fields[:-1], decoded)

    return decode_whole


decode_from_relay: Callable[[bytes | bytearray], FromRelay] = _decoder(
    FromRelay, {Events: EVENT_ROWS, HadMembers: MEMBER_ROWS, GateTold: GATE_EVENT_ROWS}
)
decode_from_dispatcher: Callable[[bytes | bytearray], FromDispatcher] = _decoder(
    FromDispatcher, {Actions: ACTION_ROWS, Members: MEMBER_ROWS, GateDecided: GATE_DECISION_ROWS}
)
