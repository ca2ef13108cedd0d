"""Prompts are kept where the owner said so, and nowhere else: what was asked, of whom it may be, up to a size."""

from __future__ import annotations

import json
import random
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.api.openai_meter import OpenAIForm
from headway.config import KeepPromptsTable
from headway.core.types import Call
from headway.distill.collect import Teacher, read_questions
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from headway.gateway.prompts import Keeping, PromptFile
from headway.wire import Request, SentImages
from tests.running import MODEL, config_for, post, running_gateway

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a\nb"}], "max_tokens": 3}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def request(body: dict[str, Any], path: str = "/v1/chat/completions", tenant: str = "") -> Request:
    call = Call("1", MODEL, "standard", tenant)
    laid_out = json.dumps(body, indent=2).replace("\n", "\r\n").encode()
    return Request(call, path, laid_out, OpenAIForm(), streaming=False)


def kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.anyio
async def test_a_served_prompt_is_kept_and_can_be_collected(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    async with running(Script(model=MODEL)) as engine:
        config = config_for([engine])
        keeps = config.models[0].model_copy(update={"keep_prompts": KeepPromptsTable(file=str(path))})
        async with running_gateway(config.model_copy(update={"models": [keeps]})) as here:
            for body in (CHAT, {**CHAT, "tools": TOOLS, "stream": True}, {"model": MODEL, "prompt": "c"}):
                where = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                assert b" 200 " in await here.raw(post(where, json.dumps(body).encode()))
            await here.raw(post("/v1/chat/completions", json.dumps({**CHAT, "model": "unknown"}).encode()))
            await here.until_empty()
    assert kept(path) == [{"messages": CHAT["messages"]}, {"messages": CHAT["messages"], "tools": TOOLS}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    questions, doubles = read_questions([path], Teacher("http://x", MODEL))
    assert len(questions) == 2
    assert doubles == 0


def test_only_the_share_the_keys_and_the_size_that_were_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    file = PromptFile(Keeping(path, 1.0, 1000, frozenset({"key-1"})))
    file.keep(request(CHAT, tenant="key-2"))
    file.keep(request(CHAT, "/v1/messages", "key-1"))
    file.keep(replace(request(CHAT, tenant="key-1"), images=SentImages((1,), 10)))
    assert kept(path) == []
    for _ in range(9):
        file.keep(request({**CHAT, "tools": TOOLS}, tenant="key-1"))
    file.close()
    assert 0 < path.stat().st_size <= 1000
    assert kept(path)[0]["messages"] == CHAT["messages"]
    half = PromptFile(Keeping(tmp_path / "half.jsonl", 0.5, 10**6), random.Random(1))
    for _ in range(200):
        half.keep(request(CHAT))
    half.close()
    assert 60 < len(kept(tmp_path / "half.jsonl")) < 140


def test_a_disk_that_refuses_costs_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _line: bytes) -> int:
        raise OSError(28, "no space left")

    file = PromptFile(Keeping(tmp_path / "prompts.jsonl", 1.0, 10**6))
    monkeypatch.setattr("headway.gateway.prompts.os.write", full)
    file.keep(request(CHAT))
    file.close()
    with pytest.raises(SetupError, match="Choose another file"):
        PromptFile(Keeping(tmp_path / "nowhere" / "prompts.jsonl", 1.0, 10**6))
