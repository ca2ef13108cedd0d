"""Programmed answers of the scripted engine, seen as a client sees them."""

import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import uvloop
from pydantic import BaseModel

from headway.engines.scripted import Script, ScriptedEngine, read_answers, running
from headway.engines.scripted.answers import MAX_ANSWERS_BYTES
from headway.engines.vllm import is_plain_chat
from headway.errors import SetupError
from tests.engines.test_scripted import CHAT, COMPLETIONS, MESSAGES, QUICK, USAGE, body_for, fetch, fetch_json, stream
from tests.running import http_client

WEATHER = """
[[answers]]
reasoning = "Look outside."
text = "Let me see."
tool_calls = [{ name = "weather", arguments = { city = "Paris", days = 2 } }, { name = "time" }]
"""
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
MESSAGES_TOOL = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture
def with_answers(tmp_path: Path) -> Callable[..., None]:
    def run(text: str, scenario: Callable[[ScriptedEngine], Awaitable[None]], script: Script = QUICK) -> None:
        path = tmp_path / "answers.toml"
        path.write_text(text)

        async def serve() -> None:
            async with running(script, answers=read_answers(path)) as engine:
                await scenario(engine)

        uvloop.run(serve())

    return run


WithAnswers = Callable[..., None]


def events_of(chunks: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(chunk[chunk.index(b"data: ") + 6 :]) for chunk in chunks if b"[DONE]" not in chunk]


# --- the dialects ---


def test_a_whole_chat_answer_has_log_probabilities_if_asked(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        asked = await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=99, logprobs=True, top_logprobs=2))
        tokens = asked["choices"][0]["logprobs"]["content"]
        assert len(tokens) == asked["usage"]["completion_tokens"]
        assert [one["logprob"] for one in tokens[0]["top_logprobs"]] == [0.0, -20.0]
        plain = await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=99))
        assert plain["choices"][0]["logprobs"] is None

    with_answers(WEATHER, scenario)


def test_chat_stream(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        chunks = await stream(engine.url, CHAT, max_tokens=99, **USAGE)
        assert chunks[-1] == b"data: [DONE]\n\n"
        opening, *events, usage = events_of(chunks)
        assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert ",".join(opening) == "id,object,created,model,choices,usage,prompt_token_ids,prompt_text"
        deltas = [event["choices"][0].pop("delta") for event in events]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        ids = [call.pop("id") for call in calls if "id" in call]
        assert len(set(ids)) == 2
        assert all(one.startswith("chatcmpl-tool-") for one in ids)
        assert deltas[:5] == [{"reasoning": one} for one in ("Look", " outside.")] + [
            {"content": one} for one in ("Let", " me", " see.")
        ]
        assert calls[0] == {"type": "function", "index": 0, "function": {"name": "weather"}}
        parts = [call for call in calls if call["index"] == 0][1:]
        assert len(parts) > 3
        assert all(call == {"index": 0, "function": {"arguments": call["function"]["arguments"]}} for call in parts)
        assert "".join(call["function"]["arguments"] for call in parts) == '{"city": "Paris", "days": 2}'
        assert calls[-2:] == [
            {"type": "function", "index": 1, "function": {"name": "time"}},
            {"index": 1, "function": {"arguments": "{}"}},
        ]
        assert all(delta["content"] is None for delta in deltas if "tool_calls" in delta)
        assert deltas[-1] == {}
        assert events[0]["choices"] == [{"index": 0, "logprobs": None, "finish_reason": None, "token_ids": None}]
        ending = {"finish_reason": "tool_calls", "stop_reason": None}
        assert events[-1]["choices"] == [{"index": 0, "logprobs": None, **ending, "token_ids": None}]
        assert [event["usage"]["completion_tokens"] for event in events] == list(range(1, len(events) + 1))
        assert [event["usage"]["completion_tokens_details"]["reasoning_tokens"] for event in events][:3] == [1, 2, 2]
        assert usage["usage"]["completion_tokens"] == len(events)
        assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}

    with_answers(WEATHER, scenario)


