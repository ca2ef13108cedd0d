"""Limits on the size of requests, so that one request cannot harm a shared engine.

The dialects (api/openai.py, api/anthropic.py) list the fields they accept. This module has the limits they share, and
the checks that a type cannot express: engines compile JSON schemas and regular expressions into automata, whose size
has little to do with the length of the text.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headway.errors import InvalidRequest

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 24
MAX_SCHEMA_NODES = 4_000
MAX_REPEAT = 1_000
MAX_REGEX_CHARS = 1_000

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
TokenIds = Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=256)]
LogitBias = Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1_024)]
Metadata = Annotated[dict[ShortText, ShortText | None], Meta(max_length=16)]

MAX_MESSAGES = 4_096
MAX_PARTS = 1_024
MAX_TOOLS = 128

# The size of an answer is what its request asks for, so it is bounded there. Beyond these an answer, or an event with
# many tokens of it, would not fit into memory (http1.py, api/sse.py), which is then the engine's fault.
MAX_LOGPROBS = 2**15  # of one answer; each takes about 100 bytes, with the longest tokens 700
MAX_WHOLE_TOKENS = 2**17  # of an answer in one piece; the longest tokens take 256 bytes
MAX_ECHO_BYTES = 2**20  # of the prompts in an answer; six times as much if all is escaped
ECHOED_TOKEN_BYTES = 64  # of a prompt in token ids

# Engines unroll bounded repeats such as {1,30000}; nested repeats multiply.
REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
REPEATED_REPEAT = re.compile(r"[*+}]\)[*+{]")


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


def check_schema(raw: msgspec.Raw, param: str) -> None:
    """Reject a JSON schema that is too large or too deep, has external references, or contains an expensive regex."""
    if len(bytes(raw)) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"`{param}` is larger than {MAX_SCHEMA_BYTES} bytes.", param)
    try:
        root = msgspec.json.decode(raw)
    except RecursionError:
        raise InvalidRequest(f"`{param}` is nested too deeply.", param) from None
    nodes = 0
    todo: list[tuple[Any, int]] = [(root, 1)]
    while todo:
        node, depth = todo.pop()
        nodes += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"`{param}` is nested more than {MAX_SCHEMA_DEPTH} levels deep.", param)
        if nodes > MAX_SCHEMA_NODES:
            raise InvalidRequest(f"`{param}` has more than {MAX_SCHEMA_NODES} nodes.", param)
        if isinstance(node, dict):
            _check_keywords(node, param)
            todo += [(child, depth + 1) for child in node.values()]
        elif isinstance(node, list):
            todo += [(child, depth + 1) for child in node]


def _check_keywords(node: dict[str, Any], param: str) -> None:
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise InvalidRequest(f"`{param}` may refer only to itself (`$ref` must start with #).", param)
    if isinstance(pattern := node.get("pattern"), str):
        check_regex(pattern, param)
    if isinstance(patterns := node.get("patternProperties"), dict):
        for name in patterns:
            check_regex(name, param)
    for keyword in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        if isinstance(value := node.get(keyword), int | float) and value > MAX_REPEAT:
            raise InvalidRequest(f"`{keyword}` in `{param}` may be at most {MAX_REPEAT}.", param)


def check_regex(pattern: str, param: str) -> None:
    if len(pattern) > MAX_REGEX_CHARS:
        raise InvalidRequest(f"A regular expression in `{param}` is longer than {MAX_REGEX_CHARS} characters.", param)
    if REPEATED_REPEAT.search(pattern):
        raise InvalidRequest(f"A regular expression in `{param}` repeats a group that itself repeats.", param)
    for low, high in REPEAT.findall(pattern):
        if max(int(low or 0), int(high or 0)) > MAX_REPEAT:
            raise InvalidRequest(f"A repeat in a regular expression in `{param}` is above {MAX_REPEAT}.", param)
