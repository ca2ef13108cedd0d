"""The clients: where each comes from, at which version, and how it is driven through which scenarios.

Nothing is set but base URL, key, model, and what the client's own documentation requires to name a custom provider.
`$name` in commands, settings and files stands for: url, key, model, prompt, scenario, environment (the client's
folder), work (the working folder), home (an empty home), program (its path),
page_origin (from where web pages may call).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from runs.clients.scenarios import (
    END,
    NOTES,
    OUT,
    RESULTS,
    WRITTEN,
    Scenario,
    calls,
    edit_loop,
    file_loop,
    parsed,
    proof,
    react_loop,
    text,
    tool_loop,
)

MODEL, KEY = "my-model", "hw-clients"


@dataclass(frozen=True)
class Client:
    name: str  # also of its folder in the cache
    registry: Literal["PyPI", "npm"]
    packages: tuple[str, ...]  # pinned; the first is the client
    scenarios: tuple[Scenario, ...]
    driver: str = ""  # a file of drivers/ that gets scenario and prompt, or
    command: tuple[str, ...] = ()  # the client's own command
    settings: dict[str, str] = field(default_factory=dict)  # of its environment
    files: dict[str, str] = field(default_factory=dict)  # by path, written before it starts
    program: str = ""  # that it needs beside its packages
    on_socket: tuple[str, ...] = ()  # scenarios in which every call must come over the WebSocket; in others none
    timeout_s: float = 120.0

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("==" if self.registry == "PyPI" else "@")[2]


LOOP, ANTHROPIC_LOOP = tool_loop("tool loop"), tool_loop("tool loop, Anthropic")
RESPONSES_LOOP, CONTINUED_LOOP = tool_loop("tool loop, Responses"), tool_loop("tool loop, previous_response_id")
PROOF = proof()
STREAMED_LOOP = tool_loop("tool loop, streamed")
TASK = f"Write the word of {NOTES} into {OUT}."

OPENCODE = {
    "$schema": "https://opencode.ai/config.json",
    "provider": {
        "headway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "$url/v1", "apiKey": "$key"},
            "models": {MODEL: {"name": MODEL}},
        }
    },
}
CODEX = f"""
model = "{MODEL}"
model_provider = "headway-$scenario"
"""
for way, on_socket in (("HTTP", "false"), ("WebSocket", "true")):
    CODEX += f"""
