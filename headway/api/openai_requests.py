"""The requests of the OpenAI dialect: the fields that are honoured (api/fields.py sees to all others), and what follows
from them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.chat_messages import ChatMessage

ANY_TOOL = "*"  # not the name of a tool


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
    # What the prompt is made of, in the order in which most chat templates use it (PROMPT_FIELDS).
    reasoning_effort: limits.ShortText | UnsetType | None = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET  # vLLM's own: what the chat template is told
    tools: Annotated[list[ChatTool], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]
    max_completion_tokens: limits.Tokens | UnsetType | None = UNSET
    logprobs: bool | UnsetType | None = UNSET
    top_logprobs: limits.TopLogprobs | UnsetType | None = UNSET
    return_tokens_as_token_ids: bool | UnsetType = UNSET  # vLLM's own: logprobs name tokens by their ids
    tool_choice: Literal["none", "auto", "required"] | NamedTool | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    # vLLM's own: whether the answer has reasoning, and continues the last message.
    include_reasoning: bool | UnsetType = UNSET
    add_generation_prompt: bool | UnsetType = UNSET
    continue_final_message: bool | UnsetType = UNSET
    # Not sent to the engine: shared prefixes are found without it.
    prompt_cache_key: limits.ShortText | UnsetType | None = UNSET


class Completion(Sampling, kw_only=True):
    prompt: str | Annotated[list[limits.TokenId], Meta(min_length=1, max_length=2**20)]
    echo: bool | UnsetType | None = UNSET
    logprobs: limits.TopLogprobs | UnsetType | None = UNSET
    suffix: UnsetType | None = UNSET


# The fields that the prompt is made of, as they follow each other in the encoded request; the last is always there.
PROMPT_FIELDS: dict[type[Sampling], tuple[bytes, ...]] = {
    ChatCompletion: (b"reasoning_effort", b"chat_template_kwargs", b"tools", b"messages"),
    Completion: (b"prompt",),
}


def token_limit(request: ChatCompletion | Completion) -> int | None:
    limits_of = (getattr(request, "max_completion_tokens", None), request.max_tokens)
    return next((limit for limit in limits_of if isinstance(limit, int)), None)


def is_same_collected(request: ChatCompletion | Completion) -> bool:
    """Whether the stream of such an answer has all that the whole answer has (tests/e2e/test_collected.py). vLLM parses
    tool calls in a stream by other code than in a whole answer, and not always to the same result."""
    if isinstance(request, Completion):
        return not request.echo
    return not request.tools and not request.tool_choice


def is_continuable(request: ChatCompletion | Completion) -> bool:
    """Whether another engine that is given the tokens so far goes on with the same distribution: nothing else decides
    on the next token, such as a generator of random numbers, a grammar, or penalties, which do not count the prompt."""
    penalties = (request.frequency_penalty, request.presence_penalty)
    if request.n not in (UNSET, None, 1) or isinstance(request.seed, int) or any(one or 0 for one in penalties):
        return False
    if request.repetition_penalty not in (UNSET, None, 1) or logprobs_per_token(request):
        return False
    if isinstance(request.structured_outputs, StructuredOutputs) or (
        isinstance(request.response_format, ResponseFormat) and request.response_format.type != "text"
    ):
        return False
    if stops_of(request) and (request.min_tokens or request.skip_special_tokens is False):
        return False  # where a stop string may be, and how ids are decoded, depends on these
    if isinstance(request, Completion):
        return not request.echo
    if not request.tools:
        return not request.tool_choice
    return _calls_tools_freely(request) and is_parsable(request)


def _calls_tools_freely(request: ChatCompletion) -> bool:
    """Whether vLLM compiles no grammar for the calls of tools, unless its owner has it do so (engines/vllm.py asks)."""
    is_strict = any(tool.function.strict is True for tool in request.tools or ())
    return request.tool_choice in (UNSET, None, "auto") and request.parallel_tool_calls is not False and not is_strict


def is_parsable(request: ChatCompletion | Completion) -> bool:
    """Whether another engine can parse the rest of the answer. vLLM hides the ids of reasoning that nobody wants, and
    stop strings are searched in text that was not parsed."""
    return isinstance(request, ChatCompletion) and request.include_reasoning is not False and not stops_of(request)


def stops_of(request: ChatCompletion | Completion) -> tuple[str, ...]:
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())


def logprobs_per_token(request: ChatCompletion | Completion) -> int:
    """The chosen token's and those of the most likely tokens."""
    if isinstance(request, Completion):
        return 1 + request.logprobs if isinstance(request.logprobs, int) else 0
    if request.logprobs is not True:
        return 0
    return 1 + (request.top_logprobs if isinstance(request.top_logprobs, int) else 0)


def forced_tool(request: ChatCompletion) -> str | None:
    """The tool whose schema vLLM compiles because it must be called; of others, only a strict tool's is compiled."""
    if isinstance(request.tool_choice, NamedTool):
        return request.tool_choice.function.name
    return ANY_TOOL if request.tool_choice == "required" else None
