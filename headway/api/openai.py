"""The OpenAI dialect: /v1/chat/completions and /v1/completions; api/embeddings.py adds /v1/embeddings.

Defines the request fields that are honoured (api/fields.py sees to all others), the request for the engine, and the
error format. api/openai_meter.py reads the answers. Nothing is translated: the engine speaks this dialect itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import embeddings, limits
from headway.api.answers import MAX_COUNT
from headway.api.chat_messages import ChatMessage, check_images
from headway.api.dialect import NO_PARAMS, CallRoute, HeaderList, Headers, Params, engine_error, is_context_exceeded
from headway.api.fields import RequestFields
from headway.api.grammars import Grammars
from headway.api.known_fields import CHAT_FIELDS, COMPLETION_FIELDS
from headway.api.openai_meter import OpenAIForm
from headway.api.prompt import describe_prompt
from headway.api.proof import proof_headers
from headway.core.rate_limit import RateLimit
from headway.core.types import Call, Tier
from headway.errors import EngineAnswered, HeadwayError, InvalidRequest, Refused
from headway.wire import NO_IMAGES, AnswerForm, Collect, Grant, Request, SentImages

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

# --- request fields --------------------------------------------------------------------------------------------------


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: bool | UnsetType | None = UNSET


class JsonSchema(Struct, forbid_unknown_fields=True):
    name: limits.ShortText
    description: str | UnsetType | None = UNSET
    schema: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class ResponseFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | UnsetType = UNSET


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's own fields for constrained answers."""

    json: Raw | UnsetType = UNSET
    regex: str | UnsetType | None = UNSET
    choice: Annotated[list[limits.ShortText], Meta(max_length=256)] | UnsetType | None = UNSET


class Function(Struct, forbid_unknown_fields=True):
    name: limits.ShortText
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class NamedFunction(Struct, forbid_unknown_fields=True):
    name: limits.ShortText


class NamedTool(Struct, forbid_unknown_fields=True):
    """A `tool_choice` that names the tool to be called."""

    function: NamedFunction
    type: Literal["function"] | UnsetType = UNSET


