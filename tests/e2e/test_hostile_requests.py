"""Requests that are meant to harm a shared engine: the gateway stops them, or the engines live through them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from headway.engines.vllm import read_metrics
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess
from tests.e2e.conftest import GatewayProcess, get

pytestmark = pytest.mark.engine

BOMB = {"type": "array", "minItems": 100_000, "items": {"type": "string", "pattern": "(a{1,1000}){1,1000}"}}
ARRAYS: dict[str, Any] = {"type": "string", "minLength": 1000}
for _ in range(3):
    ARRAYS = {"type": "array", "minItems": 1000, "items": ARRAYS}
TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": BOMB}}

# A bare engine compiles these for minutes, or would do so with another of its backends, or indexes a tensor by them.
STOPPED: dict[str, dict[str, Any]] = {
    "nested repeats": {"structured_outputs": {"regex": "((a{1,1000}b){1,1000}c){1,1000}"}},
    "repeats without an end": {"structured_outputs": {"regex": "(" * 200 + "a" + ")+" * 200}},
    "many long repeats": {"structured_outputs": {"regex": "[a-z]{1,1000}" * 60}},
    "long choices": {"structured_outputs": {"choice": ["x" * 1000 + str(number) for number in range(256)]}},
    "a schema as text": {"structured_outputs": {"json": json.dumps(BOMB)}},
    "nested arrays": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": ARRAYS}}},
    "itself": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}}},
    "a forced tool": {"tools": [TOOL], "tool_choice": "required"},
    "a grammar": {"structured_outputs": {"grammar": "root ::= root"}},
    "a token to stop at": {"stop_token_ids": [2**31], "min_tokens": 3},
    "a token to favour": {"logit_bias": {str(2**31): 1}},
    "choices": {"n": 10_000},
    "log-probabilities": {"logprobs": True, "top_logprobs": 100_000},
}
LET_THROUGH: dict[str, dict[str, Any]] = {
    "a repeat": {"structured_outputs": {"regex": "(.*a){20}"}},
    "alternatives": {"structured_outputs": {"regex": "(a|a)*b"}},
    "a slug": {"structured_outputs": {"regex": "[a-z]+(-[a-z0-9]+)*"}},
    "choices of words": {"structured_outputs": {"choice": [f"choice {number}" for number in range(256)]}},
    "a tree": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": TREE}}},
    "a tool that is shown": {"tools": [TOOL], "tool_choice": "none"},
    "a token beyond its vocabulary": {"stop_token_ids": [2**20 - 1], "min_tokens": 3},
    "a bias beyond its vocabulary": {"logit_bias": {str(2**20 - 1): 1}},
    "eight answers": {"n": 8, "logprobs": True, "top_logprobs": 20},
}


def calls(gateway: GatewayProcess) -> float:
    return read_metrics(get(gateway.url + "/metrics"), (b"headway_calls_total",))[0]


def ask(gateway: GatewayProcess, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 4, **fields}
    gateway.openai.post("/chat/completions", body=body, cast_to=object)


def assert_alive(engines: list[EngineProcess]) -> None:
    for engine in engines:
        with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=60) as bare:
            assert bare.completions.create(model=MODEL, prompt="1", max_tokens=2).usage is not None


@pytest.mark.parametrize("what", STOPPED)
def test_what_kills_or_hangs_an_engine_does_not_reach_it(gateway: GatewayProcess, what: str) -> None:
    before = calls(gateway)
    with pytest.raises(openai.BadRequestError):
        ask(gateway, STOPPED[what])
    assert calls(gateway) == before


@pytest.mark.parametrize("what", LET_THROUGH)
def test_engines_live_through_what_reaches_them(
    gateway: GatewayProcess, engines: list[EngineProcess], what: str
) -> None:
    before = calls(gateway)
    try:
        ask(gateway, LET_THROUGH[what])
    except openai.BadRequestError:  # by the engine itself
        assert "vocabulary" in what
    assert calls(gateway) == before + 1
    assert_alive(engines)


def test_engines_live_through_tokens_beyond_their_vocabulary_and_an_echo_with_log_probabilities(
    gateway: GatewayProcess, engines: list[EngineProcess]
) -> None:
    with pytest.raises(openai.BadRequestError):
        gateway.openai.completions.create(model=MODEL, prompt=[2**31], max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        gateway.openai.completions.create(model=MODEL, prompt=[2**20 - 1], max_tokens=1)
    gateway.openai.completions.create(model=MODEL, prompt="a word " * 100, max_tokens=1, echo=True, logprobs=20)
    assert_alive(engines)
