"""The frames of the scripted engine's programmed answers are those of vLLM: the same fields in the same order of events.

Every request goes to both engines. What vLLM's answer looks like is forced by a grammar or a named tool, because what a
tiny model says does not matter here. So texts and counts are not compared, only that there are such. Reasoning is not
compared either: the engines of these tests have no reasoning parser.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess
from tests.bench.mock_process import mock_engine

pytestmark = pytest.mark.engine
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
ANSWERS = """
[[answers]]
when = { offers_tool = "weather" }
tool_calls = [{ name = "weather", arguments = { city = "Paris" } }]

[[answers]]
text = '"zero one two three" four'
"""
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "The weather in a city.", "parameters": CITY}
HERMES_CALL = '<tool_call>\n\\{"name": "weather", "arguments": \\{"city": "(Paris|Rome)"\\}\\}\n</tool_call>'
WORDS = {"type": "json_schema", "schema": {"const": "zero one two three"}}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
PROMPT = {"prompt": "The weather in Paris is"}
INPUT: dict[str, Any] = {"input": "What is the weather in Paris?"}
WORDS_AS_TEXT = {"text": {"format": WORDS | {"name": "words"}}}
OVERLONG = "one " * 20_000


def matching(regex: str) -> dict[str, Any]:
    return {"structured_outputs": {"regex": regex}}


STOPS = [" two"]
NUMBERS = matching('"zero one two three"')
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, to its end": (CHAT, ASK | NUMBERS),
    "chat, to its limit": (CHAT, ASK | matching("[a-z]{80,90}") | {"max_tokens": 3}),
    "chat, stopped": (CHAT, ASK | NUMBERS | {"stop": STOPS}),
    "chat, two choices": (CHAT, ASK | NUMBERS | {"n": 2, "temperature": 1.0}),
    "chat, a call": (CHAT, ASK | {"tools": [{"type": "function", "function": FUNCTION}]} | matching(HERMES_CALL)),
    "chat, a call of the named tool": (
        CHAT,
        ASK
        | {
            "tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
    ),
    "completions, to its end": (COMPLETIONS, PROMPT | NUMBERS),
    "completions, to its limit": (COMPLETIONS, PROMPT | matching("[a-z]{80,90}") | {"max_tokens": 3}),
    "completions, stopped": (COMPLETIONS, PROMPT | NUMBERS | {"stop": [" two"]}),
    "completions, two choices": (COMPLETIONS, PROMPT | NUMBERS | {"n": 2, "temperature": 1.0}),
    "messages, to its end": (MESSAGES, ASK | {"output_config": {"format": WORDS}}),
    "messages, to its limit": (MESSAGES, ASK | {"output_config": {"format": WORDS}, "max_tokens": 3}),
    "messages, stopped": (MESSAGES, ASK | {"output_config": {"format": WORDS}, "stop_sequences": [" two"]}),
    "messages, a call of the named tool": (
        MESSAGES,
        ASK
        | {
            "tools": [{"name": "weather", "input_schema": CITY, "strict": True}],
            "tool_choice": {"type": "tool", "name": "weather"},
        },
    ),
    "responses, to its end": (RESPONSES, INPUT | WORDS_AS_TEXT),
    "responses, to its limit": (RESPONSES, INPUT | WORDS_AS_TEXT | {"max_output_tokens": 3}),
    "responses, a call of the named tool": (
        RESPONSES,
        INPUT
        | {
            "tools": [{"type": "function", "strict": True, **FUNCTION}],
            "tool_choice": {"type": "function", "name": "weather"},
        },
    ),
}
ERRORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, overlong": (CHAT, {"messages": [{"role": "user", "content": OVERLONG}]}),
    "completions, overlong": (COMPLETIONS, {"prompt": OVERLONG}),
    "messages, overlong": (MESSAGES, {"messages": [{"role": "user", "content": OVERLONG}]}),
    "responses, overlong": (RESPONSES, {"input": OVERLONG}),
    "chat, unknown model": (CHAT, ASK | {"model": "none"}),
    "completions, unknown model": (COMPLETIONS, PROMPT | {"model": "none"}),
    "messages, unknown model": (MESSAGES, ASK | {"model": "none"}),
    "responses, unknown model": (RESPONSES, INPUT | {"model": "none"}),
}
# Values that are the engine's own and not the model's.
ITS_OWN = {"type", "object", "role", "index", "finish_reason", "stop_reason", "status"}
# Fields that are there or not by a flag of the engine and by what its cache holds.
OF_THE_CACHE = {"prompt_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens"}

# Fields of the request that a response repeats. vLLM adds a null for everything that the request does not have.
ECHOED = {"text", "tools"}


@pytest.fixture(scope="module")
def scripted_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    answers: Path = tmp_path_factory.mktemp("scripted") / "answers.toml"
    answers.write_text(ANSWERS)
    with mock_engine(5, "1:5", options=("--model", MODEL, "--answers", str(answers))) as url:
        yield url


def post(url: str, path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
    limit = {"max_output_tokens": 60, "store": False} if path == RESPONSES else {"max_tokens": 60}
    body = {"model": MODEL, "temperature": 0} | limit | fields
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with opener.open(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def kind_of(value: Any) -> Any:
    """The value with its names and what the engine itself says, and of everything else what kind of thing it is."""
    if isinstance(value, dict):
        return {
            name: one if name in ITS_OWN else kind_of(_without_nulls(one) if name in ECHOED else one)
            for name, one in value.items()
            if name not in OF_THE_CACHE
        }
    if isinstance(value, list):
        return [kind_of(one) for one in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def frames_of(content: bytes) -> dict[Any, list[Any]]:
    """By the index of the choice (None: of no choice), the kinds of its frames in their order. How many tokens an answer
    has does not matter, so frames of the same kind in a row count as one."""
    frames: dict[Any, list[Any]] = {}
    for frame in content.decode().strip().split("\n\n"):
        event, _, data = frame.rpartition("data: ")
        if data == "[DONE]":
            frames["end"] = [data]
            continue
        fields = json.loads(data)
        index = fields["choices"][0]["index"] if fields.get("choices") else None
        own = frames.setdefault(index, [])
        kind = [event, kind_of(fields)]
        for choice in kind[1].get("choices", []):
            if choice.get("stop_reason") in STOPS:
                # Whether text was held back until the stop string was found depends on the model's tokens.
                choice.get("delta", {}).pop("content", None)
        if own[-1:] != [kind]:
            own.append(kind)
    return frames


@pytest.mark.parametrize("kind", KINDS)
def test_streams_have_the_frames_of_vllm(kind: str, engines: list[EngineProcess], scripted_url: str) -> None:
    path, fields = KINDS[kind]
    fields = fields | {"stream": True}
    if path in (CHAT, COMPLETIONS):
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    (status, real), (scripted_status, scripted) = (post(url, path, fields) for url in (engines[0].url, scripted_url))
    assert (status, scripted_status) == (200, 200), (real, scripted)
    assert frames_of(scripted) == frames_of(real)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_answers_have_the_fields_of_vllm(kind: str, engines: list[EngineProcess], scripted_url: str) -> None:
    path, fields = KINDS[kind]
    (status, real), (scripted_status, scripted) = (post(url, path, fields) for url in (engines[0].url, scripted_url))
    assert (status, scripted_status) == (200, 200), (real, scripted)
    assert kind_of(json.loads(scripted)) == kind_of(json.loads(real))


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_have_the_fields_of_vllm(kind: str, engines: list[EngineProcess], scripted_url: str) -> None:
    path, fields = ERRORS[kind]
    (status, real), (scripted_status, scripted) = (post(url, path, fields) for url in (engines[0].url, scripted_url))
    assert scripted_status == status
    error, scripted_error = json.loads(real), json.loads(scripted)
    assert scripted_error.keys() == error.keys()
    assert scripted_error["error"].keys() == error["error"].keys()
    assert scripted_error["error"]["type"] == error["error"]["type"]