def test_a_stream_without_usage_ends_with_the_fingerprint(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        for path in (CHAT, COMPLETIONS):
            *events, last = events_of(await stream(engine.url, path))
            assert "system_fingerprint" in last
            assert not any("usage" in event or "system_fingerprint" in event for event in events)

    with_answers('[[answers]]\ntext = "Yes."', scenario)


def test_whole_chat(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=99))
        [choice] = answer["choices"]
        message = choice["message"]
        assert ",".join(message) == "role,content,refusal,annotations,audio,function_call,tool_calls,reasoning"
        assert (message["content"], message["reasoning"]) == ("Let me see.", "Look outside.")
        assert [(call["type"], call["function"]) for call in message["tool_calls"]] == [
            ("function", {"name": "weather", "arguments": '{"city": "Paris", "days": 2}'}),
            ("function", {"name": "time", "arguments": "{}"}),
        ]
        assert choice["finish_reason"] == "tool_calls"
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}

    with_answers(WEATHER, scenario)


@pytest.mark.parametrize(
    ("tool_choice", "content", "finish_reason"),
    [
        (None, None, "tool_calls"),
        ("auto", None, "tool_calls"),
        ("required", "", "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, "", "stop"),
    ],
)
def test_a_forced_call_ends_as_in_vllm(
    tool_choice: Any, content: str | None, finish_reason: str, with_answers: WithAnswers
) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        fields = {"max_tokens": 99, "tools": [CHAT_TOOL], "tool_choice": tool_choice}
        [choice] = (await fetch_json(engine.url, CHAT, body_for(CHAT, **fields)))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish_reason)
        assert len(choice["message"]["tool_calls"]) == 2
        *_, last = events_of(await stream(engine.url, CHAT, **fields))
        assert last["choices"][0]["finish_reason"] == finish_reason
        one_call = body_for(CHAT, **fields, parallel_tool_calls=False)
        [choice] = (await fetch_json(engine.url, CHAT, one_call))["choices"]
        assert len(choice["message"]["tool_calls"]) == 1

    with_answers('[[answers]]\ntool_calls = [{ name = "weather" }, { name = "weather" }]', scenario)


