"""Targets, and one question in both dialects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.errors import SetupError
from headway.evals.dialects import Called, Question, body_of, headers_of, measured, path_of, read_reply, why_not
from headway.evals.targets import Target, base_url, read_targets, require_different

LAB = """
[[targets]]
name = "lab-fast"
url = "https://api.example.com/v1"
model = "large"
dialect = "anthropic"
speed = "fast"
key_env = "LAB_KEY"
input_micro = 5_000_000
output_micro = 25_000_000
"""
TOOL = {"type": "function", "function": {"name": "math.add", "description": "Adds.", "parameters": {"type": "object"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "math_add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "user", "content": "So?"},
]


def lab(tmp_path: Path, text: str = LAB) -> list[Target]:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    return read_targets(path)


def test_a_target_file_with_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", "secret")
    [target] = lab(tmp_path)
    assert path_of(target) == "https://api.example.com/v1/messages"
    assert headers_of(target, "secret")["anthropic-beta"] == "fast-mode-2026-02-01"
    assert target.price_micro(1000, 100) == 5000 + 2500
    assert "secret" not in str(target.as_arguments())
    monkeypatch.delenv("LAB_KEY")
    with pytest.raises(SetupError, match="variable LAB_KEY, which is not set"):
        lab(tmp_path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('dialect = "grpc"', ":6: targets.dialect"),
        ("input_micro = 0.5", "input_micro = 0.5: Input should be a valid integer.*millionths of your currency"),
        ("input_micro = -1", "greater than or equal to 0"),
        ("output_micr = 3", "unknown setting `targets.output_micr`: did you mean `output_micro`"),
        ("[[targets]]\nname = 'b'", "`targets.url` is missing: URL of the endpoint"),
        ("= 3", "not valid TOML"),
    ],
)
def test_target_files_are_checked(tmp_path: Path, line: str, why: str) -> None:
    text = f'\n[[targets]]\nname = "a"\nurl = "http://x"\nmodel = "m"\n{line}\n'
    with pytest.raises(SetupError, match=why):
        lab(tmp_path, text)


def test_names_must_differ_and_urls_must_be_http() -> None:
    twice = [Target("a", "http://x", "m"), Target("a", "http://y", "m")]
    with pytest.raises(SetupError, match="Two targets are called 'a'"):
        require_different(twice)
    with pytest.raises(SetupError, match="must begin with http"):
        base_url("file:///etc/passwd")


def test_the_same_question_in_both_dialects() -> None:
    question = Question(MESSAGES, [TOOL], 100, "any")
    fast = Target("fast", "http://h", "m", service_tier="fast", temperature=0.0, is_headway=True)
    body = body_of(fast, question)
    assert body["tools"] == [TOOL]  # Headway's engines allow dots
    assert (body["service_tier"], body["temperature"], body["tool_choice"]) == ("fast", 0.0, "required")
    other = body_of(Target("o", "http://o", "m", body={"reasoning_effort": "low"}), question)
    assert other["tools"][0]["function"]["name"] == "math_add"
    assert other["reasoning_effort"] == "low"
    assert "temperature" not in other
    anthropic = body_of(Target("a", "http://a", "m", "anthropic"), question)
    assert anthropic["system"] == "Be brief."
    assert [one["role"] for one in anthropic["messages"]] == ["user", "assistant", "user"]
    assert anthropic["messages"][1]["content"] == [
        {"type": "tool_use", "id": "c1", "name": "math_add", "input": {"a": 1}}
    ]
    assert [one["type"] for one in anthropic["messages"][2]["content"]] == ["tool_result", "text"]
    assert anthropic["tools"] == [{"name": "math_add", "description": "Adds.", "input_schema": {"type": "object"}}]
    assert anthropic["tool_choice"] == {"type": "any"}
    assert body_of(fast, Question(MESSAGES, [TOOL], 1, "f"))["tool_choice"]["function"] == {"name": "f"}


def test_answers_are_read_in_both_dialects() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a":'}}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "headway": {"answer_seconds": 0.5, "billed_micro": 9}}
    choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    headway = Target("standard", "http://h", "m", is_headway=True)
    reply = read_reply(headway, {"choices": [choice], "usage": usage})
    assert reply.calls == [Called("1", "f", '{"a":')]
    found = measured(headway, reply, 0.7)
    assert (found["seconds"], found["timed_by"], found["cost_micro"]) == (0.5, "proof", 9)
    foreign = Target("lab", "http://l", "m", "anthropic", input_micro=1_000_000, output_micro=2_000_000)
    blocks = [{"type": "text", "text": "Hm. "}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]
    said = {"content": blocks, "usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 5}}
    reply = read_reply(foreign, said)
    assert (reply.text, reply.calls[0].arguments, reply.input_tokens) == ("Hm. ", '{"a": 1}', 10)
    found = measured(foreign, reply, 0.7)
    assert (found["seconds"], found["timed_by"], found["cost_micro"]) == (0.7, "client", 20)
    with pytest.raises(ValueError, match="not an answer of the openai dialect"):
        read_reply(headway, {"error": "x"})


def test_errors_are_told_in_the_endpoints_words() -> None:
    assert why_not(429, b'{"error": {"message": "later"}}') == "429: later"
    assert why_not(400, b'{"error": "no"}') == "400: no"
    assert why_not(502, b"<html>") == "502: <html>"
