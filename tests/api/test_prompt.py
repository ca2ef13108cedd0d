"""The keys of a prompt's prefixes: alike where prompts begin alike, for one tenant and one model, and for nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, embeddings, openai, responses
from headway.api.prompt import BYTES_PER_TOKEN, prefix_keys, with_prefix_keys
from headway.core.types import KEYED_TOKENS
from headway.wire import Request

SYSTEM = "You are a bus. " * 300
RING = {"type": "object", "description": "Rings the bell. " * 200}
READ: dict[str, Any] = {
    "chat": openai.read_chat,
    "completions": openai.read_completion,
    "messages": anthropic.read_messages,
    "responses": responses.read_create,
}


def asked(dialect: str, *turns: str, **more: Any) -> dict[str, Any]:
    said = [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]
    match dialect:
        case "chat":
            said = [{"role": "system", "content": SYSTEM}, *said]
            return {"max_tokens": 9, "model": "m", "messages": said, **more}
        case "messages":
            return {"max_tokens": 9, "model": "m", "messages": said, "system": SYSTEM, **more}
        case "responses":
            return {"model": "m", "input": said, "instructions": SYSTEM, **more}
    return {"model": "m", "prompt": SYSTEM + "".join(turns), **more}


def read(dialect: str, body: dict[str, Any], salt: str = "salt") -> Request:
    request: Request = READ[dialect](msgspec.json.encode(body), "id")
    return with_prefix_keys(replace(request, cache_salt=salt))


def shared_bytes(one: Request, other: Request) -> int:
    """Of the longest prefix that both have."""
    by_key = dict(zip(one.call.prefix_keys, one.call.prefix_tokens, strict=True))
    return BYTES_PER_TOKEN * max((by_key[key] for key in other.call.prefix_keys if key in by_key), default=0)


@pytest.mark.parametrize("dialect", READ)
def test_turns_of_a_conversation_share_what_was_said_before(dialect: str) -> None:
    said = ["Where do you go? " * 100, "To the sea. " * 100, "And when? " * 300]
    first = read(dialect, asked(dialect, said[0], temperature=0.5))
    second = read(dialect, asked(dialect, *said, temperature=0.7, stream=True))
    before = len(SYSTEM + said[0])
    assert before / 1.3 < shared_bytes(first, second) <= before + 200
    assert list(second.call.prefix_tokens) == sorted(second.call.prefix_tokens)
    assert second.call.prefix_tokens[-1] <= second.call.prompt_tokens


@pytest.mark.parametrize("dialect", READ)
def test_conversations_share_their_system_prompt(dialect: str) -> None:
    first, second = read(dialect, asked(dialect, "a" * 9000)), read(dialect, asked(dialect, "b" * 9000))
    assert len(SYSTEM) / 1.3 < shared_bytes(first, second) <= len(SYSTEM) + 200


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
def test_tools_come_first(dialect: str) -> None:
    tool: dict[str, Any] = {
        "chat": {"type": "function", "function": {"name": "ring", "parameters": RING}},
        "messages": {"name": "ring", "input_schema": RING},
        "responses": {"type": "function", "name": "ring", "parameters": RING},
    }[dialect]
    other = msgspec.json.decode(msgspec.json.encode(tool).replace(b"ring", b"stop"))
    one, same = (read(dialect, asked(dialect, "hello", tools=[tool])) for _ in range(2))
    assert shared_bytes(one, same) > len(SYSTEM) / 1.3
    assert shared_bytes(one, read(dialect, asked(dialect, "hello", tools=[other]))) == 0
    assert shared_bytes(one, read(dialect, asked(dialect, "hello"))) == 0


@pytest.mark.parametrize("dialect", READ)
def test_another_tenant_or_model_has_other_keys(dialect: str) -> None:
    body = asked(dialect, "hello")
    ours = read(dialect, body)
    assert shared_bytes(ours, read(dialect, body)) > 0
    assert shared_bytes(ours, read(dialect, body, salt="other")) == 0
    assert shared_bytes(ours, read(dialect, {**body, "model": "adapter"})) == 0


def test_a_key_says_nothing_of_the_prompt_and_fits_in_63_bits() -> None:
    keys, tokens = prefix_keys(b'{"prompt":"' + bytes(10_000_000), 1, "m", "")
    assert len(keys) == len(set(keys)) == 32
    assert tokens == KEYED_TOKENS
    assert all(0 <= key < 2**63 for key in keys)


def test_short_prompts_and_embeddings_have_no_keys() -> None:
    assert read("completions", {"model": "m", "prompt": "hello"}).call.prefix_keys == ()
    long = msgspec.json.encode({"model": "m", "input": "word " * 1000})
    assert with_prefix_keys(embeddings.ROUTE.read(long, "id", {})).call.prefix_keys == ()