def test_messages_stream(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        chunks = await stream(engine.url, MESSAGES, max_tokens=99)
        events = events_of(chunks)
        names = [chunk.split(b"\n")[0].removeprefix(b"event: ").decode() for chunk in chunks]
        assert names == [event["type"] for event in events]
        squeezed = [
            (event["type"], event.get("index"), (event.get("delta") or event.get("content_block") or {}).get("type"))
            for event in events
        ]
        assert list(dict.fromkeys(squeezed)) == [
            ("message_start", None, None),
            ("content_block_start", 0, "thinking"),
            ("content_block_delta", 0, "thinking_delta"),
            ("content_block_delta", 0, "signature_delta"),
            ("content_block_stop", 0, None),
            ("content_block_start", 1, "text"),
            ("content_block_delta", 1, "text_delta"),
            ("content_block_stop", 1, None),
            ("content_block_start", 2, "tool_use"),
            ("content_block_delta", 2, "input_json_delta"),
            ("content_block_stop", 2, None),
            ("content_block_start", 3, "tool_use"),
            ("content_block_delta", 3, "input_json_delta"),
            ("content_block_stop", 3, None),
            ("message_delta", None, None),
            ("message_stop", None, None),
        ]
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert blocks[:2] == [{"type": "thinking", "thinking": ""}, {"type": "text", "text": ""}]
        assert blocks[2] == {"type": "tool_use", "id": blocks[2]["id"], "name": "weather", "input": {}}
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(delta.get("partial_json", "") for delta in deltas) == '{"city": "Paris", "days": 2}{}'
        assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        assert events[-2]["usage"]["output_tokens"] > 10

    with_answers(WEATHER, scenario)


def test_whole_message(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, MESSAGES, body_for(MESSAGES, max_tokens=99))
        thinking, text, weather, time = answer["content"]
        assert thinking == {"type": "thinking", "thinking": "Look outside.", "signature": thinking["signature"]}
        assert text == {"type": "text", "text": "Let me see."}
        assert weather == {
            "type": "tool_use", "id": weather["id"], "name": "weather", "input": {"city": "Paris", "days": 2},
        }  # fmt: skip
        assert time["input"] == {}
        assert answer["stop_reason"] == "tool_use"
        assert "stop_sequence" not in answer

    with_answers(WEATHER, scenario)


def test_completions_get_only_answers_that_are_text(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        whole = await fetch_json(engine.url, COMPLETIONS, body_for(COMPLETIONS))
        assert whole["choices"][0]["text"] == "Yes, sir."
        assert whole["choices"][0]["finish_reason"] == "stop"
        *events, last, usage = events_of(await stream(engine.url, COMPLETIONS, **USAGE))
        assert [event["choices"][0]["text"] for event in [*events, last]] == ["Yes,", " sir.", ""]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert list(last["choices"][0]) == list(events[0]["choices"][0])
        assert usage["usage"] == {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}

    with_answers(WEATHER + '[[answers]]\ntext = "Yes, sir."', scenario)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_choices_differ_and_begin_again_when_there_are_too_few(path: str, with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        whole = await fetch_json(engine.url, path, body_for(path, n=3, max_tokens=9))
        said = [choice.get("text") or choice["message"]["content"] for choice in whole["choices"]]
        assert said == ["Heads.", "No, tails.", "Heads."]
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        assert whole["usage"]["completion_tokens"] == 2 + 3 + 2
        assert whole["metrics"] is None
        *events, usage = events_of(await stream(engine.url, path, n=3, max_tokens=9, **USAGE))
        if path == CHAT:
            assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
            assert all(event["choices"][0]["delta"].get("role") for event in events[:3])
            assert not any(event["choices"][0]["delta"].get("role") for event in events[3:])
        assert [sum(event["choices"][0]["index"] == one for event in events) for one in range(3)] == (
            [3, 4, 3] if path == CHAT else [2, 3, 2]
        )
        assert usage["usage"]["completion_tokens"] == 7
        assert "metrics" not in usage

    with_answers('[[answers]]\nchoices = [{ text = "Heads." }, { text = "No, tails." }]', scenario)


def test_errors(with_answers: WithAnswers) -> None:
    file = """
    [[answers]]
    when = { user_contains = "odd" }
    error = { status = 529, body = { detail = "odd" } }
    [[answers]]
    times = 1
    error = { status = 429, message = "Slow down." }
    [[answers]]
    times = 1
    error = { status = 500, message = "Broken.", type = "InternalServerError" }
    """

    async def scenario(engine: ScriptedEngine) -> None:
        status, body = await fetch(engine.url, CHAT, body_for(CHAT, stream=True))
        error = {"message": "Slow down.", "type": "Too Many Requests", "param": None, "code": 429}
        assert (status, json.loads(body)) == (429, {"error": error})
        status, body = await fetch(engine.url, MESSAGES, body_for(MESSAGES))
        broken = {"type": "error", "error": {"type": "InternalServerError", "message": "Broken."}}
        assert (status, json.loads(body)) == (500, broken)
        for path in (CHAT, COMPLETIONS, MESSAGES):
            assert (await fetch(engine.url, path, body_for(path)))[0] == 200  # the rules are used up
            prompt: Any = (
                {"prompt": "odd"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "odd"}]}
            )
            status, body = await fetch(engine.url, path, body_for(path) | prompt)
            assert (status, json.loads(body)) == (529, {"detail": "odd"})
        assert engine.record()["running"] == 0

    with_answers(file, scenario)


# --- which request gets which answer ---


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


RESULT = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
RESULTS = user(
    [{"type": "tool_result", "tool_use_id": "c", "content": "sunny"}, {"type": "text", "text": "a reminder"}]
)
CONDITIONS: list[tuple[str, str, dict[str, Any], bool]] = [
    ('dialect = "chat"', CHAT, {}, True),
    ('dialect = "messages"', CHAT, {}, False),
    ('user_contains = "two"', CHAT, {}, True),
    ('user_contains = "four"', CHAT, {}, False),
    ('user_contains = "two"', COMPLETIONS, {}, True),
    ('user_contains = "b"', COMPLETIONS, {"prompt": ["a", "b"]}, True),
    ('user_contains = "b"', COMPLETIONS, {"prompt": [1, 2]}, False),
    ('user_contains = "two"', CHAT, {"messages": [user("two"), user("three")]}, False),
    ('user_contains = "two"', CHAT, {"messages": [user([{"type": "text", "text": "two"}])]}, True),
    ('user_contains = "two"', CHAT, {"messages": [user("two"), {"role": "assistant"}, RESULT]}, True),
    ('user_contains = "two"', MESSAGES, {"messages": [user("two"), {"role": "assistant"}, RESULTS]}, True),
    ("tool_results = 0", CHAT, {}, True),
    ("tool_results = 0", CHAT, {"messages": [user("one"), RESULT]}, False),
    ("tool_results = 2", CHAT, {"messages": [user("one"), RESULT, RESULT]}, True),
    ("tool_results = 2", MESSAGES, {"messages": [user("one"), RESULTS, RESULTS]}, True),
    ('offers_tool = "weather"', CHAT, {"tools": [CHAT_TOOL]}, True),
    ('offers_tool = "weather"', MESSAGES, {"tools": [MESSAGES_TOOL]}, True),
    ('offers_tool = "time"', CHAT, {"tools": [CHAT_TOOL]}, False),
    ('offers_tool = "time"', CHAT, {"tools": None}, False),
    ('offers_tool = "time"', CHAT, {"tools": "time"}, False),
    ('offers_tool = "time"', CHAT, {"tools": [1, {"function": "time"}, {"name": 1}]}, False),
    ('user_contains = "two", tool_results = 1', CHAT, {}, False),
]


@pytest.mark.parametrize(("when", "path", "fields", "holds"), CONDITIONS)
def test_a_rule_answers_where_all_its_conditions_hold(
    when: str, path: str, fields: dict[str, Any], holds: bool, with_answers: WithAnswers
) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        status, body = await fetch(engine.url, path, body_for(path) | fields)
        assert status == 200
        assert (b"Programmed." in body) == holds
        assert (b" the morning train" in body) != holds

    with_answers(f'[[answers]]\nwhen = {{ {when} }}\ntext = "Programmed."', scenario)


def test_a_request_with_odd_fields_does_not_disturb_the_next(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        for body in (b"{", b"[]", b'{"model":"m","messages":[1]}'):
            assert (await fetch(engine.url, CHAT, body))[0] == 400
        odd: dict[str, Any] = {"tool_choice": [], "tools": {"a": 1}, "parallel_tool_calls": "x", "prompt": {}}
        assert (await fetch(engine.url, CHAT, body_for(CHAT, **odd, messages=[{"role": 1}])))[0] == 400  # `prompt`
        del odd["prompt"]
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT) | {**odd, "messages": [{"role": 1}, {}]})
        assert answer["choices"][0]["message"]["reasoning"] == "Look outside."

    with_answers(WEATHER, scenario)


