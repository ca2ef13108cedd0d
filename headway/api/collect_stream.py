"""Collects the events of a stream into the whole answer, for clients that want it in one piece.

The engine streams such an answer so that its tokens are counted and timed as they come: a client that leaves before the
end is charged for what the engine did. The result is what vLLM itself gives in one piece, field by field, for the
requests that a dialect collects (tests/e2e/test_collected.py).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from headway.api.answers import Count

MAX_COLLECTED_BYTES = 32 * 2**20

# Fields of vLLM's whole answers that its events do not have. They are null in the answers that are collected.
ANSWER_NULLS: dict[str, Any] = dict.fromkeys(("service_tier", "kv_transfer_params", "ec_transfer_params"))
CHAT_NULLS: dict[str, Any] = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
CHOICE_NULLS: dict[str, Any] = dict.fromkeys(("token_ids", "routed_experts"))
TEXT_NULLS: dict[str, Any] = dict.fromkeys(("prompt_logprobs", "prompt_token_ids"))
MESSAGE_NULLS: dict[str, Any] = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
USAGE_NULLS: dict[str, Any] = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))


class Delta(Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None


class Part(Struct):
    """What an event adds to a choice: a delta in chat, text in a completion."""

    index: Count = 0
    delta: Delta | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: dict[str, list[Raw]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Chunk(Struct):
    """An event of a stream in the OpenAI dialect."""

    id: str
    created: int
    model: str
    object: Literal["chat.completion.chunk", "text_completion"]
    choices: list[Part]


_read_chunk = msgspec.json.Decoder(Chunk).decode


class AnswerCollector:
    """Collects an answer of the OpenAI dialect, of either endpoint."""

    def __init__(self, choices: int) -> None:
        self._first: Chunk | None = None
        self._choices = [_CollectedChoice() for _ in range(choices)]
        self._bytes = 0

    def add(self, payload: bytes) -> None:
        self._bytes = _collected_bytes(self._bytes, payload)
        chunk = _read_chunk(payload)
        if self._first is None:
            self._first = chunk
        for part in chunk.choices:
            self._choices[part.index].add(part)

    def whole(self, closing: dict[str, Any]) -> dict[str, Any]:
        """The answer; `closing` is the event with the last usage."""
        if self._first is None:
            raise ValueError("no choices")
        is_chat = self._first.object == "chat.completion.chunk"
        return {
            "id": self._first.id,
            "created": self._first.created,
            "model": self._first.model,
            "object": "chat.completion" if is_chat else "text_completion",
            "choices": [choice.whole(index, is_chat=is_chat) for index, choice in enumerate(self._choices)],
            "usage": {**USAGE_NULLS, **closing["usage"]},
            **{name: closing.get(name) for name in ("system_fingerprint", "metrics")},
            **ANSWER_NULLS,
            **(CHAT_NULLS if is_chat else {}),
        }


class _CollectedChoice:
    def __init__(self) -> None:
        self._role = "assistant"
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: dict[str, list[Raw]] = {}
        self._ending: dict[str, Any] = {"finish_reason": None, "stop_reason": None}

    def add(self, part: Part) -> None:
        if isinstance(part.delta, Delta):
            self._role = part.delta.role or self._role
            self._text.append(part.delta.content or "")
            self._reasoning.append(part.delta.reasoning or "")
        elif isinstance(part.text, str):
            self._text.append(part.text)
        else:
            raise ValueError("a choice without content")
        for name, values in (part.logprobs or {}).items():
            self._logprobs.setdefault(name, []).extend(values)
        if part.finish_reason is not None:
            self._ending = {"finish_reason": part.finish_reason, "stop_reason": part.stop_reason}

    def whole(self, index: int, *, is_chat: bool) -> dict[str, Any]:
        text = "".join(self._text)
        ending = {"logprobs": self._logprobs or None, **self._ending, **CHOICE_NULLS}
        if not is_chat:
            return {"index": index, "text": text, **ending, **TEXT_NULLS}
        reasoning = "".join(self._reasoning) or None
        return {
            "index": index,
            "message": {"role": self._role, "content": text, "reasoning": reasoning, **MESSAGE_NULLS},
            **ending,
        }


# The field that each type of delta of a message adds to; it has the same name in the delta.
DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MessageCollector:
    """Collects an answer of the Anthropic dialect."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._parts: dict[tuple[int, str], list[str]] = {}
        self._bytes = 0

    def add(self, payload: bytes) -> None:
        self._bytes = _collected_bytes(self._bytes, payload)
        event = msgspec.json.decode(payload)
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
        if not isinstance(self.message.get("usage"), dict):
            raise ValueError("no usage")
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        self.message["content"] = blocks or [{"type": "text", "text": ""}]  # as vLLM gives an empty answer
        return {name: value for name, value in self.message.items() if value is not None}


def _collected_bytes(before: int, payload: bytes) -> int:
    if before + len(payload) > MAX_COLLECTED_BYTES:
        raise ValueError("it is too large to be collected")
    return before + len(payload)
