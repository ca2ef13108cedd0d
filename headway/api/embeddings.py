"""The OpenAI dialect's `/v1/embeddings`: its fields, the request for the engine, and the meter of its answer.

An embedding is no stream: the engine answers in one piece, so there is no speed to promise and none is measured. Such a
call takes one seat, however many inputs it has, and is billed by its prompt tokens. The vectors are passed on unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.answers import Count, cut_object, join_object
from headway.api.dialect import NO_PARAMS, CallRoute, Params
from headway.api.fields import RequestFields
from headway.api.known_fields import EMBEDDING_FIELDS
from headway.api.prompt import BYTES_PER_TOKEN
from headway.api.proof import proof_of
from headway.api.utf8 import is_utf8
from headway.core.types import Call
from headway.errors import EngineLost, InvalidRequest
from headway.sse import readable
from headway.wire import GenerationTime, Grant, Receipt, Request, Usage

PATH = "/v1/embeddings"
FIRST_OF_LIST = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
ESCAPES = (rb"\\", rb"\"")


class Embeddings(Struct, forbid_unknown_fields=True, kw_only=True):
    model: limits.ModelName
    input: Raw  # a text, a list of texts, a list of token ids, or a list of such lists
    encoding_format: Literal["float", "base64"] | UnsetType | None = UNSET
    dimensions: Annotated[int, Meta(ge=1, le=2**16)] | UnsetType | None = UNSET
    user: limits.ShortText | UnsetType | None = UNSET


_read = msgspec.json.Decoder(Embeddings).decode
_read_text = msgspec.json.Decoder(str).decode
_read_texts = msgspec.json.Decoder(list[str]).decode
_read_ids = msgspec.json.Decoder(Annotated[list[limits.TokenId], Meta(min_length=1)]).decode
_read_lists = msgspec.json.Decoder(list[Annotated[list[limits.TokenId], Meta(min_length=1)]]).decode
_encode = msgspec.json.Encoder().encode


def read_embeddings(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    request = _read(body)
    check_input(bytes(request.input))
    if request.encoding_format is None:
        request.encoding_format = UNSET  # vLLM has a default, and takes no null
    body = _encode(request)
    call = Call(call_id, request.model, "standard", prompt_tokens=len(body) // BYTES_PER_TOKEN)
    return Request(
        call,
        PATH,
        body,
        EmbeddingForm(),
        streaming=False,
        max_output_tokens=0,
        is_bounded=False,  # how long the model's vectors are is not known here
        is_tier_open=True,
    )


def check_input(value: bytes) -> None:
    """Raises InvalidRequest if the input is of another kind, or too much. It is counted before it is decoded: decoded,
    many small values take thirty times their bytes."""
    first = found[1] if (found := FIRST_OF_LIST.match(value)) else b""
    try:
        if value.startswith(b'"'):
            _read_text(value)
        elif first == b'"':
            _check_count(_count_texts(value))
            _read_texts(value)
        elif first == b"[":
            _check_count(value.count(b"[") - 1)
            _check_ids(value)
            _read_lists(value)
        else:
            _check_ids(value)
            _read_ids(value)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"`input` is a text, a list of texts, a list of token ids or a list of such lists: {error}.", "input"
        ) from None


def _count_texts(value: bytes) -> int:
    for escaped in ESCAPES:
        value = value.replace(escaped, b"")
    return value.count(b'"') // 2


def _check_count(inputs: int) -> None:
    if inputs > limits.MAX_INPUTS:
        raise InvalidRequest(
            f"`input` has {inputs:,} inputs, and may have {limits.MAX_INPUTS:,}: send several requests.", "input"
        )


def _check_ids(value: bytes) -> None:
    if value.count(b",") >= limits.MAX_INPUT_IDS:
        raise InvalidRequest(
            f"`input` may have {limits.MAX_INPUT_IDS:,} token ids in all: send several requests.", "input"
        )


ROUTE = CallRoute(PATH, read_embeddings, RequestFields(Embeddings, EMBEDDING_FIELDS), embeds=True)


# --- answers ---------------------------------------------------------------------------------------------------------


class EmbeddingUsage(Struct):
    prompt_tokens: Count


_read_usage = msgspec.json.Decoder(EmbeddingUsage).decode


@dataclass(frozen=True, slots=True)
class EmbeddingForm:
    """Implements wire.AnswerForm."""

    def meter(self, _grant: Grant) -> EmbeddingMeter:
        return EmbeddingMeter()


class EmbeddingMeter:
    """Implements wire.Meter. Only the usage of an answer is read."""

    __slots__ = ("_prompt", "_whole", "first_at", "has_usage", "is_complete", "is_final", "last_at")

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.has_usage = self.is_final = self.is_complete = False
        self._prompt = 0
        self._whole: tuple[bytes, dict[str, Any]] = b"", {}  # as cut by `cut_object`; its usage is decoded

    def feed(self, _data: bytes, _now: float) -> bytes:
        raise EngineLost("the engine streams an embedding")

    def read_whole(self, body: bytes, _generation_s: GenerationTime) -> None:
        with readable():
            if not is_utf8(body):
                raise ValueError("not UTF-8")
            head, fields = cut_object(body)
            self._prompt = _read_usage(fields["usage"]).prompt_tokens
            self._whole = head, {**fields, "usage": msgspec.json.decode(fields["usage"])}
        self.has_usage = self.is_final = self.is_complete = True

    def usage(self) -> Usage:
        return Usage(self._prompt)

    def speed_tps(self) -> float | None:
        return None

    def end(self, receipt: Receipt) -> bytes:
        head, fields = self._whole
        return join_object(head, {**fields, "usage": {**fields["usage"], "headway": proof_of(receipt)}})
