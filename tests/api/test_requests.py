"""What a request may hold, and what the engine is sent of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.core.types import Call
from headway.errors import InvalidRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PROMPT: dict[str, Any] = {"model": "m", "prompt": "hi"}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 5}

READERS = {
    "chat": (openai.read_chat, CHAT),
    "completions": (openai.read_completion, PROMPT),
    "messages": (anthropic.read_messages, MESSAGES),
    "count_tokens": (anthropic.read_count_tokens, CHAT),
}


def sent(kind: str, **fields: Any) -> dict[str, Any]:
    read, body = READERS[kind]
    forwarded: dict[str, Any] = msgspec.json.decode(read(msgspec.json.encode({**body, **fields}), "id").body)
    return forwarded


# Each of these has killed, blocked or opened a shared engine somewhere, or would let one client reach
# into another's calls.
HARMFUL = {
    "chat_template": "{{ 1 }}",
    "chat_template_kwargs": {"x": 1},
    "media_io_kwargs": {},
    "mm_processor_kwargs": {},
    "prompt_embeds": "AAAA",
    "priority": -100,
    "cache_salt": "theirs",
    "kv_transfer_params": {"do_remote_prefill": True},
    "ec_transfer_params": {},
    "request_id": "someone-elses",
    "vllm_xargs": {},
    "documents": [],
    "best_of": 10_000,
    "use_beam_search": True,
    "truncate_prompt_tokens": 1,
    "prompt_logprobs": 1000,
    "return_token_ids": True,
    "api_base": "http://169.254.169.254/",
    "stream_interval": 1,
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("field", HARMFUL)
def test_fields_not_on_the_list_are_refused(kind: str, field: str) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidRequest), match=field):
        sent(kind, **{field: HARMFUL[field]})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chat", {"n": 9}),
        ("chat", {"n": 0}),
        ("chat", {"max_tokens": 0}),
        ("chat", {"max_tokens": 2**40}),
        ("chat", {"max_completion_tokens": -1}),
        ("chat", {"top_logprobs": 21}),
        ("chat", {"stop": ["x"] * 17}),
        ("chat", {"stop": "x" * 257}),
        ("chat", {"temperature": 2.5}),
        ("chat", {"logit_bias": {str(n): 1 for n in range(2000)}}),
        ("chat", {"messages": []}),
        ("chat", {"messages": [{"role": "user", "content": "x"}] * 5000}),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}] * 129}),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "x" * 70_000}}}]}),
        ("chat", {"structured_outputs": {"regex": "(a+)+b"}}),
        ("chat", {"structured_outputs": {"regex": "a{1,30000}"}}),
        ("chat", {"structured_outputs": {"regex": "a" * 1001}}),
        ("chat", {"structured_outputs": {"grammar": "root ::= root"}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"pattern": "(a*)*"}}}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "http://x"}}}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"maxItems": 9999}}}}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
        ("chat", {"stream_options": {"include_usage": True}}),
        ("completions", {"n": 100}),
        ("completions", {"logprobs": 100}),
        ("completions", {"prompt": ["many", "prompts"]}),
        ("messages", {"max_tokens": 2**40}),
        ("messages", {"stop_sequences": ["x"] * 17}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}),
        ("messages", {"tools": [{"name": "f", "input_schema": {"pattern": "a{99999}"}}]}),
        ("messages", {"mcp_servers": [{"url": "http://x"}]}),
        ("count_tokens", {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
    ],
)  # fmt: skip
def test_values_beyond_the_bounds_are_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidRequest)):
        sent(kind, **fields)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(30):
        schema = {"properties": {"x": schema}}
    with pytest.raises(InvalidRequest, match="deep"):
        sent("messages", tools=[{"name": "f", "input_schema": schema}])


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "standard_only", "scale", None])
def test_words_for_standard_are_understood_and_not_sent_on(tier: str | None) -> None:
    assert "service_tier" not in sent("chat", service_tier=tier)


@pytest.mark.parametrize(
    ("asked", "tier"), [("fast", "fast"), ("priority", "fast"), ("ultrafast", "ultrafast"), ("flex", "flex")]
)
def test_a_tier_is_understood_and_not_sent_on(asked: str, tier: str) -> None:
    request = openai.read_chat(msgspec.json.encode({**CHAT, "service_tier": asked}), "id")
    assert request.call.tier == tier
    assert request.call.falls_back, "this dialect is soft"
    assert b"service_tier" not in request.body


def test_a_speed_is_understood_and_not_sent_on() -> None:
    request = anthropic.read_messages(msgspec.json.encode({**MESSAGES, "speed": "fast"}), "id")
    assert request.call.tier == "fast"
    assert not request.call.falls_back, "this dialect is hard"
    assert b"speed" not in request.body


def test_what_only_the_gateway_reads_is_not_sent_on() -> None:
    assert "stream_options" not in sent("chat", stream=True, stream_options={"include_usage": True})
    assert "stream_options" not in sent("chat")


def test_what_a_client_may_say_arrives_unchanged() -> None:
    fields: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hé"}], "name": "u"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
        "temperature": None,
        "top_p": 0.9,
        "stop": ["\n", "END"],
        "seed": -5,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1.50}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_object"},
        "top_k": 5,
        "ignore_eos": True,
    }  # fmt: skip
    got = sent("chat", **fields)
    assert {key: got[key] for key in fields} == fields
    block = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    fields = {"system": [block], "stop_sequences": ["a"], "thinking": {"type": "disabled"}, "top_k": 3}
    got = sent("messages", **fields)
    assert {key: got[key] for key in fields} == fields


def test_an_answers_message_can_be_sent_back() -> None:
    message = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "tool_calls": None, "reasoning": None}
    sent("chat", messages=[{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}])


def test_boarding_is_told_how_a_prompt_begins_and_about_how_long_it_is() -> None:
    def chat(*contents: str, **more: object) -> Call:
        messages = [{"role": "user", "content": content} for content in contents]
        return openai.read_chat(msgspec.json.encode({"model": "m", "messages": messages, **more}), "id").call

    system = "You are a bus. " * 100
    first, second = chat(system, "Where do you go?"), chat(system, "And when?")
    assert first.affinity == second.affinity != chat("something else").affinity
    assert chat("a", prompt_cache_key="mine").affinity == chat("b", prompt_cache_key="mine").affinity
    assert 350 < first.prompt_tokens < 450
    assert "bus" not in first.affinity


@pytest.mark.parametrize(
    ("kind", "fields", "bound"),
    [
        ("chat", {"logprobs": True, "top_logprobs": 20, "max_tokens": 1561}, "32,768 log-probabilities"),
        ("chat", {"logprobs": True, "top_logprobs": 20, "max_completion_tokens": 200, "n": 8}, "32,768 log-prob"),
        ("chat", {"logprobs": True, "max_tokens": 40_000, "stream": True}, "32,768 log-probabilities"),
        ("completions", {"logprobs": 20, "max_tokens": 1561}, "32,768 log-probabilities"),
        ("completions", {"logprobs": 5, "max_tokens": 1, "echo": True, "prompt": "x" * 6000}, "32,768 log-prob"),
        ("completions", {"logprobs": 5, "echo": True, "prompt": [1] * 6000}, "32,768 log-probabilities"),
        ("completions", {"echo": True, "prompt": "x" * 150_000, "n": 8}, "1,048,576 bytes"),
        ("completions", {"echo": True, "prompt": [1] * 20_000}, "1,048,576 bytes"),
        ("chat", {"max_tokens": 20_000, "n": 8}, "131,072 tokens"),
        ("messages", {"max_tokens": 131_073}, "131,072 tokens"),
    ],
)
def test_a_request_for_too_large_an_answer_is_refused_with_the_bound(kind: str, fields: Any, bound: str) -> None:
    with pytest.raises(InvalidRequest, match=bound):
        sent(kind, **fields)


def test_large_answers_within_the_bounds_may_be_asked_for() -> None:
    assert sent("chat", logprobs=True, top_logprobs=20, max_tokens=1560)
    assert sent("chat", max_tokens=100_000, n=8, stream=True)
    assert sent("completions", echo=True, logprobs=1, prompt="x" * 8000, max_tokens=16)
    assert sent("messages", max_tokens=200_000, stream=True)


def test_only_a_client_that_sets_a_limit_has_bounded_its_answer() -> None:
    assert openai.read_chat(msgspec.json.encode({**CHAT, "max_tokens": 5}), "id").is_bounded
    assert not openai.read_chat(msgspec.json.encode(CHAT), "id").is_bounded