class ChatTool(Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


ServiceTier = Literal["auto", "default", "standard", "standard_only", "scale", "flex", "fast", "priority", "ultrafast"]


class Sampling(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of both endpoints."""

    model: limits.ModelName
    max_tokens: limits.Tokens | UnsetType | None = UNSET
    n: limits.Choices | UnsetType | None = UNSET
    stream: bool | UnsetType | None = False
    stream_options: StreamOptions | UnsetType | None = UNSET
    stop: limits.StopText | limits.StopTexts | UnsetType | None = UNSET
    temperature: limits.Temperature | UnsetType | None = UNSET
    top_p: limits.Probability | UnsetType | None = UNSET
    frequency_penalty: limits.Penalty | UnsetType | None = UNSET
    presence_penalty: limits.Penalty | UnsetType | None = UNSET
    logit_bias: Raw | UnsetType = UNSET
    seed: limits.Seed | UnsetType | None = UNSET
    user: limits.ShortText | UnsetType | None = UNSET
    response_format: ResponseFormat | UnsetType | None = UNSET
    # vLLM's own fields that are safe on a shared engine.
    top_k: limits.TopK | UnsetType | None = UNSET
    min_p: limits.Probability | UnsetType | None = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | UnsetType | None = UNSET
    min_tokens: Annotated[int, Meta(ge=0, le=2**20)] | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    stop_token_ids: limits.TokenIds | UnsetType | None = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    structured_outputs: StructuredOutputs | UnsetType | None = UNSET
    # Read here and not sent to the engine, which does not know tiers.
    service_tier: ServiceTier | UnsetType | None = UNSET


class ChatCompletion(Sampling, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]
    max_completion_tokens: limits.Tokens | UnsetType | None = UNSET
    logprobs: bool | UnsetType | None = UNSET
    top_logprobs: limits.TopLogprobs | UnsetType | None = UNSET
    return_tokens_as_token_ids: bool | UnsetType = UNSET  # vLLM's own: logprobs name tokens by their ids
    tools: Annotated[list[ChatTool], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    tool_choice: Literal["none", "auto", "required"] | NamedTool | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    reasoning_effort: limits.ShortText | UnsetType | None = UNSET
    # vLLM's own: what the chat template is told, and whether the answer continues the last message.
    chat_template_kwargs: Raw | UnsetType = UNSET
    include_reasoning: bool | UnsetType = UNSET
    add_generation_prompt: bool | UnsetType = UNSET
    continue_final_message: bool | UnsetType = UNSET
    # Calls with the same key share a prompt prefix; not sent to the engine, which finds prefixes by itself.
    prompt_cache_key: limits.ShortText | UnsetType | None = UNSET


class Completion(Sampling, kw_only=True):
    prompt: str | Annotated[list[limits.TokenId], Meta(min_length=1, max_length=2**20)]
    echo: bool | UnsetType | None = UNSET
    logprobs: limits.TopLogprobs | UnsetType | None = UNSET
    suffix: UnsetType | None = UNSET


# engines/vllm.py sets its own `stream_options`, to get the usage that billing needs.
NOT_SENT_ON = ("service_tier", "stream_options", "prompt_cache_key")
TIER_FIELD = "service_tier"
# Of a stream that can go on at another engine the ids of the prompt are kept, which take about as much as its body.
MAX_CONTINUABLE_BYTES = 2**20

ANY_TOOL = "*"  # not the name of a tool
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
    choices, max_output_tokens = request.n if isinstance(request.n, int) else 1, _token_limit(request)
    _check_size(request, max_output_tokens, choices)
    streaming = bool(request.stream)
    collect: Collect = "if_same" if not streaming and _is_same_collected(request) else "never"
    is_continuable = streaming and not asked.continuous_usage_stats and not images.pixels and _is_continuable(request)
    form = OpenAIForm(
        wants_usage=bool(asked.include_usage),
        wants_continuous_usage=bool(asked.include_usage and asked.continuous_usage_stats),
        says_priority=request.service_tier == "priority",
        choices=choices,
        max_tokens=max_output_tokens or MAX_COUNT,
        wants_logprobs=_logprobs_per_token(request) > 0,
        collects=collect != "never",
        is_continuable=is_continuable,
        stops=_stops_of(request),
    )
    tier, session = tier_of(request.service_tier), getattr(request, "prompt_cache_key", None)
    is_tier_open = request.service_tier in (UNSET, None, "auto")
    for field in NOT_SENT_ON:
        if hasattr(request, field):
            setattr(request, field, UNSET)
    request.stream = streaming or UNSET  # the engine adds it if the answer is collected
    body = _encode(request)
    affinity, prompt_tokens = describe_prompt(body, session, b"messages", b"prompt", image_chars=images.chars)
    # In this dialect a call that gets no express seat is served and billed as standard, and the answer says so.
    call = Call(
        call_id,
        request.model,
        tier,
        falls_back=True,
        affinity=affinity,
        prompt_tokens=prompt_tokens,
        choices=choices,
        is_continuable=is_continuable and len(body) <= MAX_CONTINUABLE_BYTES,
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
    )


def _token_limit(request: ChatCompletion | Completion) -> int | None:
    limits_of = (getattr(request, "max_completion_tokens", None), request.max_tokens)
    return next((limit for limit in limits_of if isinstance(limit, int)), None)


def _is_same_collected(request: ChatCompletion | Completion) -> bool:
    """Whether the stream of such an answer has all that the whole answer has (tests/e2e/test_collected.py). vLLM parses
    tool calls in a stream by other code than in a whole answer, and not always to the same result."""
    if isinstance(request, Completion):
        return not request.echo
    return not request.tools and not request.tool_choice


def _is_continuable(request: ChatCompletion | Completion) -> bool:
    """Whether another engine that is given the tokens so far goes on with the same distribution: nothing else decides
    on the next token, such as a generator of random numbers, a grammar, or penalties, which do not count the prompt."""
    penalties = (request.frequency_penalty, request.presence_penalty)
    if request.n not in (UNSET, None, 1) or isinstance(request.seed, int) or any(one or 0 for one in penalties):
        return False
    if request.repetition_penalty not in (UNSET, None, 1) or _logprobs_per_token(request):
        return False
    if isinstance(request.structured_outputs, StructuredOutputs) or (
        isinstance(request.response_format, ResponseFormat) and request.response_format.type != "text"
    ):
        return False
    if _stops_of(request) and (request.min_tokens or request.skip_special_tokens is False):
        return False  # where a stop string may be, and how ids are decoded, depends on these
    if isinstance(request, Completion):
        return not request.echo
    return not request.tools and not request.tool_choice


def _stops_of(request: ChatCompletion | Completion) -> tuple[str, ...]:
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())


def _check_size(request: ChatCompletion | Completion, max_tokens: int | None, choices: int) -> None:
    """Bounds the answer as far as the request does: without `max_tokens` the engine generates what it has room for."""
    tokens, echoed = max_tokens or 0, 0
    if not request.stream:
        limits.check_answer_size(tokens, choices)
    if isinstance(request, Completion) and request.echo:
        limits.check_echo(request.prompt, choices)
        echoed = len(request.prompt.encode() if isinstance(request.prompt, str) else request.prompt)
    limits.check_logprobs(choices * (tokens + echoed) * _logprobs_per_token(request))


def _logprobs_per_token(request: ChatCompletion | Completion) -> int:
    """The chosen token's and those of the most likely tokens."""
    if isinstance(request, Completion):
        return 1 + request.logprobs if isinstance(request.logprobs, int) else 0
    if request.logprobs is not True:
        return 0
    return 1 + (request.top_logprobs if isinstance(request.top_logprobs, int) else 0)


def _check_grammars(request: ChatCompletion | Completion) -> None:
    grammars = Grammars()
    if isinstance(request, ChatCompletion) and isinstance(request.tools, list):
        forced = _forced_tool(request)
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


def _forced_tool(request: ChatCompletion) -> str | None:
    """The tool whose schema vLLM compiles because it must be called; of others, only a strict tool's is compiled."""
    if isinstance(request.tool_choice, NamedTool):
        return request.tool_choice.function.name
    return ANY_TOOL if request.tool_choice == "required" else None


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
