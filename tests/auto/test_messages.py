"""A Messages call as chat: the fields that vLLM itself would make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from headway.api.anthropic import read_messages
from headway.api.openai import read_chat
from headway.auto.messages import chat_of, message_events, message_of
from headway.errors import EngineFailed

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ASKED: dict[str, Any] = {
    "model": "m-auto",
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: abc"},
        {"type": "text", "text": "Be "},
        {"type": "text", "text": "brief."},
    ],
    "messages": [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And in Rome?"},
                {"type": "text", "text": "Today."},
            ],
        },
    ],
    "tools": [{"name": "weather", "input_schema": SCHEMA, "description": "The weather."}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_k": 5,
    "chat_template_kwargs": {"enable_thinking": False},
    "speed": "fast",
}


def test_a_call_as_chat() -> None:
    read_messages(json.dumps(ASKED).encode(), "id")  # it is a valid call, and so is what it becomes
    chat = chat_of(ASKED)
    assert chat is not None
    read_chat(json.dumps(chat).encode(), "id")
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": [{"type": "text", "text": "And in Rome?"}, {"type": "text", "text": "Today."}]},
    ]
    function = {"name": "weather", "parameters": SCHEMA, "description": "The weather."}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    assert chat["chat_template_kwargs"] == {"enable_thinking": False}
    assert (chat["stop"], chat["temperature"], chat["top_k"], chat["max_tokens"]) == (["END"], 0.5, 5, 100)
    assert "speed" not in chat


@pytest.mark.parametrize(
    "change",
    [
        {"tools": None},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "low"}},
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}]},
    ],
)
def test_what_is_not_translated(change: dict[str, Any]) -> None:
    assert chat_of({**ASKED, **change}) is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], expected: object) -> None:
    chat = chat_of({**ASKED, "tool_choice": choice})
    assert chat is not None
    assert chat["tool_choice"] == expected


def answer(finish: str, content: str | None = None, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    call = {"id": "t", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [call] if arguments is not None else []}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    choice = {"index": 0, "message": message, "finish_reason": finish, **more}
    return {"id": "a", "model": "m", "choices": [choice], "usage": usage}


@pytest.mark.parametrize(
    ("chat", "reason", "kinds"),
    [
        (answer("stop", "hi"), "end_turn", ["text"]),
        (answer("stop", "hi", stop_reason="END"), "stop_sequence", ["text"]),
        (answer("length", "hi"), "max_tokens", ["text"]),
        (answer("stop", None, "{}"), "tool_use", ["tool_use"]),
        (answer("tool_calls", "first", "{}"), "tool_use", ["text", "tool_use"]),
        (answer("stop", None), "end_turn", ["text"]),
    ],
)
def test_an_answer_as_a_message(chat: dict[str, Any], reason: str, kinds: list[str]) -> None:
    message = message_of(chat)
    assert message["stop_reason"] == reason
    assert [block["type"] for block in message["content"]] == kinds
    usage = message["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (6, 4, 3)
    Message.model_validate(message)
    lines = message_events(message).decode().splitlines()
    for line in lines:
        if line.startswith("data: "):
            EVENTS.validate_json(line.removeprefix("data: "))
    assert sum(line == "event: content_block_stop" for line in lines) == len(kinds)


def test_arguments_that_are_no_json_are_the_engines_failure() -> None:
    with pytest.raises(EngineFailed):
        message_of(answer("tool_calls", None, "{"))
