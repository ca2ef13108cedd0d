"""POST /v1/responses through the gateway, with the official SDK's typed classes, on a scripted engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from headway.engines.scripted import Faults, Script, read_answers, running
from headway.engines.scripted.answers import ProgrammedAnswers
from tests.running import MODEL, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.002),))
FAST = {"name": "fast", "floor_tps": 20.0, "max_hold_s": 0.3}
CURVE = [[1, 500.0], [8, 400.0]]
STRICT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SPACE = {"type": "namespace", "name": "maps", "description": "Maps.", "tools": [{**WEATHER, "name": "find"}]}
PATCH = {"type": "custom", "name": "patch", "description": "Apply a patch."}
ANSWERS = """
[[answers]]
when = { user_contains = "weather", tool_results = 0 }
reasoning = "I should look."
text = "Looking."
tool_calls = [{ name = "get_weather", arguments = { city = "Oslo" } }, { name = "maps__find", arguments = {} }]

[[answers]]
when = { user_contains = "weather", tool_results = 2 }
text = "Rain in Oslo."

[[answers]]
when = { user_contains = "patch" }
tool_calls = [{ name = "patch", arguments = { input = "*** Begin" } }]

[[answers]]
when = { user_contains = "name" }
text = '{"name": "Ada", "age": 36}'
"""


class Person(BaseModel):
    name: str
    age: int


def answers(tmp_path: Path) -> ProgrammedAnswers:
    path = tmp_path / "answers.toml"
    path.write_text(ANSWERS)
    return read_answers(path)


async def events_of(port: int, body: dict[str, Any], *headers: bytes) -> list[dict[str, Any]]:
    """The raw events of a stream, each checked against the SDK's class of its type."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = json.dumps({"model": MODEL, "stream": True, **body}).encode()
    writer.write(post("/v1/responses", asked, b"content-type: application/json", *headers))
    raw = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")[2]
    writer.close()
    found = []
    for line in raw.split(b"\n"):
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            STRICT.validate_python(event)
            found.append(event)
    return found


def test_the_strict_adapter_knows_types() -> None:
    assert len(get_args(get_args(ResponseStreamEvent)[0])) > 40
    with pytest.raises(ValueError, match="sequence_number"):
        STRICT.validate_python({"type": "response.output_text.delta", "delta": "x"})


@pytest.mark.parametrize("streamed", [True, False])
async def test_words(streamed: bool) -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        if streamed:
            stream = await here.openai.responses.create(
                model=MODEL, input="hi there", max_output_tokens=20, stream=True
            )
            kinds, text, response = [], "", None
            async for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.incomplete":
                    response = event.response
            assert kinds[:4] == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
            ]
            assert kinds[-1] == "response.incomplete"
            assert response is not None
            assert response.output_text == text
        else:
            response = await here.openai.responses.create(model=MODEL, input="hi there", max_output_tokens=20)
        assert isinstance(response, Response)
        assert len(response.output_text.split()) == 20
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.id.startswith("resp_")
        assert response.service_tier == "default"
        assert response.usage is not None
        assert response.usage.output_tokens == 20
        proof = response.usage.to_dict()["headway"]
        assert isinstance(proof, dict)
        assert proof["tier_served"] == "standard"
        await here.until_empty()


async def test_every_event_is_of_a_known_type(tmp_path: Path) -> None:
    """Numbered without a gap, and each with all fields that its class needs."""
    async with running(SCRIPT, answers=answers(tmp_path)) as engine, running_gateway(config_for([engine])) as here:
        for asked, tools in (("weather", [WEATHER, SPACE]), ("patch", [PATCH])):
            events = await events_of(here.port, {"input": asked, "tools": tools})
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[-1]["type"] == "response.completed"
            done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert events[-1]["response"]["output"] == done


async def test_the_helper_that_collects_a_stream(tmp_path: Path) -> None:
    async with running(SCRIPT, answers=answers(tmp_path)) as engine, running_gateway(config_for([engine])) as here:
        async with here.openai.responses.stream(model=MODEL, input="weather?", tools=[WEATHER, SPACE]) as stream:  # type: ignore[list-item]
            async for _ in stream:
                pass
            response = await stream.get_final_response()
        reasoning, message, call, other = response.output
        assert reasoning.type == "reasoning"
        assert message.type == "message"
        assert call.type == other.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
        assert (other.name, other.namespace) == ("find", "maps")
        patched = await here.openai.responses.create(model=MODEL, input="patch it", tools=[PATCH])  # type: ignore[list-item]
        [custom] = patched.output
        assert custom.type == "custom_tool_call"
        assert custom.input == "*** Begin"


