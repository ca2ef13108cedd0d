"""The Anthropic dialect: /v1/messages and /v1/messages/count_tokens.

What a request may hold (any other field is refused by name), what the engine is sent, how errors look, and the meter
that reads the answer. Nothing is translated: vLLM speaks this dialect itself.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.fold import Fold
from headway.api.openai import engine_error
from headway.api.prompt import describe_prompt
from headway.api.proof import HeaderList, proof_headers
from headway.api.sse import EventSplitter, data_of
from headway.core.types import EXPRESS, Call, Tier
from headway.errors import EngineAnswered, EngineLost, HeadwayError, InvalidRequest
from headway.wire import Request, Served, stream_speed_tps

# --- what a request may hold -----------------------------------------------------------------------------------------


class Block(Struct, forbid_unknown_fields=True):
    """A content block. Text and tools only: an image block may name a URL, which the engine would fetch."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str | UnsetType | None = UNSET
    id: limits.ShortText | UnsetType | None = UNSET
    name: limits.ShortText | UnsetType | None = UNSET
    input: Raw | UnsetType = UNSET
    tool_use_id: limits.ShortText | UnsetType | None = UNSET
    content: str | Annotated[list[TextBlock], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    is_error: bool | UnsetType | None = UNSET
    thinking: str | UnsetType | None = UNSET
    signature: str | UnsetType | None = UNSET
    data: str | UnsetType | None = UNSET
    citations: UnsetType | None = UNSET
    cache_control: Raw | UnsetType = UNSET


class TextBlock(Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    citations: UnsetType | None = UNSET
    cache_control: Raw | UnsetType = UNSET


class Message(Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=limits.MAX_PARTS)]


class Tool(Struct, forbid_unknown_fields=True):
    name: limits.ShortText
    input_schema: Raw
    description: str | UnsetType | None = UNSET
    type: Literal["custom"] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET
    cache_control: Raw | UnsetType = UNSET


class ToolChoice(Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: limits.ShortText | UnsetType | None = UNSET
    disable_parallel_tool_use: bool | UnsetType | None = UNSET


class Thinking(Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: limits.Tokens | UnsetType = UNSET
    display: limits.ShortText | UnsetType | None = UNSET


class OutputFormat(Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct, forbid_unknown_fields=True):
    effort: limits.ShortText | UnsetType | None = UNSET
    format: OutputFormat | UnsetType | None = UNSET


class Prompt(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take."""

    model: limits.ModelName
    messages: Annotated[list[Message], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    tools: Annotated[list[Tool], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    tool_choice: ToolChoice | UnsetType | None = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    output_config: OutputConfig | UnsetType | None = UNSET


class Messages(Prompt, kw_only=True):
    max_tokens: limits.Tokens
    metadata: limits.Metadata | UnsetType | None = UNSET
    stop_sequences: limits.StopTexts | UnsetType | None = UNSET
    stream: bool | None = False
    temperature: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    top_k: limits.TopK | UnsetType | None = UNSET
    top_p: limits.Probability | UnsetType | None = UNSET
    cache_control: Raw | UnsetType = UNSET  # vLLM caches prefixes by itself
    # Read here and never sent on: engines know nothing of tiers.
    speed: Literal["standard", "fast"] | UnsetType | None = UNSET
    service_tier: Literal["auto", "standard_only"] | UnsetType | None = UNSET


TIER_FIELD = "speed"

_read_messages = msgspec.json.Decoder(Messages).decode
_read_prompt = msgspec.json.Decoder(Prompt).decode
_encode = msgspec.json.Encoder().encode


def read_messages(body: bytes, call_id: str) -> Request:
    request = _read_messages(body)
    _check_schemas(request)
    # In this dialect a call without an express seat is refused, with a retry-after: never served as something else.
    tier: Tier = "fast" if request.speed == "fast" else "standard"
    call = Call(call_id, request.model, tier, falls_back=False)
    request.speed = request.service_tier = request.metadata = request.cache_control = UNSET
    streaming = bool(request.stream)
    # The engine times its own work in no answer of this dialect: where a floor is promised, we do.
    folds = tier in EXPRESS and not streaming
    request.stream = streaming or folds
    encoded = _encode(request)
    describe_prompt(call, encoded, None, b"system", b"messages")
    meter = AnthropicMeter(folds=folds)
    return Request(call, "/v1/messages", encoded, streaming, meter, meter if folds else None, request.max_tokens)


def read_count_tokens(body: bytes, call_id: str) -> Request:
    request = _read_prompt(body)
    _check_schemas(request)
    call = Call(call_id, request.model, "standard")
    meter = AnthropicMeter()
    return Request(
        call, "/v1/messages/count_tokens", _encode(request), streaming=False, meter=meter, max_output_tokens=0
    )


def _check_schemas(request: Prompt) -> None:
    for tool in request.tools if isinstance(request.tools, list) else ():
        limits.check_schema(tool.input_schema, "tools")
    if isinstance(request.output_config, OutputConfig) and isinstance(request.output_config.format, OutputFormat):
        limits.check_schema(request.output_config.format.schema, "output_config")


# --- headers ---------------------------------------------------------------------------------------------------------


def answer_headers(served: Served) -> HeaderList:
    return proof_headers(served) + limit_headers(served)


def limit_headers(served: Served) -> HeaderList:
    """What the caller may still have of the fast tier, in this dialect's six headers; none where there is no limit."""
    allowance = served.allowance
    if served.asked not in EXPRESS or allowance is None:
        return []
    said: HeaderList = []
    for kind, limit, left, full_in_s in (
        ("input", allowance.limit.input_tpm, allowance.input_left, allowance.input_full_in_s),
        ("output", allowance.limit.output_tpm, allowance.output_left, allowance.output_full_in_s),
    ):
        if limit:
            full_at = datetime.fromtimestamp(time.time() + full_in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for what, value in (("limit", limit), ("remaining", max(0, left)), ("reset", full_at)):
                said.append((f"anthropic-fast-{kind}-tokens-{what}".encode(), str(value).encode()))
    return said


# --- errors ----------------------------------------------------------------------------------------------------------

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error_status(error: HeadwayError) -> int:
    """This dialect has a status of its own for "our capacity, not your limit"."""
    return 529 if error.status == 503 else error.status


def error_body(error: HeadwayError, call_id: str) -> bytes:
    message = error.message
    if isinstance(error, EngineAnswered):
        message = engine_error(error.body).get("message") or message
    elif isinstance(error, InvalidRequest) and error.param and error.param not in message:
        message = f"{error.param}: {message}"
    status = error_status(error)
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return _encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": call_id})


def error_event(error: HeadwayError, call_id: str) -> bytes:
    """For a stream that has begun: no message_stop follows it."""
    return b"event: error\ndata: " + error_body(error, call_id) + b"\n\n"


# --- the meter -------------------------------------------------------------------------------------------------------

TOKEN = b"event: content_block_delta\n"
START = b"event: message_start\n"
DELTA = b"event: message_delta\n"
STOP = b"event: message_stop\n"
ERROR = b"event: error\n"


class AnthropicMeter:
    """This dialect carries usage at the start and the end only; in between each delta counts as one token, which is
    exact until an engine puts several tokens into one delta, and a lower bound then."""

    __slots__ = ("_deltas", "_fold", "_output", "_prompt", "_splitter", "complete", "first_at", "last_at", "served")

    def __init__(self, *, folds: bool = False) -> None:
        self.served = Served("standard", "standard")
        self._fold = Fold() if folds else None
        self.restart()

    def restart(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.complete = False
        self._fold = Fold() if self._fold is not None else None
        self._splitter = EventSplitter()
        self._deltas = 0
        self._prompt = self._output = 0

    def feed(self, data: bytes, now: float) -> bytes:
        if self._splitter.is_one_event(data):
            return self._read(data, now)
        return b"".join([self._read(event, now) for event in self._splitter.split(data)])

    def _read(self, event: bytes, now: float) -> bytes:
        if self._fold is not None and (payload := data_of(event)).startswith(b"{"):
            self._fold.take(msgspec.json.decode(payload))
        if event.startswith(TOKEN):
            if self.first_at is None:
                self.first_at = now
            self.last_at = now
            self._deltas += 1
        elif event.startswith(START):
            start = msgspec.json.decode(data_of(event))
            self._take(start["message"].setdefault("usage", {}))
            start["message"]["usage"]["speed"] = self._speed()
            return START + b"data: " + _encode(start) + b"\n\n"
        elif event.startswith(DELTA):
            delta = msgspec.json.decode(data_of(event))
            self._take(delta.setdefault("usage", {}))
            delta["usage"] |= self._proof()
            return DELTA + b"data: " + _encode(delta) + b"\n\n"
        elif event.startswith(STOP):
            self.complete = True
        elif event.startswith(ERROR):
            raise EngineLost(f"the engine failed in the middle: {engine_error(data_of(event)).get('message')}")
        return event

    def _take(self, usage: dict[str, Any]) -> None:
        self._prompt = usage.get("input_tokens", self._prompt)
        self._output = usage.get("output_tokens", self._output)

    def _speed(self) -> str:
        """The tier served in this dialect's words: it knows two."""
        return "fast" if self.served.tier in EXPRESS else "standard"

    def _proof(self) -> dict[str, Any]:
        return {"speed": self._speed(), "headway": self.served.proof(self._prompt, self._output, self.speed_tps())}

    def read_whole(self, body: bytes) -> bytes:
        self.complete = True
        answer = msgspec.json.decode(body)
        if "usage" not in answer:
            return body  # count_tokens: nothing was generated
        self._take(answer["usage"])
        answer["usage"] |= self._proof()
        return _encode(answer)

    def folded(self) -> bytes:
        assert self._fold is not None
        answer = self._fold.whole()
        answer["usage"] |= self._proof()
        return _encode(answer)

    def speed_tps(self) -> float | None:
        return stream_speed_tps(self.usage()[1], self.first_at, self.last_at)

    def usage(self) -> tuple[int, int]:
        return self._prompt, max(self._output, self._deltas)
