"""Limits on the size of requests, so that one request cannot harm a shared engine.

The dialects (api/openai.py, api/anthropic.py) list the fields they accept. This module has the limits they share; what
engines compile is measured in api/grammars.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from headway.errors import InvalidRequest

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
ShortText = Annotated[str, Meta(max_length=1_024)]
Choices = Annotated[int, Meta(ge=1, le=8)]
Tokens = Annotated[int, Meta(ge=1, le=2**20)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
TopK = Annotated[int, Meta(ge=-1, le=2**20)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
StopTexts = Annotated[list[StopText], Meta(max_length=16)]
# Engines index tensors by token ids. No vocabulary is as large as this; the engine knows how large its own is.
TokenId = Annotated[int, Meta(ge=0, lt=2**20)]
TokenIds = Annotated[list[TokenId], Meta(max_length=256)]
LogitBias = Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1_024)]
TemplateKwargs = Annotated[dict[ShortText, bool | int | float | ShortText | None], Meta(max_length=16)]

MAX_SMALL_BYTES = 64 * 1024

MAX_MESSAGES = 4_096
MAX_PARTS = 1_024
MAX_TOOLS = 128
MAX_INPUTS = 2_048  # of one request for embeddings
MAX_INPUT_IDS = 2**20  # token ids in these

# The size of an answer is what its request asks for, so it is bounded there. Beyond these an answer, or an event with
# many tokens of it, would not fit into memory (http1.py, sse.py), which is then the engine's fault.
MAX_LOGPROBS = 2**15  # of one answer; each takes about 100 bytes, with the longest tokens 700
MAX_WHOLE_TOKENS = 2**17  # of an answer in one piece; the longest tokens take 256 bytes
MAX_ECHO_BYTES = 2**20  # of the prompts in an answer; six times as much if all is escaped
ECHOED_TOKEN_BYTES = 64  # of a prompt in token ids


class AnyObject(Struct, gc=False):
    """Any JSON object. Its fields are skipped, so it costs little."""


_read_template_kwargs = msgspec.json.Decoder(TemplateKwargs | None).decode
check_logit_bias = msgspec.json.Decoder(LogitBias | None).decode


def check_raw(raw: Raw | UnsetType, param: str, check: Callable[[Raw], Any]) -> Any:
    """Validate a field that is kept as it came. Returns it decoded; None if it is not set. Decoded, many small values
    take thirty times their bytes, and a type's `max_length` is looked at only when they all are there."""
    if isinstance(raw, UnsetType):
        return None
    if memoryview(raw).nbytes > MAX_SMALL_BYTES:
        raise InvalidRequest(f"`{param}` is larger than {MAX_SMALL_BYTES} bytes.", param)
    try:
        return check(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"`{param}`: {error}.", param) from None


def check_answer_size(tokens: int, choices: int = 1) -> None:
    """Reject a request whose answer, in one piece, may be too large."""
    if choices * tokens > MAX_WHOLE_TOKENS:
        raise InvalidRequest(
            f"An answer in one piece may have at most {MAX_WHOLE_TOKENS:,} tokens. Lower `max_tokens` or `n`, or set "
            "`stream: true`.",
            "max_tokens",
        )


def check_logprobs(count: int) -> None:
    if count > MAX_LOGPROBS:
        raise InvalidRequest(
            f"An answer may have at most {MAX_LOGPROBS:,} log-probabilities, and this one may have {count:,}. Lower "
            "`max_tokens`, `n` or the number of log-probabilities.",
            "logprobs",
        )


def check_echo(prompt: str | list[int], choices: int) -> None:
    size = len(prompt.encode()) if isinstance(prompt, str) else len(prompt) * ECHOED_TOKEN_BYTES
    if choices * size > MAX_ECHO_BYTES:
        raise InvalidRequest(f"`echo` may repeat at most {MAX_ECHO_BYTES:,} bytes of prompts in all choices.", "echo")


def check_template_kwargs(raw: Raw | UnsetType) -> tuple[str, ...]:
    """The names in `chat_template_kwargs`, whose values are scalars: a template could loop over anything else."""
    return tuple(check_raw(raw, "chat_template_kwargs", _read_template_kwargs) or ())


def check_template_names(names: Sequence[str], allowed: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in allowed]:
        raise InvalidRequest(
            f"`chat_template_kwargs` has {unknown[0][:64]!r}, which is not set up for this model. Remove it. Allowed: "
            f"{', '.join(allowed) or 'none'}.",
            "chat_template_kwargs",
        )
