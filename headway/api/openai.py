"""The OpenAI dialect: /v1/chat/completions and /v1/completions; api/embeddings.py adds /v1/embeddings.

Makes the request for the engine, and defines the error format. api/openai_requests.py has the fields of requests,
api/openai_meter.py reads the answers. Nothing is translated: the engine speaks this dialect itself.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headway.api import embeddings, limits
from headway.api.answers import MAX_COUNT
from headway.api.chat_messages import check_images
from headway.api.dialect import NO_PARAMS, CallRoute, HeaderList, Headers, Params, engine_error, is_context_exceeded
from headway.api.fields import RequestFields
from headway.api.grammars import Grammars
from headway.api.known_fields import CHAT_FIELDS, COMPLETION_FIELDS
from headway.api.openai_meter import OpenAIForm
from headway.api.openai_requests import (
    ANY_TOOL,
    PROMPT_FIELDS,
    ChatCompletion,
    Completion,
    JsonSchema,
    ResponseFormat,
    ServiceTier,
    StreamOptions,
    StructuredOutputs,
    forced_tool,
    is_continuable,
    is_parsable,
    is_same_collected,
    logprobs_per_token,
    stops_of,
    token_limit,
)
from headway.api.prompt import prompt_start, prompt_tokens_of
from headway.api.proof import proof_headers
from headway.core.rate_limit import RateLimit
from headway.core.types import Call, Tier
from headway.errors import EngineAnswered, HeadwayError, InvalidRequest, Refused
from headway.wire import NO_IMAGES, AnswerForm, Collect, Grant, Request, SentImages

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

# engines/vllm.py sets its own `stream_options`, to get the usage that billing needs.
NOT_SENT_ON = ("service_tier", "stream_options", "prompt_cache_key")
TIER_FIELD = "service_tier"
# Of a stream that can go on at another engine the ids of the prompt are kept, which take about as much as its body.
MAX_CONTINUABLE_BYTES = 2**20

_read_chat = msgspec.json.Decoder(ChatCompletion).decode
_read_completion = msgspec.json.Decoder(Completion).decode
_encode = msgspec.json.Encoder().encode


def read_chat(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    request = _read_chat(body)
    template_names = limits.check_template_kwargs(request.chat_template_kwargs)
    return _for_engine(request, CHAT, call_id, template_names, check_images(request.messages))


def read_completion(body: bytes, call_id: str, _params: Params = NO_PARAMS) -> Request:
    return _for_engine(_read_completion(body), COMPLETIONS, call_id)


ROUTES = (
    CallRoute(CHAT, read_chat, RequestFields(ChatCompletion, CHAT_FIELDS)),
    CallRoute(COMPLETIONS, read_completion, RequestFields(Completion, COMPLETION_FIELDS)),
    embeddings.ROUTE,
)


def claims(_path: str, _headers: Headers) -> bool:
    """This dialect is the default."""
    return True


def _for_engine(
    request: ChatCompletion | Completion,
    path: str,
    call_id: str,
    template_names: tuple[str, ...] = (),
    images: SentImages = NO_IMAGES,
) -> Request:
    limits.check_raw(request.logit_bias, "logit_bias", limits.check_logit_bias)
    _check_grammars(request)
    asked = request.stream_options if isinstance(request.stream_options, StreamOptions) else StreamOptions()
    if not request.stream and isinstance(request.stream_options, StreamOptions):
        raise InvalidRequest("`stream_options` requires `stream: true`.", "stream_options")
    choices, max_output_tokens = request.n if isinstance(request.n, int) else 1, token_limit(request)
    _check_size(request, max_output_tokens, choices)
    streaming = bool(request.stream)
    collect: Collect = "if_same" if not streaming and is_same_collected(request) else "never"
    can_go_on = streaming and not asked.continuous_usage_stats and not images.pixels and is_continuable(request)
    form = _form_of(request, asked, choices, max_output_tokens, can_go_on=can_go_on, collects=collect != "never")
    tier = tier_of(request.service_tier)
    is_tier_open = request.service_tier in (UNSET, None, "auto")
    for field in NOT_SENT_ON:
        if hasattr(request, field):
            setattr(request, field, UNSET)
    request.stream = streaming or UNSET  # the engine adds it if the answer is collected
    body = _encode(request)
    # In this dialect a call that gets no express seat is served and billed as standard, and the answer says so.
    call = Call(
        call_id,
        request.model,
        tier,
        falls_back=True,
        prompt_tokens=prompt_tokens_of(body, images.chars),
        choices=choices,
        is_continuable=can_go_on and len(body) <= MAX_CONTINUABLE_BYTES,
    )
    return Request(
        call,
        path,
        body,
        form,
        streaming,
        collect,
        max_output_tokens,
        is_bounded=max_output_tokens is not None,
        is_tier_open=is_tier_open,
        template_names=template_names,
        images=images,
        prompt_start=prompt_start(body, *PROMPT_FIELDS[type(request)]),
        has_tools=form.has_tools,
        is_parsable=is_parsable(request),
    )


def _form_of(
    request: ChatCompletion | Completion,
    asked: StreamOptions,
    choices: int,
    max_output_tokens: int | None,
    *,
    can_go_on: bool,
    collects: bool,
) -> OpenAIForm:
    return OpenAIForm(
        wants_usage=bool(asked.include_usage),
        wants_continuous_usage=bool(asked.include_usage and asked.continuous_usage_stats),
        says_priority=request.service_tier == "priority",
        choices=choices,
        max_tokens=max_output_tokens or MAX_COUNT,
        wants_logprobs=logprobs_per_token(request) > 0,
        collects=collects,
        is_continuable=can_go_on,
        stops=stops_of(request),
        has_tools=isinstance(request, ChatCompletion) and bool(request.tools),
    )


def _check_size(request: ChatCompletion | Completion, max_tokens: int | None, choices: int) -> None:
    """Bounds the answer as far as the request does: without `max_tokens` the engine generates what it has room for."""
    tokens, echoed = max_tokens or 0, 0
    if not request.stream:
        limits.check_answer_size(tokens, choices)
    if isinstance(request, Completion) and request.echo:
        limits.check_echo(request.prompt, choices)
        echoed = len(request.prompt.encode() if isinstance(request.prompt, str) else request.prompt)
    limits.check_logprobs(choices * (tokens + echoed) * logprobs_per_token(request))


def _check_grammars(request: ChatCompletion | Completion) -> None:
    grammars = Grammars()
    if isinstance(request, ChatCompletion) and isinstance(request.tools, list):
        forced = forced_tool(request)
        for tool in request.tools:
            if isinstance(tool.function.parameters, Raw):
                is_compiled = tool.function.strict is True or forced in (ANY_TOOL, tool.function.name)
                grammars.add_schema(tool.function.parameters, "tools", is_compiled=is_compiled)
    if isinstance(request.response_format, ResponseFormat):
        wanted = request.response_format.json_schema
        if isinstance(wanted, JsonSchema) and isinstance(wanted.schema, Raw):
            grammars.add_schema(wanted.schema, "response_format", is_compiled=True)
    if isinstance(constraints := request.structured_outputs, StructuredOutputs):
        if isinstance(constraints.json, Raw):
            grammars.add_schema(constraints.json, "structured_outputs", is_compiled=True)
        if isinstance(constraints.regex, str):
            grammars.add_regex(constraints.regex, "structured_outputs")
        if isinstance(constraints.choice, list):
            grammars.add_choices(constraints.choice, "structured_outputs")


def tier_of(asked: ServiceTier | UnsetType | None) -> Tier:
    if asked in ("fast", "priority"):  # synonyms: the vendor renamed it
        return "fast"
    return asked if asked in ("ultrafast", "flex") else "standard"


# --- headers ---------------------------------------------------------------------------------------------------------


def answer_headers(grant: Grant) -> HeaderList:
    return proof_headers(grant) + limit_headers(grant.tier_asked, grant.rate_limit)


def limit_headers(_tier_asked: Tier, rate_limit: RateLimit | None) -> HeaderList:
    """What the caller has left of its limits for the tier. This dialect has one figure for tokens: of prompt and output
    tokens, those of which a smaller share is left. Returns no headers if there is no limit."""
    if rate_limit is None:
        return []
    limit = rate_limit.limit
    tokens = [
        (rate_limit.input_left, limit.input_tpm, rate_limit.input_full_in_s),
        (rate_limit.output_left, limit.output_tpm, rate_limit.output_full_in_s),
    ]
    requests = (rate_limit.requests_left, limit.requests_pm, rate_limit.requests_full_in_s)
    scarcest = min((kind for kind in tokens if kind[1]), key=lambda kind: kind[0] / kind[1], default=(0, 0, 0.0))
    headers: HeaderList = []
    for what, (left, per_minute, full_in_s) in (("requests", requests), ("tokens", scarcest)):
        if per_minute:
            values = (("limit", str(per_minute)), ("remaining", str(max(0, left))), ("reset", _duration(full_in_s)))
            headers += [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values]
    return headers


def _duration(seconds: float) -> str:
    """As this dialect writes it: `120ms`, `8.64s`, `6m0s`."""
    if round(seconds, 3) < 1:
        return f"{round(seconds * 1_000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if round(seconds, 2) >= 60 else f"{seconds:.2f}s"


# --- errors ----------------------------------------------------------------------------------------------------------

ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 402: "insufficient_quota"}
ERROR_TYPES |= {403: "permission_error", 404: "invalid_request_error"}
ERROR_TYPES |= {408: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error"}
ERROR_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}


def error_status(error: HeadwayError) -> int:
    return error.status


def error_body(error: HeadwayError, _call_id: str) -> bytes:
    message, param = error.message, getattr(error, "param", None)
    if isinstance(error, EngineAnswered):
        reported = engine_error(error.body)
        message, param = reported.get("message") or message, reported.get("param")
    code = error.reason if isinstance(error, Refused) else ERROR_CODES.get(error.status)
    if isinstance(error, InvalidRequest):
        code = error.code or code
    if is_context_exceeded(error):
        code = "context_length_exceeded"
    kind = ERROR_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(error: HeadwayError, call_id: str, _form: AnswerForm | None = None) -> bytes:
    """An error in a stream that has begun. No [DONE] follows it."""
    return b"data: " + error_body(error, call_id) + b"\n\n"
