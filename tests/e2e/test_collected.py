"""Whole answers that the gateway collects from a stream are those that vLLM itself gives in one piece.

The requests here are of the kinds that the dialects collect, on engines with a parser for tools, as most have. Where
sampling is needed a seed makes it repeatable.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from headway.api import anthropic, openai
from headway.engines.vllm import VLLMEngine
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess
from tests.e2e.conftest import GatewayProcess

pytestmark = [pytest.mark.engine, pytest.mark.anyio]
READERS = {
    "/v1/chat/completions": openai.read_chat,
    "/v1/completions": openai.read_completion,
    "/v1/messages": anthropic.read_messages,
}
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": 0}
# Few tokens: each is drawn from probabilities whose last digits depend on the batch, and one that is drawn differently
# changes all that follow.
SEVERAL: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 6}
LOGPROB_NOISE = 0.2  # of a model in bfloat16
SCHEMA = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}
WANTED = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


CHAT, PROMPT = said("Count from one to five."), {"prompt": "Once upon a time"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, to its end": ("/v1/chat/completions", CHAT | {"max_tokens": 300}),
    "chat, one token": ("/v1/chat/completions", CHAT | {"max_tokens": 1}),
    "chat, stopped": ("/v1/chat/completions", CHAT | {"stop": ["o", "three"]}),
    "chat, wide characters": ("/v1/chat/completions", said("Repeat: 日本語 🙂🙂 é") | {"max_tokens": 60}),
    "chat, logprobs": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3}),
    "chat, logprobs and a stop": ("/v1/chat/completions", CHAT | {"logprobs": True, "stop": ["three"]}),
    "chat, choices": ("/v1/chat/completions", CHAT | SEVERAL),
    "chat, choices with logprobs": ("/v1/chat/completions", CHAT | SEVERAL | {"logprobs": True}),
    "chat, schema": ("/v1/chat/completions", said("Which animal barks?") | {"response_format": WANTED}),
    "chat, JSON": ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
    "chat, regex": ("/v1/chat/completions", CHAT | {"structured_outputs": {"regex": "[a-z]{3,9}"}}),
    "completions": ("/v1/completions", PROMPT),
    "completions, logprobs": ("/v1/completions", PROMPT | {"logprobs": 2}),
    "completions, logprobs and a stop": ("/v1/completions", PROMPT | {"logprobs": 2, "stop": ["the"]}),
    "completions, choices": ("/v1/completions", PROMPT | SEVERAL | {"logprobs": 1}),
    "messages": ("/v1/messages", CHAT | {"system": "Be brief."}),
    "messages, stopped": ("/v1/messages", CHAT | {"stop_sequences": ["three"]}),
    "messages, schema": (
        "/v1/messages",
        said("Which animal barks?") | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
}


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with opener.open(request, timeout=120) as answer:
        fields: dict[str, Any] = json.loads(answer.read())
    return fields


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from call to call, and what the gateway adds. Of timings only the names are compared."""
    fields = {name: value for name, value in answer.items() if name not in ("id", "created", "service_tier")}
    fields["usage"] = {name: value for name, value in answer["usage"].items() if name not in ("headway", "speed")}
    details = fields["usage"].get("prompt_tokens_details")
    if details is not None:  # streams leave out what is null
        fields["usage"]["prompt_tokens_details"] = {name: one for name, one in details.items() if one is not None}
    if fields.get("metrics") is not None:
        fields["metrics"] = sorted(name for name, value in fields["metrics"].items() if value is not None)
    return fields


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """The places that differ. The choices of a call are not computed in the same batches each time, so log-probabilities
    may differ a little."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for name in one for found in differences(one[name], other[name], f"{where}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for number, pair in pairs for found in differences(*pair, f"{where}[{number}]")]
    is_close = isinstance(one, float) and isinstance(other, float) and abs(one - other) <= LOGPROB_NOISE
    return [] if is_close or one == other else [f"{where}: {one} and {other}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_collected_answer_is_the_engines_whole_answer(
    kind: str, gateway: GatewayProcess, engines: list[EngineProcess]
) -> None:
    path, fields = KINDS[kind]
    body = GREEDY | fields
    assert READERS[path](json.dumps(body).encode(), "id").collect == "if_same"
    whole, collected = ask(engines[0].url, path, body), ask(gateway.url, path, body)
    assert differences(comparable(collected), comparable(whole)) == []


def collects(engine: VLLMEngine, path: str) -> bool:
    fields = PROMPT if path == "/v1/completions" else CHAT
    return engine.prepare(READERS[path](json.dumps(GREEDY | fields).encode(), "id")).collects


async def test_an_engine_that_parses_only_tools_has_its_answers_collected(engines: list[EngineProcess]) -> None:
    engine = VLLMEngine("r0", engines[0].url, MODEL)
    assert await engine.produces_a_token()
    assert [collects(engine, path) for path in READERS] == [True, True, True]
    engine.close()