# --- limits ---


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
def test_max_tokens_and_stop_strings_cut_the_answer(path: str, with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        def said(answer: dict[str, Any]) -> tuple[str, str]:
            if path == MESSAGES:
                return answer["content"][0]["text"], answer["stop_reason"]
            [choice] = answer["choices"]
            return choice.get("text") or choice["message"]["content"], choice["finish_reason"]

        whole = await fetch_json(engine.url, path, body_for(path, max_tokens=4))
        assert said(whole) == ("One two three", "end_turn" if path == MESSAGES else "stop")
        cut = await fetch_json(engine.url, path, body_for(path, max_tokens=2))
        assert said(cut) == ("One two", "max_tokens" if path == MESSAGES else "length")
        name = "stop_sequences" if path == MESSAGES else "stop"
        stopped = await fetch_json(engine.url, path, body_for(path, max_tokens=9, **{name: ["three", " two", "x"]}))
        assert said(stopped) == ("One", "stop_sequence" if path == MESSAGES else "stop")
        chunks = await stream(engine.url, path, max_tokens=9, **{name: [" two"]})
        assert any(b'":" two"' in chunk for chunk in chunks)  # as the reason, not as text
        assert not any(b'"content":" two"' in chunk or b'"text":" two"' in chunk for chunk in chunks)

    with_answers('[[answers]]\ntext = "One two three"', scenario)


def test_without_max_tokens_the_whole_answer_comes(with_answers: WithAnswers) -> None:
    text = " ".join(f"word{number}" for number in range(100))

    async def scenario(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=None))
        assert answer["choices"][0]["message"]["content"] == text

    async def in_a_small_context(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=None))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 50

    with_answers(f'[[answers]]\ntext = "{text}"', scenario)
    small = Script(model="m", first_token_s=0.001, step_s=((1, 0.001),), max_model_len=50)
    with_answers(f'[[answers]]\ntext = "{text}"', in_a_small_context, small)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_call_that_the_limit_cuts_is_not_in_a_whole_answer(path: str, with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, path, body_for(path, max_tokens=4))
        if path == CHAT:
            [choice] = answer["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("Wait.", "length")
            assert "tool_calls" not in choice["message"]
        else:
            assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "Wait."}], "max_tokens")

    with_answers('[[answers]]\ntext = "Wait."\ntool_calls = [{ name = "f", arguments = { a = "b" } }]', scenario)


