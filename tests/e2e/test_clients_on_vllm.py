"""Chats with tools on real vLLM, streamed through both official SDKs, Claude Code and Codex at their pinned versions.

What a small model says does not matter; that clients accept every frame of it does. So a named tool forces a call, and a
grammar the words of an answer. vLLM holds a call to the schema of a strict tool only, and lets the model call a strict tool
in place of an answer that has a grammar: tools are strict where they are named, and only there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path
from string import Template
from typing import Any

import pytest

from headway.engines.vllm import read_metrics
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess
from runs.clients.catalog import CLIENTS
from runs.clients.environments import ensure_client
from runs.clients.run import PASSED_ON
from tests.e2e.conftest import CURVE, SEATS, GatewayProcess, get, start_gateway_of
from tests.e2e.forced_calls import forcing

pytestmark = pytest.mark.engine
CLIENT = {client.name: client for client in CLIENTS}
CITIES = ["Paris", "Rome"]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
WORDS = {"type": "json_schema", "schema": {"const": "zero one two three"}}
SAID = '"zero one two three"'
QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
MAX_TOKENS = 100


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_the_sdks_of_these_tests_are_those_of_the_catalogue(name: str) -> None:
    assert importlib.metadata.version(name) == CLIENT[f"{name}-python"].version


def test_a_tool_loop_of_the_openai_sdk(gateway: GatewayProcess) -> None:
    def ask(function: dict[str, Any], **more: Any) -> Any:
        tools: Any = [{"type": "function", "function": function}]
        with gateway.openai.chat.completions.stream(
            model=MODEL, messages=messages, tools=tools, max_tokens=MAX_TOKENS, temperature=0, **more
        ) as events:
            pieces = [event.delta for event in events if event.type == "content.delta"]
            choice = events.get_final_completion().choices[0]
        assert "".join(pieces) == (choice.message.content or "")
        return choice

    messages: Any = [QUESTION]
    weather = {"name": "weather", "parameters": CITY}
    named = {"type": "function", "function": {"name": "weather"}}
    message = ask(weather | {"strict": True}, tool_choice=named).message
    [call] = message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in CITIES
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
    last = ask(weather, extra_body={"structured_outputs": {"regex": SAID}})
    assert (last.finish_reason, last.message.content) == ("stop", SAID)


def test_a_tool_loop_of_the_anthropic_sdk(gateway: GatewayProcess) -> None:
    def ask(tool: Any, **more: Any) -> Any:
        with gateway.anthropic.messages.stream(
            model=MODEL, messages=messages, tools=[tool], max_tokens=MAX_TOKENS, extra_body={"temperature": 0}, **more
        ) as events:
            pieces = list(events.text_stream)
            message = events.get_final_message()
        assert "".join(pieces) == "".join(block.text for block in message.content if block.type == "text")
        return message

    messages: Any = [QUESTION]
    weather = {"name": "weather", "input_schema": CITY}
    message = ask(weather | {"strict": True}, tool_choice={"type": "tool", "name": "weather"})
    assert message.stop_reason == "tool_use"
    [call] = message.content
    assert (call.type, call.name) == ("tool_use", "weather")
    assert call.input["city"] in CITIES
    messages += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}]},
    ]
    last = ask(weather, output_config={"format": WORDS})
    assert last.stop_reason == "end_turn"
    assert [block.text for block in last.content] == [SAID]


def run_claude_code(gateway: GatewayProcess, folder: Path, extra_body: dict[str, Any], *options: str) -> dict[str, Any]:
    """Ask Claude Code, with two of its tools and a short system prompt: 5 KB instead of 47 KB, which this engine would read
    for many seconds. Returns the result that it prints."""
    environment = ensure_client(CLIENT["claude-code"])
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": gateway.url,
        "ANTHROPIC_API_KEY": "none",
        # By default it asks for 128,000 tokens, more than the model's context has.
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(MAX_TOKENS),
        "CLAUDE_CODE_EXTRA_BODY": json.dumps({"temperature": 0} | extra_body),
    }
    command = [str(environment / "node_modules" / ".bin" / "claude"), "-p", "What is the weather in Paris?"]
    command += ["--output-format", "json", "--model", MODEL, "--system-prompt", "Be brief.", "--tools", "Read,Write"]
    done = subprocess.run(
        [*command, *options],
        cwd=work,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["is_error"] is False
    assert result["usage"]["output_tokens"] > 3
    return result


def test_claude_code_reads_an_answer(gateway: GatewayProcess, tmp_path: Path) -> None:
    result = run_claude_code(gateway, tmp_path, {"output_config": {"format": WORDS}})
    assert result["stop_reason"] == "end_turn"
    assert result["result"] == SAID


def test_claude_code_runs_a_tool_that_the_model_calls(gateway: GatewayProcess, tmp_path: Path) -> None:
    """With a schema for the result, Claude Code has a tool that takes it, and ends when that was called. It does not say
    that the tool is strict."""
    named = {
        "tools": [{"name": "StructuredOutput", "input_schema": CITY, "strict": True}],
        "tool_choice": {"type": "tool", "name": "StructuredOutput"},
    }
    result = run_claude_code(gateway, tmp_path, named, "--json-schema", json.dumps(CITY))
    assert result["structured_output"]["city"] in CITIES


def run_codex(gateway: GatewayProcess, folder: Path, way: str) -> str:
    """Ask Codex, with short instructions (its first prompt has 3 KB instead of 20 KB) and a schema for its answer. Returns the
    answer."""
    client = CLIENT["codex"]
    environment = ensure_client(client)
    names = {"url": gateway.url, "scenario": way, "home": str(folder / "home")}
    [(config, text)] = client.files.items()
    path = Path(Template(config).substitute(names))
    path.parent.mkdir(parents=True)
    path.write_text(Template(text).substitute(names))
    (folder / "instructions.md").write_text("Be brief.")
    (folder / "schema.json").write_text(json.dumps(WORDS["schema"]))
    command = [
        str(environment / "node_modules" / ".bin" / "codex"),
        "exec",
        "Copy notes.txt to out.txt.",
        "--model",
        MODEL,
    ]
    command += ["--skip-git-repo-check", "--sandbox", "danger-full-access", "--output-schema", "../schema.json"]
    command += ["-c", "model_instructions_file=../instructions.md"]
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder / "work",
        env=environ | {"HOME": names["home"], "HEADWAY_KEY": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def force_a_copy(body: bytes) -> bytes:
    """A request of Codex, changed so that the model calls the tool for commands and copies a file. Not changed once the
    conversation has the result of that."""
    request = json.loads(body)
    if any(item["type"] == "function_call_output" for item in request["input"]):
        return body
    command = {"cmd": {"const": "cp notes.txt out.txt"}}
    parameters = {"type": "object", "properties": command, "required": ["cmd"], "additionalProperties": False}
    [tool] = [tool for tool in request["tools"] if tool.get("name") == "exec_command"]
    request["tools"] = [tool | {"parameters": parameters, "strict": True}]
    request["tool_choice"] = {"type": "function", "name": "exec_command"}
    del request["text"]
    return json.dumps(request | {"temperature": 0, "max_output_tokens": MAX_TOKENS}).encode()


@pytest.mark.parametrize("way", ["HTTP", "WebSocket"])
def test_codex_runs_a_tool_that_the_model_calls(way: str, engines: list[EngineProcess], tmp_path: Path) -> None:
    """Codex has no option to name a tool or to send more fields, so its first request is changed on the way from the gateway
    to the engine; what Codex and the gateway say to each other is not. Nor does it limit answers: grammars bound both."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("teal heron")
    with forcing(engines[0].url, "/v1/responses", force_a_copy) as url:
        replica = f'[[models.replicas]]\nurl = "{url}"\nseats = {SEATS}\n{CURVE}\n'
        gateway = start_gateway_of(f'[[models]]\nname = "{MODEL}"\n{replica}', 1, tmp_path)
        try:
            assert run_codex(gateway, tmp_path, way) == SAID
            counted = (b"headway_calls_total", b"headway_socket_calls_total")
            calls, on_socket = read_metrics(get(gateway.url + "/metrics"), counted)
        finally:
            gateway.stop()
    assert (tmp_path / "work" / "out.txt").read_text() == "teal heron"
    assert (calls, on_socket) == (2, 2 if way == "WebSocket" else 0)
