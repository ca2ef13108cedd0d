"""The messages that a client of the Responses WebSocket sends, and the errors that only a socket has.

A message is read twice: first what decides on its turn, then, as its call begins, as a request of `POST /v1/responses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from headway.api import limits, responses
from headway.api.dialect import NO_PARAMS, CallRoute, Params
from headway.api.fields import RequestFields
from headway.api.responses_items import EarlierItems
from headway.api.responses_names import RESPONSES_FIELDS
from headway.api.utf8 import is_utf8
from headway.errors import InvalidRequest
from headway.wire import Request

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
MAX_STREAM_BYTES = 6 * 256 + 2  # every character escaped
MAX_SHOWN_CHARS = 64


class MessageFrame(Struct):
    """What is read of a message before its call begins. Other fields are skipped, however many there are."""

    type: Raw = Raw(b"null")
    stream_id: Raw = Raw(b"null")
    generate: Raw = Raw(b"null")


class CreateMessage(responses.CreateResponse, kw_only=True):
    """A `response.create`: the request of `POST /v1/responses`, and what only a socket has."""

    type: Literal["response.create"]
    stream_id: Raw | UnsetType = UNSET  # has been read
    generate: bool | UnsetType | None = UNSET
    event_id: limits.ShortText | UnsetType | None = UNSET


_FIELDS = RequestFields(CreateMessage, RESPONSES_FIELDS)
_read_frame = msgspec.json.Decoder(MessageFrame).decode
_read_message = msgspec.json.Decoder(CreateMessage).decode
_read_any = msgspec.json.Decoder().decode


def message_route(earlier: EarlierItems) -> CallRoute:
    """Reads a message that continues these items."""

    def read(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
        message = _read_message(body)
        message.stream = True
        return responses.call_of(message, call_id, earlier)

    return CallRoute(responses.CREATE, read, _FIELDS)


@dataclass(slots=True, eq=False)
class Asked:
    """A message that waits for its turn."""

    stream: str  # its `stream_id`; empty if it has none
    body: bytes
    warms_up: bool


class SocketQueueFull(InvalidRequest):
    status = 429

    def __init__(self, message: str) -> None:
        super().__init__(message, code="websocket_queue_full")


def frame_of(message: bytes) -> MessageFrame:
    try:
        if not is_utf8(message):
            raise InvalidRequest("The message is not UTF-8.")
        frame = _read_frame(message)
        kind = _read_any(frame.type) if memoryview(frame.type).nbytes <= 4 * MAX_SHOWN_CHARS else ""
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"The message is not a JSON object: {error}.") from None
    if kind != "response.create":
        shown = kind[:MAX_SHOWN_CHARS] if isinstance(kind, str) else ""
        raise InvalidRequest(f"Messages of the type `{shown}` are not supported: send `response.create`.", "type")
    return frame


def stream_of(frame: MessageFrame) -> str:
    encoded = bytes(frame.stream_id)
    if encoded == b"null":
        return ""
    stream = _read_any(encoded) if len(encoded) <= MAX_STREAM_BYTES else None
    if not isinstance(stream, str) or not STREAM_ID.fullmatch(stream):
        raise InvalidRequest(
            "`stream_id` must have 1 to 256 letters, digits, underscores, hyphens and periods.",
            "stream_id",
            "invalid_stream_id",
        )
    return stream


def expired() -> InvalidRequest:
    return InvalidRequest(
        "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )
