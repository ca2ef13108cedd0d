"""The Anthropic dialect: /v1/messages and /v1/messages/count_tokens.

Defines the request fields that are honoured (api/fields.py sees to all others), the request for the engine, and the
error format. api/anthropic_meter.py reads the answers. Nothing is translated: vLLM speaks this dialect itself.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.anthropic_meter import MessagesForm
from headway.api.dialect import (
    NO_PARAMS,
    CallRoute,
    HeaderList,
    Headers,
    Params,
    engine_error,
    is_context_exceeded,
    prompt_too_long,
)
from headway.api.fields import RequestFields
from headway.api.grammars import Grammars
from headway.api.images import Images, MediaType
from headway.api.known_fields import MESSAGES_FIELDS
from headway.api.prompt import prompt_start, prompt_tokens_of
from headway.api.proof import proof_headers
from headway.core.rate_limit import RateLimit
from headway.core.types import EXPRESS, Call, Tier
from headway.errors import EngineAnswered, HeadwayError, InvalidRequest
from headway.wire import AnswerForm, Collect, Grant, Request, SentImages, at_tier

# --- request fields --------------------------------------------------------------------------------------------------


class ImageSource(Struct, forbid_unknown_fields=True):
    """An image. The engine would fetch that of any other type."""

    type: Literal["base64"]
    media_type: MediaType
    data: str


class Block(Struct, forbid_unknown_fields=True):
    """A content block: text, tools or an image."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"]
    text: str | UnsetType | None = UNSET
    id: limits.ShortText | UnsetType | None = UNSET
    name: limits.ShortText | UnsetType | None = UNSET
    input: Raw | UnsetType = UNSET
    tool_use_id: limits.ShortText | UnsetType | None = UNSET
    content: str | Annotated[list[ResultBlock], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    is_error: bool | UnsetType | None = UNSET
    thinking: str | UnsetType | None = UNSET
    signature: str | UnsetType | None = UNSET
    data: str | UnsetType | None = UNSET
    source: ImageSource | UnsetType | None = UNSET


class ResultBlock(Struct, forbid_unknown_fields=True):
    """A block in the result of a tool."""

    type: Literal["text", "image"]
    text: str | UnsetType = UNSET
    source: ImageSource | UnsetType | None = UNSET


class TextBlock(Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class AnthropicMessage(Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=limits.MAX_PARTS)]


class AnthropicTool(Struct, forbid_unknown_fields=True):
    name: limits.ShortText
    input_schema: Raw
    description: str | UnsetType | None = UNSET
    type: Literal["custom"] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class ToolChoice(Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: limits.ShortText | UnsetType | None = UNSET
    disable_parallel_tool_use: bool | UnsetType | None = UNSET


class Thinking(Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**20)] | UnsetType | None = UNSET
    display: limits.ShortText | UnsetType | None = UNSET


class OutputFormat(Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct, forbid_unknown_fields=True):
    effort: limits.ShortText | UnsetType | None = UNSET
    format: OutputFormat | UnsetType | None = UNSET


class Prompt(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of both endpoints."""

    model: limits.ModelName
    # What the prompt is made of, in the order in which most chat templates use it (PROMPT_FIELDS).
    thinking: Thinking | UnsetType | None = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET  # vLLM's own
    tools: Annotated[list[AnthropicTool], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    system: str | Annotated[list[TextBlock], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]
    tool_choice: ToolChoice | UnsetType | None = UNSET
    output_config: OutputConfig | UnsetType | None = UNSET


class Messages(Prompt, kw_only=True):
    max_tokens: limits.Tokens
    stop_sequences: limits.StopTexts | UnsetType | None = UNSET
    stream: bool | UnsetType | None = False
    temperature: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    top_k: limits.TopK | UnsetType | None = UNSET
    top_p: limits.Probability | UnsetType | None = UNSET
    # Read here and not sent to the engine, which does not know tiers.
    speed: Literal["standard", "fast"] | UnsetType | None = UNSET
    service_tier: Literal["auto", "standard_only"] | UnsetType | None = UNSET


TIER_FIELD = "speed"
# The fields that the prompt is made of, as they follow each other in the encoded request.
PROMPT_FIELDS = (b"thinking", b"chat_template_kwargs", b"tools", b"system", b"messages")

_read_messages = msgspec.json.Decoder(Messages).decode
_read_prompt = msgspec.json.Decoder(Prompt).decode
_encode = msgspec.json.Encoder().encode


def read_messages(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    request = _read_messages(body)
    template_names, images = _check(request), _check_images(request)
    tier: Tier = "fast" if request.speed == "fast" else "standard"
    is_tier_open = request.speed in (UNSET, None) and request.service_tier in (UNSET, None, "auto")
    request.speed = request.service_tier = UNSET
    streaming = bool(request.stream)
    if not streaming:
        limits.check_answer_size(request.max_tokens)
    collect: Collect = "never" if streaming or request.tools or request.tool_choice else "if_same"  # as in openai.py
    request.stream = streaming or UNSET  # the engine adds it if the answer is collected
    encoded = _encode(request)
    # In this dialect a call that gets no express seat is refused with a retry-after, never served at another tier.
    prompt_tokens = prompt_tokens_of(encoded, images.chars)
    call = Call(call_id, request.model, "standard", falls_back=False, prompt_tokens=prompt_tokens)
    form = MessagesForm(not streaming, request.max_tokens)
    standard = Request(
        call,
        "/v1/messages",
        encoded,
        form,
        streaming,
        collect,
        request.max_tokens,
        is_tier_open=is_tier_open,
        is_whole_timed=False,
        template_names=template_names,
        images=images,
        prompt_start=prompt_start(encoded, *PROMPT_FIELDS),
    )
    return at_tier(standard, tier)


def read_count_tokens(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    request = _read_prompt(body)
    template_names, images = _check(request), _check_images(request)
    call = Call(call_id, request.model, "standard")
    path = "/v1/messages/count_tokens"
    return Request(
        call,
        path,
        _encode(request),
        MessagesForm(),
        streaming=False,
        max_output_tokens=0,
        runs_model=False,
        template_names=template_names,
        images=images,
    )


ROUTES = (
    CallRoute("/v1/messages", read_messages, RequestFields(Messages, MESSAGES_FIELDS)),
    CallRoute("/v1/messages/count_tokens", read_count_tokens, RequestFields(Prompt, MESSAGES_FIELDS)),
)


def claims(path: str, headers: Headers) -> bool:
    return path.startswith("/v1/messages") or b"anthropic-version" in headers


def _check(request: Prompt) -> tuple[str, ...]:
    """Returns the names in `chat_template_kwargs`."""
    _check_grammars(request)
    if isinstance(request.thinking, Thinking) and request.thinking.budget_tokens == 0:
        request.thinking = Thinking("disabled")  # vLLM knows only budgets of 1,024 tokens and more
    return limits.check_template_kwargs(request.chat_template_kwargs)


def _check_images(request: Prompt) -> SentImages:
    images = Images()
    for number, message in enumerate(request.messages):
        for place, block in enumerate(message.content if isinstance(message.content, list) else ()):
            where = f"messages.{number}.content.{place}"
            _add_image(images, block, where, message.role)
            for inner, part in enumerate(block.content if isinstance(block.content, list) else ()):
                _add_image(images, part, f"{where}.content.{inner}", message.role)
                if part.type == "text" and part.text is UNSET:
                    raise InvalidRequest(f"Missing field `text` in `{where}.content.{inner}`.", "text")
    return images.sent()


def _add_image(images: Images, block: Block | ResultBlock, where: str, role: str) -> None:
    if block.type != "image":
        if isinstance(block.source, ImageSource):
            raise InvalidRequest(f"`{where}` has an image as its `source`, so its type must be `image`.", where)
    elif role != "user":
        raise InvalidRequest("Images are taken in messages of the role `user` only.", where)
    elif not isinstance(block.source, ImageSource):
        raise InvalidRequest(f"Missing field `source` in `{where}`.", f"{where}.source")
    else:
        images.add_data(block.source.data, f"{where}.source.data")


def _check_grammars(request: Prompt) -> None:
    grammars = Grammars()
    choice = request.tool_choice if isinstance(request.tool_choice, ToolChoice) else ToolChoice("auto")
    for tool in request.tools if isinstance(request.tools, list) else ():
        # vLLM compiles the schemas of tools that are strict or must be called; others are only shown to the model.
        is_forced = choice.type == "any" or (choice.type == "tool" and choice.name == tool.name)
        grammars.add_schema(tool.input_schema, "tools", is_compiled=tool.strict is True or is_forced)
    if isinstance(request.output_config, OutputConfig) and isinstance(request.output_config.format, OutputFormat):
        grammars.add_schema(request.output_config.format.schema, "output_config", is_compiled=True)


# --- headers ---------------------------------------------------------------------------------------------------------


def answer_headers(grant: Grant) -> HeaderList:
    return proof_headers(grant) + limit_headers(grant.tier_asked, grant.rate_limit)


def limit_headers(tier_asked: Tier, rate_limit: RateLimit | None) -> HeaderList:
    """What the caller has left of its limit for the fast tier. Returns no headers if there is no limit."""
    if tier_asked not in EXPRESS or rate_limit is None:
        return []
    headers: HeaderList = []
    for kind, limit, left, full_in_s in (
        ("input", rate_limit.limit.input_tpm, rate_limit.input_left, rate_limit.input_full_in_s),
        ("output", rate_limit.limit.output_tpm, rate_limit.output_left, rate_limit.output_full_in_s),
    ):
        if limit:
            full_at = datetime.fromtimestamp(time.time() + full_in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for what, value in (("limit", limit), ("remaining", max(0, left)), ("reset", full_at)):
                headers.append((f"anthropic-fast-{kind}-tokens-{what}".encode(), str(value).encode()))
    return headers


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
    """This dialect has its own status, 529, for a lack of capacity."""
    return 529 if error.status == 503 else error.status


def error_body(error: HeadwayError, call_id: str) -> bytes:
    message = error.message
    if isinstance(error, EngineAnswered):
        message = engine_error(error.body).get("message") or message
        if is_context_exceeded(error):
            message = prompt_too_long(message)
    elif isinstance(error, InvalidRequest) and error.param and error.param not in message:
        message = f"{error.param}: {message}"
    status = error_status(error)
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    told: dict[str, object] = {"type": kind, "message": message}
    if isinstance(error, InvalidRequest) and error.code:
        told["details"] = {"error_code": error.code}
    return _encode({"type": "error", "error": told, "request_id": call_id})


def error_event(error: HeadwayError, call_id: str, _form: AnswerForm | None = None) -> bytes:
    """An error in a stream that has begun. No message_stop follows it."""
    return b"event: error\ndata: " + error_body(error, call_id) + b"\n\n"
