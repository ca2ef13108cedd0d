"""What vLLM is sent beyond what the client said, and what is read from its answers and metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, embeddings, openai
from headway.engines.vllm import MAX_MODELS_BYTES, VLLMEngine, read_max_model_len
from headway.wire import Request
from tests.running import raw_server

pytestmark = pytest.mark.anyio
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


METRICS = b'vllm:cache_config_info{kv_cache_size_tokens="4096"} 1.0\n'
PLAIN = {"choices": [{"message": {"reasoning": None}}], "usage": {"completion_tokens_details": None}}
THINKING = {"choices": [{"message": {}}], "usage": {"completion_tokens_details": {"reasoning_tokens": 0}}}


async def up(chat: bytes, status: int = 200, paths: tuple[bytes, ...] = (b"/",)) -> VLLMEngine:
    """An engine that has answered its probe; it has no other endpoints than these."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))
        code, body = (status, chat) if b"/chat/" in head else (200, METRICS)
        if not any(path in head for path in paths):
            code = 404
        writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (code, len(body), body))

    async with raw_server(answer) as url:
        engine = VLLMEngine("r0", url, "m")
        assert await engine.produces_a_token()
        assert await engine.kv_tokens() == (0 if b"/v1/embeddings" in paths else 4096)
        engine.close()
        return engine


async def test_whole_answers_are_collected_from_engines_without_a_reasoning_parser() -> None:
    plain = await up(msgspec.json.encode(PLAIN))
    prepared = plain.prepare(request())
    assert prepared.collects
    asked = msgspec.json.decode(prepared.body)
    assert (asked["stream"], asked["stream_options"]["continuous_usage_stats"]) == (True, True)
    assert plain.prepare(request(anthropic.read_messages, max_tokens=5)).collects
    assert not plain.prepare(request(tools=[{"type": "function", "function": {"name": "f"}}])).collects
    for body in (msgspec.json.encode(THINKING), b"no JSON", b"[" * 100_000):
        thinking = await up(body)
        assert not thinking.prepare(request()).collects
        assert thinking.prepare(completion()).collects, "completions pass through no parser"
        assert thinking.prepare(request(anthropic.read_messages, max_tokens=5, speed="fast")).collects


async def test_a_model_without_a_chat_template_is_probed_by_a_completion() -> None:
    engine = await up(b"{}", status=400)
    assert not engine.prepare(request()).collects


async def test_an_embedding_model_is_probed_by_an_embedding_and_its_memory_is_vllms_own_matter() -> None:
    engine = await up(b"", paths=(b"/v1/embeddings", b"/metrics"))
    of = embeddings.read_embeddings(msgspec.json.encode({"model": "m", "input": "hi"}), "id")
    prepared = engine.prepare(replace(of, cache_salt="secret"))
    assert not prepared.collects
    assert (prepared.path, msgspec.json.decode(prepared.body)) == (
        "/v1/embeddings",
        {"model": "m", "input": "hi", "cache_salt": "secret"},
    )


def cards(*lengths: object) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [{"id": "m", "max_model_len": one} for one in lengths]})


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (cards(8192), 8192),
        (cards(8192, None), 8192),  # an adapter
        (cards(8192, 4096), 4096),
        (cards(None), None),
        (cards(), None),
        (cards("8192"), None),
        (cards(0), None),
        (cards(2**40), None),
        (b"", None),
        (b"[]", None),
        (b'{"data":' + b"[" * 100_000, None),
        (b" " * MAX_MODELS_BYTES + cards(8192), None),
    ],
    ids=["one", "adapter", "two", "null", "none", "text", "zero", "huge", "empty", "list", "nested", "too large"],
)
def test_the_longest_context_is_read_from_the_page_of_models(page: bytes, tokens: int | None) -> None:
    assert read_max_model_len(page) == tokens