def test_a_finish_reason_can_be_programmed(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT))
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 1)
        answer = await fetch_json(engine.url, CHAT, body_for(CHAT))
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 1)
        assert answer["choices"][0]["message"]["content"] == ""

    rules = '[[answers]]\ntext = "Cut"\nfinish_reason = "length"\ntimes = 1\n[[answers]]\ntext = ""'
    with_answers(rules, scenario)


def test_an_engine_whose_file_has_reasoning_says_so_in_every_chat_answer(with_answers: WithAnswers) -> None:
    """Headway asks an engine with a reasoning parser for whole answers, and finds out with one token."""

    async def scenario(engine: ScriptedEngine) -> None:
        assert not is_plain_chat((await fetch(engine.url, CHAT, body_for(CHAT, max_tokens=1)))[1])

    async def plain(engine: ScriptedEngine) -> None:
        assert is_plain_chat((await fetch(engine.url, CHAT, body_for(CHAT, max_tokens=1)))[1])

    with_answers('[[answers]]\nwhen = { tool_results = 7 }\nreasoning = "Hm."', scenario)
    with_answers('[[answers]]\ntext = "Hm."', plain)


def test_the_same_faults_and_steps_apply(with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        await stream(engine.url, CHAT, max_tokens=99)
        record = engine.record()["requests"]["r"]
        assert (record.tokens_sent, record.state) == (4, "finished")
        await fetch(engine.url, "/scripted/faults", {"refuse": True})
        assert (await fetch(engine.url, CHAT, body_for(CHAT)))[0] == 503

    with_answers('[[answers]]\ntext = "One two three"', scenario)


# --- the file ---


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing required field `answers`"),
        ("answers = []", "length >= 1"),
        ("answers", "not valid TOML"),
        ("[[answers]]", "an answer needs"),
        ('[[answers]]\ntxt = "a"', "unknown field `txt`"),
        ('[[answers]]\ntext = "a"\nerror = { status = 500, message = "b" }', "an answer needs"),
        ('[[answers]]\ntext = "a"\nchoices = [{ text = "b" }]', "an answer needs"),
        ('[[answers]]\nfinish_reason = "stop"\nchoices = [{ text = "b" }]', "belongs to the choice"),
        ("[[answers]]\nchoices = [{ }]", "a choice needs"),
        ('[[answers]]\ntext = "a"\nwhen = { dialect = "gopher" }', "gopher"),
        ('[[answers]]\ntext = "a"\nwhen = { tool_results = -1 }', ">= 0"),
        ('[[answers]]\ntext = "a"\ntimes = 0', ">= 1"),
        ('[[answers]]\ntext = "a"\nfinish_reason = "done"', "done"),
        ("[[answers]]\nerror = { status = 200 }", ">= 400"),
        ("[[answers]]\nerror = { status = 500 }", "an error needs"),
        ('[[answers]]\nerror = { status = 500, message = "a", body = { } }', "an error needs"),
        ("[[answers]]\nerror = { status = 500, body = { at = 2026-01-01 } }", "Write it as a string"),
        ("[[answers]]\ntool_calls = [{ }]", "`name`"),
        ('[[answers]]\ntool_calls = [{ name = "f", arguments = { at = 2026-01-01 } }]', "Write it as a string"),
        ('[[answers]]\ntool_calls = [{ name = "f", arguments = { at = nan } }]', "Write it as a string"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("#" * (MAX_ANSWERS_BYTES + 1), "one file for each test"),
    ],
)
def test_a_file_with_a_mistake_is_an_error_that_helps(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(text)
    with pytest.raises(SetupError) as raised:
        read_answers(path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--answers"):
        read_answers(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'[[answers]]\ntext = "\xe9"')
    with pytest.raises(SetupError, match="not valid TOML"):
        read_answers(tmp_path / "latin.toml")


def test_the_command_names_the_mistake_and_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text('[[answers]]\ntxt = "a"')
    command = [sys.executable, "-m", "headway", "mock-engine", "--port", "0", "--answers", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "`txt`" in done.stderr
    assert "when: dialect, user_contains, offers_tool, tool_results" in done.stderr


def test_the_example_of_the_documentation(with_answers: WithAnswers) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "test-an-agent.md"
    [example] = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)

    async def scenario(engine: ScriptedEngine) -> None:
        async def ask(*messages: Any, **fields: Any) -> Any:
            return await fetch_json(engine.url, CHAT, body_for(CHAT, max_tokens=99, **fields) | {"messages": messages})

        called = await ask(user("What is the weather?"), tools=[CHAT_TOOL])
        assert called["choices"][0]["finish_reason"] == "tool_calls"
        assert (await ask(user("What is the weather?"), RESULT, tools=[CHAT_TOOL]))["error"]["code"] == 503
        answer = await ask(user("What is the weather?"), RESULT, tools=[CHAT_TOOL])
        assert answer["choices"][0]["message"]["content"] == "It is sunny in Paris."
        coins = await ask(user("Toss a coin."), n=2)
        assert [choice["message"]["content"] for choice in coins["choices"]] == ["Heads.", "Tails."]

    with_answers(example, scenario)


# --- agent loops of the official clients ---

LOOP = """
[[answers]]
when = { offers_tool = "weather", tool_results = 0 }
reasoning = "Begin with Paris."
tool_calls = [{ name = "weather", arguments = { city = "Paris" } }]

[[answers]]
when = { offers_tool = "weather", tool_results = 1 }
text = "Now Rome and Oslo."
tool_calls = [{ name = "weather", arguments = { city = "Rome" } }, { name = "weather", arguments = { city = "Oslo" } }]

[[answers]]
when = { tool_results = 3 }
text = "Sunny everywhere."

[[answers]]
when = { user_contains = "as JSON" }
text = '{"city": "Paris", "degrees": 21}'
"""


class Reading(BaseModel):
    city: str
    degrees: int


async def loop_with_openai(client: openai.AsyncOpenAI, streamed: bool, **fields: Any) -> list[Any]:
    """The messages of an agent's loop that ends when the model calls no tool."""
    messages: list[Any] = [user("What is the weather?")]
    asked: Any = {"messages": messages, "tools": [CHAT_TOOL], **fields}
    while True:
        if streamed:
            async with client.chat.completions.stream(**asked) as helper:
                completion: Any = await helper.get_final_completion()
        else:
            completion = await client.chat.completions.create(**asked)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        if not message.tool_calls:
            return messages
        for call in message.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"sunny in {city}"})