[model_providers.headway-{way}]
name = "Headway"
base_url = "$url/v1"
env_key = "HEADWAY_KEY"
wire_api = "responses"
supports_websockets = {on_socket}
"""
CODEX_PATCH = f"*** Begin Patch\n*** Add File: {OUT}\n+{WRITTEN}\n*** End Patch"
PI = {
    "providers": {
        f"headway-{api}": {"baseUrl": base, "apiKey": KEY, "api": api, "models": [{"id": MODEL}]}
        for api, base in (("openai-completions", "$url/v1"), ("anthropic-messages", "$url"))
    }
}


CODEX_FILES = (
    calls("exec_command", cmd=f"cat {NOTES}"),
    calls("exec_command", cmd=f"apply_patch <<'END'\n{CODEX_PATCH}\nEND"),
)
PI_FILES = (calls("read", path=f"$work/{NOTES}"), calls("write", path=f"$work/{OUT}", content=WRITTEN))

CLIENTS = (
    Client(
        "openai-python",
        "PyPI",
        ("openai==3.49.0",),
        (text("stream"), LOOP, parsed("parsed"), RESPONSES_LOOP, CONTINUED_LOOP, parsed("parsed, Responses"), PROOF),
        driver="openai_python.py",
    ),
    Client(
        "anthropic-python",
        "PyPI",
        ("anthropic==2.8.0",),
        (text("stream"), LOOP, STREAMED_LOOP, PROOF),
        driver="anthropic_python.py",
    ),
    Client(
        "claude-code",
        "npm",
        ("@anthropic-ai/claude-code@2.1.326",),
        (
            file_loop(
                calls("Read", file_path=f"$work/{NOTES}"), calls("Write", file_path=f"$work/{OUT}", content=WRITTEN)
            ),
        ),
        # It asks before it writes a file, and in a headless run nobody answers.
        command=(
            "$environment/node_modules/.bin/claude",
            "-p",
            "$prompt",
            "--output-format",
            "json",
            "--allowedTools",
            "Read,Write",
        ),
        settings={"ANTHROPIC_BASE_URL": "$url", "ANTHROPIC_API_KEY": "$key"},
    ),
    Client(
        "codex",
        "npm",
        ("@openai/codex@0.169.0",),
        (file_loop(*CODEX_FILES, "HTTP"), file_loop(*CODEX_FILES, "WebSocket")),
        # It asks before it works in a folder without git. Its sandbox needs rights that containers may lack; the
        # commands are those above.
        command=(
            "$environment/node_modules/.bin/codex",
            "exec",
            "--skip-git-repo-check",
            "--sandbox",
            "danger-full-access",
            "$prompt",
        ),
        settings={"HEADWAY_KEY": "$key"},
        files={"$home/.codex/config.toml": CODEX},
        on_socket=("WebSocket", "pasted"),
    ),
    Client(
        "openai-node",
        "npm",
        ("openai@7.53.0", "zod@4.6.7"),
        (
            text("stream"),
            LOOP,
            STREAMED_LOOP,
            parsed("parsed"),
            RESPONSES_LOOP,
            CONTINUED_LOOP,
            parsed("parsed, Responses"),
            PROOF,
        ),
        driver="openai_node.mjs",
    ),
    Client(
        "anthropic-node",
        "npm",
        ("@anthropic-ai/sdk@1.9.0", "zod@4.6.7"),
        (text("stream"), LOOP, STREAMED_LOOP, PROOF),
        driver="anthropic_node.mjs",
    ),
    Client(
        "langchain",
        "PyPI",
        ("langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
        (LOOP, RESPONSES_LOOP, ANTHROPIC_LOOP, text("completion"), PROOF),
        driver="langchain_client.py",
    ),
    Client(
        "openai-agents",
        "PyPI",
        ("openai-agents==0.24.0",),
        (LOOP, RESPONSES_LOOP, tool_loop("tool loop, Responses, streamed"), PROOF),
        driver="openai_agents_client.py",
    ),
    Client(
        "pydantic-ai",
        "PyPI",
        ("pydantic-ai-slim[openai,anthropic]==2.66.0",),
        (LOOP, RESPONSES_LOOP, ANTHROPIC_LOOP, PROOF),
        driver="pydantic_ai_client.py",
    ),
    Client(
        "instructor",
        "PyPI",
        ("instructor==1.17.0",),
        (
            Scenario("object by tool", (calls("City", city="Paris", degrees=21),), prints="Paris: 21"),
            parsed("parsed"),
            Scenario("proof", parsed("parsed").answers, prints=PROOF.prints),
        ),
        driver="instructor_client.py",
    ),
    Client(
        "ai-sdk",
        "npm",
        (
            "ai@7.0.169",
            "@ai-sdk/openai@4.0.115",
            "@ai-sdk/anthropic@4.0.102",
            "@ai-sdk/openai-compatible@3.0.90",
            "zod@4.6.7",
        ),
        (LOOP, RESPONSES_LOOP, tool_loop("tool loop, openai-compatible"), ANTHROPIC_LOOP, PROOF),
        driver="ai_sdk.mjs",
    ),
    Client(
        "qwen-code",
        "npm",
        ("@qwen-code/qwen-code@0.24.4",),
        (
            file_loop(
                calls("read_file", file_path=f"$work/{NOTES}"),
                calls("write_file", file_path=f"$work/{OUT}", content=WRITTEN),
            ),
        ),
        command=("$environment/node_modules/.bin/qwen", "-p", "$prompt", "--approval-mode", "yolo"),
        settings={"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_KEY": "$key", "OPENAI_MODEL": MODEL},
    ),
    Client(
        "opencode",
        "npm",
        ("opencode-ai@1.18.33",),
        (
            file_loop(
                calls("read", filePath=f"$work/{NOTES}"), calls("write", filePath=f"$work/{OUT}", content=WRITTEN)
            ),
        ),
        command=("$environment/node_modules/.bin/opencode", "run", "--model", f"headway/{MODEL}", "$prompt"),
        files={"$work/opencode.json": json.dumps(OPENCODE)},
    ),
    Client(
        "pi",
        "npm",
        ("@mariozechner/pi-coding-agent@0.73.1",),
        (file_loop(*PI_FILES, "openai-completions"), file_loop(*PI_FILES, "anthropic-messages")),
        command=(
            "$environment/node_modules/.bin/pi",
            "-p",
            "--provider",
            "headway-$scenario",
            "--model",
            MODEL,
            "$prompt",
        ),
        files={"$home/.pi/agent/models.json": json.dumps(PI)},
    ),
    # The releases tried from 1.103.11 to 1.109.1 want a certifi that PyPI does not have.
    Client("litellm", "PyPI", ("litellm==1.102.4",), (LOOP, ANTHROPIC_LOOP, PROOF), driver="litellm_client.py"),
    Client(
        "smolagents",
        "PyPI",
        ("smolagents[openai]==1.26.0",),
        # It ends with a tool of its own, and sends results as messages of the user.
        (tool_loop("tool loop", calls("final_answer", answer=END["text"]), ("", *RESULTS)), PROOF),
        driver="smolagents_client.py",
    ),
    Client(
        "autogen",
        "PyPI",
        ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"),
        (LOOP, STREAMED_LOOP, PROOF),
        driver="autogen_client.py",
    ),
    Client(
        "llama-index", "PyPI", ("llama-index-llms-openai-like==0.8.1",), (LOOP, PROOF), driver="llama_index_client.py"
    ),
    Client("dspy", "PyPI", ("dspy==3.4.1",), (react_loop("tool loop, as text"), PROOF), driver="dspy_client.py"),
    Client(
        "aider",
        "PyPI",
        ("aider-chat==0.86.2",),
        (edit_loop(),),
        # It asks before it creates a file, and in a headless run nobody answers.
        command=(
            "$environment/bin/aider",
            "--model",
            f"openai/{MODEL}",
            "--yes-always",
            "--message",
            "$prompt",
            NOTES,
            OUT,
        ),
        settings={"OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "$key"},
    ),
    Client(
        "browser",
        "npm",
        ("openai@7.53.0", "esbuild@0.28.2", "playwright-core@1.65.1"),
        (LOOP, STREAMED_LOOP, text("stream, fetch"), PROOF),
        driver="browser.mjs",
        program="chromium",
        settings={"PAGE_ORIGIN": "$page_origin", "CHROMIUM": "$program"},
    ),
)