@pytest.mark.parametrize("streamed", [True, False])
async def test_parsed_answers(streamed: bool, tmp_path: Path) -> None:
    async with running(SCRIPT, answers=answers(tmp_path)) as engine, running_gateway(config_for([engine])) as here:
        if streamed:
            async with here.openai.responses.stream(model=MODEL, input="a name", text_format=Person) as stream:
                parsed = await stream.get_final_response()
        else:
            parsed = await here.openai.responses.parse(model=MODEL, input="a name", text_format=Person)
        assert parsed.output_parsed == Person(name="Ada", age=36)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_tool_loop_with_the_full_history(streamed: bool, tmp_path: Path) -> None:
    async with running(SCRIPT, answers=answers(tmp_path)) as engine, running_gateway(config_for([engine])) as here:
        history: list[Any] = [{"role": "user", "content": "weather?"}]
        asked: dict[str, Any] = {"model": MODEL, "tools": [WEATHER, SPACE], "store": False}
        asked["include"] = ["reasoning.encrypted_content"]
        for _ in range(2):
            if streamed:
                async with here.openai.responses.stream(input=history, **asked) as stream:
                    response: Any = await stream.get_final_response()
            else:
                response = await here.openai.responses.create(input=history, **asked)
            history += [item.to_dict() for item in response.output]
            for item in response.output:
                if item.type == "function_call":
                    history.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
        assert response.output_text == "Rain in Oslo."


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("how", ["field", "header", "suffix"])
async def test_the_tier_of_each_call(how: str, streamed: bool) -> None:
    async with running(SCRIPT) as engine:
        config = config_for([engine], express=[FAST], curve=CURVE)
        async with running_gateway(config) as here:
            asked: dict[str, Any] = {"model": MODEL, "input": "hi", "max_output_tokens": 32}
            if how == "field":
                asked["service_tier"] = "priority"
            elif how == "header":
                asked["extra_headers"] = {"Headway-Tier": "fast"}
            else:
                asked["model"] = f"{MODEL}-fast"
            if streamed:
                stream = await here.openai.responses.create(**asked, stream=True)
                events = [event async for event in stream]
                assert events[0].response.service_tier == ("priority" if how == "field" else "fast")
                response = events[-1].response
            else:
                response = await here.openai.responses.create(**asked)
            assert response.service_tier == ("priority" if how == "field" else "fast")
            proof = response.usage.to_dict()["headway"]
            assert proof["tier_asked"] == proof["tier_served"] == "fast"
            assert proof["kept"] is True
            standard = await here.openai.responses.create(model=MODEL, input="hi", max_output_tokens=2)
            assert standard.service_tier == "default"


async def test_hosted_tools_are_left_out_and_named() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        raw = await here.openai.responses.with_raw_response.create(
            model=MODEL,
            input=[{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "hi"}],  # type: ignore[list-item]
            tools=[{"type": "web_search"}, {"type": "mcp", "server_label": "x"}, WEATHER],  # type: ignore[list-item]
            max_output_tokens=3,
            extra_body={"client_metadata": {"a": "b"}, "made_up": 1},
        )
        ignored = raw.headers["headway-ignored"].split(", ")
        assert sorted(ignored) == ["client_metadata", "made_up", "mcp", "web_search", "web_search_call"]
        [tool] = raw.parse().tools
        assert tool.type == "function"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("background", True, "ask for a stream"),
        ("conversation", "conv_1", "previous_response_id"),
        ("prompt", {"id": "p"}, "instructions"),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}],
            "the image itself",
        ),
        ("input", [{"type": "item_reference", "id": "msg_1"}], "Send the item itself"),
        ("input", [{"type": "function_call", "name": "f", "arguments": "{}"}], "call_id"),
        ("tools", [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}], "free text"),
        ("tool_choice", {"type": "web_search"}, "runs no tools"),
    ],
    ids=["background", "conversation", "prompt", "image", "reference", "no-call-id", "grammar", "hosted-choice"],
)
async def test_what_is_refused(field: str, value: Any, said: str) -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        with pytest.raises(openai.BadRequestError, match=said):
            await here.openai.responses.create(**{"model": MODEL, "input": "hi", field: value})


async def test_an_engine_that_dies_ends_the_stream_with_an_event() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        engine.faults = Faults(die_after_tokens=5)
        events = await events_of(here.port, {"input": "hi", "max_output_tokens": 50})
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.failed"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        failed = events[-1]["response"]
        assert failed["id"] == events[0]["response"]["id"]
        assert failed["error"]["code"] == "server_error"
        await here.until_empty()


async def test_tokens_of_a_prompt() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine])) as here:
        counted = await here.openai.responses.input_tokens.count(model=MODEL, input="one two three", tools=[WEATHER])  # type: ignore[list-item]
        served = await here.openai.responses.create(model=MODEL, input="one two three", max_output_tokens=1)
        assert served.usage is not None
        assert counted.input_tokens == served.usage.input_tokens
        assert counted.object == "response.input_tokens"
