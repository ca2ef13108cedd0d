"""What the torture's clients ask for: all dialects, tiers and keys. Knows requests, and how an answer ends."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

MODEL, STUDENT, AUTO = "m", "m-spark", "m-auto"
TOOL_NAME = "set_timer"
TOOL_PARAMETERS = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
FUNCTION = {"name": TOOL_NAME, "parameters": TOOL_PARAMETERS}
TOKENS = (2, 10)  # of an answer, most of them short: the calls count here, not their length
LONG_TOKENS = (16, 40)
LONG_SHARE = 0.05
LEAVING = 0.03
PROMPT_WORDS = (1, 60)


@dataclass(frozen=True)
class ClientKey:
    id: str
    secret: str
    limits: Mapping[str, Any] = field(default_factory=dict)
    share: int = 10
    may_be_revoked: bool = False

    @property
    def budget_day(self) -> int | None:
        found: int | None = self.limits.get("budget_day")
        return found


KEYS = (
    ClientKey("key-open-1", "hw-torture-open-1", share=25),
    ClientKey("key-open-2", "hw-torture-open-2", share=25),
    ClientKey("key-budget", "hw-torture-budget", {"budget_day": 40_000_000, "budget_month": 400_000_000}, share=12),
    ClientKey("key-poor", "hw-torture-poor", {"budget_day": 60_000}, share=2),  # used up within a part
    ClientKey("key-requests", "hw-torture-requests", {"requests_pm": 300}, share=6),
    ClientKey("key-tokens", "hw-torture-tokens", {"output_tpm": 6_000, "input_tpm": 20_000}, share=6),
    ClientKey("key-fast-limit", "hw-torture-fast-limit", {"fast_output_tpm": 1_500}, share=6),
    ClientKey("key-fast", "hw-torture-fast", {"default_tier": "fast"}, share=6),
    ClientKey("key-standard", "hw-torture-standard", {"tiers": ["standard", "flex"]}, share=6),
    ClientKey("key-revoked", "hw-torture-revoked", share=6, may_be_revoked=True),
)
BY_SECRET = {key.secret: key for key in KEYS}


@dataclass(frozen=True)
class Kind:
    """A way to ask. `ends` is what the last bytes of a complete answer contain; for whole answers it is not needed."""

    name: str
    share: int
    path: str
    ends: bytes = b""
    token: bytes = b""  # once in the event of each token; empty if they are not counted
    is_socket: bool = False

    @property
    def is_streamed(self) -> bool:
        return bool(self.ends)


COMPLETIONS, CHAT, MESSAGES, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"
DONE, STOPPED, COMPLETED = b"data: [DONE]", b"message_stop", b'"type":"response.completed"'
KINDS = (
    Kind("completion", 36, COMPLETIONS, DONE, b'"text":"'),
    Kind("chat", 24, CHAT, DONE, b'"content":" '),
    Kind("chat, whole", 4, CHAT),
    Kind("chat, tools", 4, CHAT, DONE),
    Kind("two choices", 2, COMPLETIONS, DONE),
    Kind("message", 9, MESSAGES, STOPPED, b'"text":" '),
    Kind("message, whole", 2, MESSAGES),
    Kind("message, tools", 2, MESSAGES, STOPPED),
    Kind("response", 6, RESPONSES, COMPLETED),
    Kind("response, stored", 1, RESPONSES, COMPLETED),
    Kind("socket", 4, RESPONSES, COMPLETED, is_socket=True),
    Kind("spark", 3, CHAT, DONE, b'"content":" '),
    Kind("auto", 3, CHAT),
)
TIERS = {"standard": 60, "fast": 20, "ultrafast": 8, "flex": 12}


@dataclass(frozen=True)
class Mix:
    """What is asked for, how often. `fields` are those of every request in OpenAI's older dialects."""

    kinds: Sequence[Kind] = KINDS
    tiers: Mapping[str, int] = field(default_factory=TIERS.copy)
    keys: Sequence[ClientKey] = KEYS
    tokens: tuple[int, int] = TOKENS
    long_tokens: tuple[int, int] = LONG_TOKENS
    fields: Mapping[str, Any] = field(default_factory=dict)


ALL = Mix()


@dataclass(frozen=True)
class Ask:
    kind: Kind
    key: ClientKey
    tier: str
    tokens: int
    leaves_after: int | None  # events
    body: bytes
    falls_back: bool


def draw(chance: random.Random, mix: Mix = ALL) -> Ask:
    """The next call of a client."""
    kind = chance.choices(mix.kinds, [kind.share for kind in mix.kinds])[0]
    key = chance.choices(mix.keys, [key.share for key in mix.keys])[0]
    tier = chance.choices([*mix.tiers], [*mix.tiers.values()])[0]
    if kind.name in ("spark", "auto"):
        tier = "standard"
    if kind.path == MESSAGES and tier in ("ultrafast", "flex"):
        tier = "fast"
    is_long = chance.random() < LONG_SHARE or tier in ("fast", "ultrafast")
    tokens = chance.randint(*(mix.long_tokens if is_long else mix.tokens))
    leaves = kind.is_streamed and chance.random() < LEAVING
    words = " ".join(["word"] * chance.randint(*PROMPT_WORDS))
    falls_back = chance.random() < 0.5
    asked = _body(kind, tier, tokens, f"{words} {chance.randrange(50)}", chance)
    asked |= mix.fields if kind.path in (COMPLETIONS, CHAT) else {}
    body = msgspec.json.encode(asked)
    return Ask(kind, key, tier, tokens, chance.randint(0, tokens) if leaves else None, body, falls_back)


def _body(kind: Kind, tier: str, tokens: int, words: str, chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL}
    if kind.path == MESSAGES:
        body |= {"max_tokens": tokens, "messages": [{"role": "user", "content": words}]}
        body |= {"speed": "fast"} if tier == "fast" else {}
        body |= {"metadata": {"user_id": f"session-{chance.randrange(40)}"}}
    elif kind.path == RESPONSES:
        body |= {"max_output_tokens": tokens, "input": words, "service_tier": tier, "store": "stored" in kind.name}
        body |= {"prompt_cache_key": f"session-{chance.randrange(40)}"}
    else:
        body |= {"max_tokens": tokens, "service_tier": tier, "user": f"session-{chance.randrange(40)}"}
        said = [{"role": "user", "content": words}]
        body |= {"prompt": words} if kind.path == COMPLETIONS else {"messages": said}
        body |= {"stream_options": {"include_usage": True}} if kind.is_streamed else {}
    if kind.is_socket:
        return {"type": "response.create", **body}
    if kind.is_streamed:
        body["stream"] = True
    if kind.name == "two choices":
        body["n"] = 2
    elif kind.name == "spark":
        body["model"] = STUDENT
    elif kind.name == "auto":
        body |= {"model": AUTO, "temperature": 0, "tools": [{"type": "function", "function": FUNCTION}]}
        body["max_tokens"] = 40
    elif kind.name == "chat, tools":
        body |= {"tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 40}
    elif kind.name == "message, tools":
        body |= {"tools": [{"name": TOOL_NAME, "input_schema": TOOL_PARAMETERS}], "max_tokens": 40}
    return body
