"""What vLLM is sent beyond what the client said, and what is read from its answers and metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.engines.vllm import VLLMEngine
from headway.wire import Request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ENGINE = VLLMEngine("r0", "http://127.0.0.1:1", "m")


def request(read: Any = openai.read_chat, **fields: Any) -> Request:
    made: Request = read(msgspec.json.encode({**CHAT, **fields}), "id")
    return made


def sent(of: Request) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(ENGINE.prepare(of).body)
    return body


def completion(**fields: Any) -> Request:
    return openai.read_completion(msgspec.json.encode({"model": "m", "prompt": "hi", **fields}), "id")


def test_the_engine_is_asked_for_continuous_usage() -> None:
    everything = {"include_usage": True, "continuous_usage_stats": True}
    assert sent(request(stream=True))["stream_options"] == everything
    assert sent(completion(stream=True, stream_options={"include_usage": False}))["stream_options"] == everything
    assert "stream_options" not in sent(request())
    assert "stream_options" not in sent(request(anthropic.read_messages, max_tokens=5, stream=True))


@pytest.mark.parametrize("read", [openai.read_chat, anthropic.read_messages])
def test_tenants_are_kept_apart_in_the_cache(read: Any) -> None:
    of = request(read, max_tokens=5)
    assert "cache_salt" not in sent(of)
    assert sent(replace(of, cache_salt="secret"))["cache_salt"] == "secret"


def test_the_call_is_named_to_the_engine() -> None:
    prepared = ENGINE.prepare(request())
    assert prepared.path == "/v1/chat/completions"
    assert prepared.headers == ((b"x-request-id", b"id"),)


def test_the_engines_own_timing_is_found() -> None:
    assert ENGINE.generation_s({"metrics": {"generation_time_ms": 230.0}}) == 0.23
    assert ENGINE.generation_s({"metrics": None}) is None
    assert ENGINE.generation_s({}) is None


@pytest.mark.parametrize("took", [-1, "1", True, 1e12, [1]])
def test_a_time_that_cannot_be_is_not_believed(took: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        ENGINE.generation_s({"metrics": {"generation_time_ms": took}})


def test_a_time_too_short_to_be_measured_is_unknown() -> None:
    assert ENGINE.generation_s({"metrics": {"generation_time_ms": 1e-300}}) is None
