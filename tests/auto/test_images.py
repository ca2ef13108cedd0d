"""Calls with images to an auto model are the full model's: the gate weighs text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.auto.requests import CallRungs
from tests.image_files import as_base64, data_url, png

FILE = png(3, 3)
SOURCE = {"type": "base64", "media_type": "image/png", "data": as_base64(FILE)}
PARTS = [{"type": "image_url", "image_url": {"url": data_url(FILE)}}]
BLOCKS = [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": SOURCE}]}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "f"}}]
TOOLS = [{"name": "f", "input_schema": {}}]


@pytest.mark.parametrize(
    ("read", "content", "tools"),
    [(openai.read_chat, PARTS, CHAT_TOOLS), (anthropic.read_messages, BLOCKS, TOOLS)],
    ids=["chat", "messages"],
)
def test_the_student_does_not_get_images(read: Any, content: Any, tools: Any) -> None:
    asked = {"model": "m-auto", "messages": [{"role": "user", "content": content}], "tools": tools, "max_tokens": 5}
    body = msgspec.json.encode(asked)
    request = read(body, "id")
    rungs = CallRungs(body, request, read, openai.read_chat, lambda one: one, ("m-spark", "m"), ["standard"])
    assert rungs.gate_call is None
    full = rungs.to_full()
    assert msgspec.json.decode(full.body)["messages"][0]["content"] == content
    assert full.images.pixels == (9,)
