"""The Messages dialect of the scripted engine's plain answers (formats.py has the others)."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.engines.scripted.formats import WORDS, ScriptedAnswer, http_chunk


def messages_event(body: dict[str, Any]) -> bytes:
    return http_chunk(b"event: %b\ndata: %b\n\n" % (body["type"].encode(), msgspec.json.encode(body)))


def message_start(answer: ScriptedAnswer) -> bytes:
    message: dict[str, Any] = {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": answer.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0},
    }
    return messages_event({"type": "message_start", "message": message})


class MessagesFormat:
    _before_word = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
    )

    def __init__(self, answer: ScriptedAnswer, index: int = 0) -> None:  # noqa: ARG002 (this dialect has one choice)
        self._answer = answer

    def _usage(self, output_tokens: int) -> dict[str, int]:
        return {"input_tokens": self._answer.prompt_tokens, "output_tokens": output_tokens}

    def _stop_reason(self) -> str:
        return "max_tokens" if self._answer.stop is None else "stop_sequence"

    def _opening(self) -> bytes:
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return message_start(self._answer) + messages_event(block)

    def token(self, number: int) -> bytes:
        event = b'%b%b"},"index":0}\n\n' % (self._before_word, WORDS[(number - 1) % len(WORDS)].encode())
        is_stop_word = self._answer.stop is not None and number == self._answer.total_tokens
        opening = self._opening() if number == 1 else b""
        return opening if is_stop_word else opening + http_chunk(event)

    def closing(self, metrics: dict[str, float | None]) -> bytes:  # noqa: ARG002 (this dialect has no field for them)
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._answer.stop}
        usage = self._usage(self._answer.total_tokens)
        return (
            messages_event({"type": "content_block_stop", "index": 0})
            + messages_event({"type": "message_delta", "delta": delta, "usage": usage})
            + messages_event({"type": "message_stop"})
        )

    def whole(self, metrics: dict[str, float | None]) -> bytes:  # noqa: ARG002
        answer = self._answer
        body = {
            "id": answer.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": answer.text()}],
            "model": answer.model,
            "stop_reason": self._stop_reason(),
            **({} if answer.stop is None else {"stop_sequence": answer.stop}),
            "usage": self._usage(answer.total_tokens),
        }
        return msgspec.json.encode(body)
