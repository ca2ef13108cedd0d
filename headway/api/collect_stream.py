"""Collects the events of a streamed message into the whole message.

Used for calls with a floor whose client wants the answer in one piece: engines report no timing in the Messages
dialect, so the engine streams the answer and its speed is measured like that of any stream.
"""

from __future__ import annotations

from typing import Any

import msgspec

# The field that each type of delta adds to; it has the same name in the delta.
DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessageCollector:
    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._parts: dict[tuple[int, str], list[str]] = {}

    def add(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self.message = event["message"]
            case "content_block_start":
                self._blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                self._append(event["index"], event["delta"])
            case "message_delta":
                usage = {**self.message.get("usage", {}), **event.get("usage", {})}
                self.message |= {**event["delta"], "usage": usage}

    def _append(self, index: int, delta: dict[str, Any]) -> None:
        field = "input" if delta["type"] == "input_json_delta" else DELTA_FIELDS[delta["type"]]
        piece = delta["partial_json"] if field == "input" else delta[field]
        self._parts.setdefault((index, field), []).append(piece)

    def whole(self) -> dict[str, Any]:
        for (index, field), pieces in self._parts.items():
            text = "".join(pieces)
            if field == "input":
                self._blocks[index]["input"] = msgspec.json.decode(text) if text else {}
            else:
                self._blocks[index][field] = (self._blocks[index].get(field) or "") + text
        self.message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return self.message
