"""The Responses API on real vLLM, through the official SDK: whole, streamed, parsed, a tool loop, and the bill of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from headway.local.engine_env import MODEL_NAME as MODEL
from tests.e2e.conftest import GatewayProcess

pytestmark = pytest.mark.engine
CITIES = ["Paris", "Rome"]
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": CITIES}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NAMED: Any = {"type": "function", "name": "weather"}
SETTINGS: dict[str, Any] = {"model": MODEL, "max_output_tokens": 60, "temperature": 0, "store": False}


class Said(BaseModel):
    yes: bool


def test_whole_and_streamed_responses_say_the_same(gateway: GatewayProcess) -> None:
    whole = gateway.openai.responses.create(input="Count from one to five.", **SETTINGS)
    with gateway.openai.responses.stream(input="Count from one to five.", **SETTINGS) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        streamed = events.get_final_response()
    assert whole.output_text == streamed.output_text == "".join(pieces) != ""
    usages: list[Any] = [whole.usage, streamed.usage]
    assert [usage.headway["tier_served"] for usage in usages] == ["standard", "standard"]
    assert usages[0].output_tokens == usages[1].output_tokens


def test_an_answer_that_its_limit_cuts_is_incomplete(gateway: GatewayProcess) -> None:
    response = gateway.openai.responses.create(input="Count to a hundred.", **SETTINGS | {"max_output_tokens": 5})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_an_answer_is_parsed(gateway: GatewayProcess) -> None:
    parsed = gateway.openai.responses.parse(input="Is the sky blue?", text_format=Said, **SETTINGS).output_parsed
    assert isinstance(parsed, Said)


def test_a_tool_loop(gateway: GatewayProcess) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    with gateway.openai.responses.stream(input=asked, tools=[WEATHER], tool_choice=NAMED, **SETTINGS) as events:
        first = events.get_final_response()
    [call] = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in CITIES
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    asked += [*[item.model_dump(exclude_none=True) for item in first.output], result]
    last = gateway.openai.responses.create(input=asked, **SETTINGS)
    assert last.output_text


def test_the_tokens_of_a_prompt_are_counted_as_they_are_billed(gateway: GatewayProcess) -> None:
    counted = gateway.openai.responses.input_tokens.count(model=MODEL, input="Count from one to five.")
    answered = gateway.openai.responses.create(input="Count from one to five.", **SETTINGS)
    assert counted.input_tokens == answered.usage.input_tokens
