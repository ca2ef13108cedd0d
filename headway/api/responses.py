"""The Responses dialect: /v1/responses and /v1/responses/input_tokens.

Defines the request fields that are honoured (api/fields.py sees to all others), the request for the engine, and the
errors. api/responses_meter.py reads the answers. Nothing is translated: vLLM speaks this dialect itself. It keeps no
responses, so `previous_response_id` is replaced by the items that it stands for before a request is read
(api/responses_store.py), and never sent to an engine.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.answers import MAX_COUNT
from headway.api.dialect import NO_PARAMS, CallRoute, Headers, Params
from headway.api.fields import RequestFields
from headway.api.grammars import Grammars
from headway.api.openai import (
    TIER_FIELD,
    answer_headers,
    error_body,
    error_status,
    limit_headers,
    tier_of,
)
from headway.api.openai_requests import ServiceTier
from headway.api.prompt import prompt_start, prompt_tokens_of
from headway.api.responses_items import NOTHING_EARLIER, EarlierItems, InputItem, check_items, prepare_items
from headway.api.responses_meter import AnswerSoFar, InputTokensForm, ResponsesForm, event_bytes
from headway.api.responses_names import RESPONSES_FIELDS
from headway.core.types import Call
from headway.errors import HeadwayError, InvalidRequest
from headway.wire import NO_IMAGES, AnswerForm, Collect, Request, SentImages, with_fields

# What makes the module a Dialect. Headers and error bodies are those of the OpenAI dialect.
__all__ = ["ROUTES", "TIER_FIELD", "answer_headers", "claims"]
__all__ += ["error_body", "error_event", "error_status", "limit_headers"]

CREATE, INPUT_TOKENS = "/v1/responses", "/v1/responses/input_tokens"
RENDER = "/v1/responses/render"  # vLLM's endpoint that gives the tokens of a prompt
RESPONSE_PREFIX = "resp_"
LOGPROBS = "message.output_text.logprobs"  # in `include`; the other values ask for what only hosted tools have

# --- request fields --------------------------------------------------------------------------------------------------


class NamespaceMember(Struct, forbid_unknown_fields=True):
    """A tool in a namespace."""

    type: Literal["function"]
    name: limits.ShortText
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class CustomFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text"]


class ResponsesTool(Struct, forbid_unknown_fields=True):
    """A function, a custom tool that takes free text, or a namespace of functions; vLLM flattens namespaces itself."""

    type: Literal["function", "custom", "namespace"]
    name: limits.ShortText
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    format: CustomFormat | UnsetType | None = UNSET
    tools: Annotated[list[NamespaceMember], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET


class ChosenTool(Struct, forbid_unknown_fields=True):
    """A `tool_choice` that names the tool to be called."""

    type: Literal["function", "custom"]
    name: limits.ShortText


class ReasoningWish(Struct, forbid_unknown_fields=True):
    effort: limits.ShortText | UnsetType | None = UNSET
    # Engines show reasoning as it is, and make no summaries. Not sent to the engine.
    summary: limits.ShortText | UnsetType | None = UNSET
    generate_summary: limits.ShortText | UnsetType | None = UNSET


class TextFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    name: limits.ShortText | UnsetType = UNSET
    schema: Raw | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class TextConfig(Struct, forbid_unknown_fields=True):
    format: TextFormat | UnsetType | None = UNSET


class ResponsePrompt(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of both endpoints."""

    model: limits.ModelName
    # What the prompt is made of, in the order in which most chat templates use it (PROMPT_FIELDS).
    reasoning: ReasoningWish | UnsetType | None = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET  # vLLM's own
    tools: Annotated[list[ResponsesTool], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    input: str | Annotated[list[InputItem], Meta(max_length=limits.MAX_MESSAGES)]
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    text: TextConfig | UnsetType | None = UNSET
    truncation: Literal["auto", "disabled"] | UnsetType | None = UNSET
    # Read by api/responses_store.py and told in the answer. Not sent to the engine.
    previous_response_id: limits.ShortText | UnsetType | None = UNSET


class CreateResponse(ResponsePrompt, kw_only=True):
    max_output_tokens: limits.Tokens | UnsetType | None = UNSET
    metadata: Raw | UnsetType = UNSET
    include: Annotated[list[limits.ShortText], Meta(max_length=16)] | UnsetType | None = UNSET
    stream: bool | UnsetType | None = False
    store: bool | UnsetType | None = UNSET
    temperature: limits.Temperature | UnsetType | None = UNSET
    top_p: limits.Probability | UnsetType | None = UNSET
    top_logprobs: limits.TopLogprobs | UnsetType | None = UNSET
    user: limits.ShortText | UnsetType | None = UNSET
    # vLLM's own fields that are safe on a shared engine.
    top_k: limits.TopK | UnsetType | None = UNSET
    min_p: limits.Probability | UnsetType | None = UNSET
    presence_penalty: limits.Penalty | UnsetType | None = UNSET
    frequency_penalty: limits.Penalty | UnsetType | None = UNSET
    seed: limits.Seed | UnsetType | None = UNSET
    stop: limits.StopText | limits.StopTexts | UnsetType | None = UNSET
    ignore_eos: bool | UnsetType = UNSET
    # Read here and not sent to the engine.
    service_tier: ServiceTier | UnsetType | None = UNSET
    prompt_cache_key: limits.ShortText | UnsetType | None = UNSET


class EngineResponse(CreateResponse, kw_only=True):
    """The request for the engine, with what only Headway sets."""

    request_id: str


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
# The fields that the prompt is made of, as they follow each other in the encoded request.
PROMPT_FIELDS = (b"reasoning", b"chat_template_kwargs", b"tools", b"instructions", b"input")
_read_create = msgspec.json.Decoder(CreateResponse).decode
_read_prompt = msgspec.json.Decoder(ResponsePrompt).decode
_check_metadata = msgspec.json.Decoder(Metadata | None).decode
_encode = msgspec.json.Encoder().encode


def response_id(call_id: str) -> str:
    return f"{RESPONSE_PREFIX}{call_id}"


def read_create(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    return call_of(_read_create(body), call_id)


def call_of(request: CreateResponse, call_id: str, earlier: EarlierItems = NOTHING_EARLIER) -> Request:
    template_names, images = _check(request, earlier)
    limits.check_raw(request.metadata, "metadata", _check_metadata)
    max_tokens = request.max_output_tokens if isinstance(request.max_output_tokens, int) else None
    streaming = bool(request.stream)
    if not streaming:
        limits.check_answer_size(max_tokens or 0)
    wants_logprobs = isinstance(request.include, list) and LOGPROBS in request.include
    if wants_logprobs:
        top = request.top_logprobs if isinstance(request.top_logprobs, int) else 0
        limits.check_logprobs((max_tokens or 0) * (1 + top))
    collect: Collect = "never" if streaming or request.tools else "if_same"  # as in openai.py
    previous = request.previous_response_id if isinstance(request.previous_response_id, str) else None
    _prepare(request)
    items = earlier.count + (len(request.input) if isinstance(request.input, list) else 1)
    encoded = _for_engine(request, call_id, earlier, wants_logprobs=wants_logprobs)
    # As on chat, a call that gets no express seat is served and billed as standard, and the answer says so.
    call = Call(
        call_id,
        request.model,
        tier_of(request.service_tier),
        falls_back=True,
        prompt_tokens=prompt_tokens_of(encoded, images.chars),
    )
    form = ResponsesForm(
        streaming=streaming,
        says_priority=request.service_tier == "priority",
        max_tokens=max_tokens or MAX_COUNT,
        previous_response_id=previous,
        store=request.store is not False,
        items=items,
    )
    return Request(
        call,
        CREATE,
        encoded,
        form,
        streaming,
        collect,
        max_tokens,
        is_bounded=max_tokens is not None,
        is_tier_open=request.service_tier in (UNSET, None, "auto"),
        template_names=template_names,
        images=images,
        prompt_start=prompt_start(encoded, *PROMPT_FIELDS),
        limit_field="max_output_tokens",
    )


def read_input_tokens(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    request = _read_prompt(body)
    template_names, images = _check(request)
    call, form = Call(call_id, request.model, "standard"), InputTokensForm()
    encoded = _encode(_prepare(request))
    if images.pixels:  # vLLM would answer with all that its processor made of them
        encoded = with_fields(encoded, {"mm_payload": "none"})
    return Request(
        call,
        RENDER,
        encoded,
        form,
        streaming=False,
        max_output_tokens=0,
        runs_model=False,
        template_names=template_names,
        images=images,
    )


ROUTES = (
    CallRoute(CREATE, read_create, RequestFields(CreateResponse, RESPONSES_FIELDS)),
    CallRoute(INPUT_TOKENS, read_input_tokens, RequestFields(ResponsePrompt, RESPONSES_FIELDS)),
)


def claims(path: str, _headers: Headers) -> bool:
    return path == CREATE or path.startswith(CREATE + "/")


# --- the request for the engine --------------------------------------------------------------------------------------


def _for_engine(request: CreateResponse, call_id: str, earlier: EarlierItems, *, wants_logprobs: bool) -> bytes:
    asked = {name: getattr(request, name) for name in CreateResponse.__struct_fields__}
    asked |= {"service_tier": UNSET, "prompt_cache_key": UNSET}
    asked["store"] = False  # the engine would keep it in memory for ever
    asked["stream"] = bool(request.stream) or UNSET  # the engine adds it if the answer is collected
    asked["include"] = [LOGPROBS] if wants_logprobs else UNSET
    asked["truncation"] = request.truncation or UNSET  # null has another meaning to vLLM
    if earlier.count:
        assert isinstance(request.input, list), "what continues items is a list of items"
        asked["input"] = Raw(
            b"[%b]" % b",".join(part for part in (earlier.encoded, _encode(request.input)[1:-1]) if part)
        )
    return _encode(EngineResponse(request_id=response_id(call_id), **asked))


def _prepare(request: ResponsePrompt) -> ResponsePrompt:
    """Remove what vLLM does not take. Where it takes an optional field only if it is there, add it."""
    request.previous_response_id = UNSET
    if isinstance(request.reasoning, ReasoningWish):
        request.reasoning = ReasoningWish(effort=request.reasoning.effort)
    if not request.tools:
        request.tools = UNSET
        request.tool_choice = UNSET if request.tool_choice in ("auto", None) else request.tool_choice
    for tool in request.tools if isinstance(request.tools, list) else ():
        if tool.type == "namespace" and not isinstance(tool.description, str):
            tool.description = ""
    if request.tool_choice is None:
        request.tool_choice = UNSET
    if isinstance(request.input, list):
        request.input = prepare_items(request.input)
    return request


def _check(request: ResponsePrompt, earlier: EarlierItems = NOTHING_EARLIER) -> tuple[tuple[str, ...], SentImages]:
    """Returns the names in `chat_template_kwargs`, and the images."""
    images = check_items(request.input, earlier) if isinstance(request.input, list) else NO_IMAGES
    grammars = Grammars()
    choice = request.tool_choice
    forced = choice.name if isinstance(choice, ChosenTool) else None
    for tool in request.tools if isinstance(request.tools, list) else ():
        members = tool.tools if isinstance(tool.tools, list) else [tool]
        for one in members:
            if isinstance(one.parameters, Raw) and bytes(one.parameters) != b"null":
                # vLLM compiles the schemas of tools that are strict or must be called; others are only shown.
                names = (one.name, f"{tool.name}__{one.name}")
                is_compiled = one.strict is True or choice == "required" or forced in names
                grammars.add_schema(one.parameters, "tools", is_compiled=is_compiled)
    if isinstance(request.text, TextConfig) and isinstance(wanted := request.text.format, TextFormat):
        if wanted.type == "json_schema" and not (isinstance(wanted.schema, Raw) and isinstance(wanted.name, str)):
            raise InvalidRequest("`text.format` of the type `json_schema` needs a `name` and a `schema`.", "text")
        if isinstance(wanted.schema, Raw):
            grammars.add_schema(wanted.schema, "text", is_compiled=True)
    return limits.check_template_kwargs(request.chat_template_kwargs), images


# --- errors ----------------------------------------------------------------------------------------------------------


def error_event(error: HeadwayError, call_id: str, form: AnswerForm | None = None) -> bytes:
    """An error in a stream that has begun. It ends the stream; clients have seen `response.created` before it."""
    told = msgspec.json.decode(error_body(error, call_id))["error"]
    so_far = form.so_far if isinstance(form, ResponsesForm) else AnswerSoFar()
    events, number, response = b"", so_far.events, so_far.response
    if response is None:
        response = empty_response(call_id)
        events = event_bytes({"type": "response.created", "sequence_number": number, "response": response})
        number += 1
    why = {"code": told["code"] or "server_error", "message": told["message"]}
    failed = {**response, "status": "failed", "error": why}
    return events + event_bytes({"type": "response.failed", "sequence_number": number, "response": failed})


def empty_response(call_id: str) -> dict[str, object]:
    return {
        "id": response_id(call_id),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": "",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