async def loop_with_anthropic(client: anthropic.AsyncAnthropic, streamed: bool, **fields: Any) -> list[Any]:
    messages: list[Any] = [user("What is the weather?")]
    asked: Any = {"messages": messages, "tools": [MESSAGES_TOOL], "max_tokens": 99, **fields}
    while True:
        if streamed:
            async with client.messages.stream(**asked) as helper:
                message: Any = await helper.get_final_message()
        else:
            message = await client.messages.create(**asked)
        messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        if message.stop_reason != "tool_use":
            return messages
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [(block.id, f"sunny in {block.input['city']}") for block in calls]
        messages.append(user([{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in results]))


def check_openai_loop(messages: list[Any]) -> None:
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results == ["sunny in Paris", "sunny in Rome", "sunny in Oslo"]
    assert messages[1]["reasoning"] == "Begin with Paris."
    assert messages[3]["content"] == "Now Rome and Oslo."
    assert messages[-1]["content"] == "Sunny everywhere."
    assert len({call["id"] for message in messages for call in message.get("tool_calls", [])}) == 3


def check_anthropic_loop(messages: list[Any]) -> None:
    results = [block["content"] for message in messages[2::2] for block in message["content"]]
    assert results == ["sunny in Paris", "sunny in Rome", "sunny in Oslo"]
    assert messages[1]["content"][0]["thinking"] == "Begin with Paris."
    assert messages[3]["content"][0]["text"] == "Now Rome and Oslo."
    assert messages[-1]["content"][0]["text"] == "Sunny everywhere."


@pytest.mark.parametrize("streamed", [True, False])
def test_agent_loops_of_the_official_clients(streamed: bool, with_answers: WithAnswers) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        url = engine.url + "/v1"
        async with openai.AsyncOpenAI(api_key="-", base_url=url, http_client=http_client()) as client:
            check_openai_loop(await loop_with_openai(client, streamed, model="m"))
            parsed = await client.chat.completions.parse(
                model="m", messages=[{"role": "user", "content": "as JSON"}], response_format=Reading
            )
            assert parsed.choices[0].message.parsed == Reading(city="Paris", degrees=21)
        async with anthropic.AsyncAnthropic(api_key="-", base_url=engine.url, http_client=http_client()) as claude:
            check_anthropic_loop(await loop_with_anthropic(claude, streamed, model="m"))

    with_answers(LOOP, scenario)
