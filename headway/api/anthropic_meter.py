"""Reads answers of the Anthropic dialect as they pass.

This dialect has usage only at the start and at the end. In between each delta counts as one token, which is a lower
bound if the engine puts several tokens into one delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headway.api.collect_stream import MessageCollector
from headway.api.dialect import engine_error
from headway.api.proof import proof_of
from headway.api.sse import EventSplitter, data_of, readable
from headway.core.types import EXPRESS
from headway.errors import EngineLost
from headway.wire import GenerationTime, Grant, Receipt, Usage, stream_speed_tps

TOKEN = b"event: content_block_delta\n"
START = b"event: message_start\n"
DELTA = b"event: message_delta\n"
STOP = b"event: message_stop\n"
ERROR = b"event: error\n"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class MessagesForm:
    """The form in which a client of this dialect wants its answer; implements wire.AnswerForm."""

    collects: bool = False  # the engine streams, and the client gets the answer in one piece

    def meter(self, grant: Grant) -> AnthropicMeter:
        return AnthropicMeter(self, grant)


class AnthropicMeter:
    __slots__ = (
        "_answer",
        "_cached",
        "_closing",
        "_collector",
        "_delta",
        "_deltas",
        "_output",
        "_prompt",
        "_speed",
        "_splitter",
        "first_at",
        "is_complete",
        "is_final",
        "last_at",
    )

    def __init__(self, form: MessagesForm, grant: Grant) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.is_final = self.is_complete = False
        self._speed = "fast" if grant.tier in EXPRESS else "standard"  # the only two values of this dialect
        self._splitter = EventSplitter()
        self._collector = MessageCollector() if form.collects else None
        self._prompt = self._cached = self._output = self._deltas = 0
        self._delta: dict[str, Any] | None = None  # the event with the last usage
        self._closing = b""  # the events after it
        self._answer: dict[str, Any] | None = None  # an answer that came in one piece

    def feed(self, data: bytes, now: float) -> bytes:
        if self._splitter.is_one_event(data) and data.startswith(TOKEN) and self._collector is None:
            return self._read(data, now)
        with readable():
            return b"".join([self._read(event, now) for event in self._splitter.split(data)])

    def _read(self, event: bytes, now: float) -> bytes:
        if self._collector is not None and (payload := data_of(event)).startswith(b"{"):
            self._collector.add(msgspec.json.decode(payload))
        if event.startswith(TOKEN):
            if self.first_at is None:
                self.first_at = now
            self.last_at = now
            self._deltas += 1
        elif event.startswith(START):
            start = msgspec.json.decode(data_of(event))
            self._read_usage(start["message"].setdefault("usage", {}))
            start["message"]["usage"]["speed"] = self._speed
            return START + b"data: " + _encode(start) + b"\n\n"
        elif event.startswith(DELTA):
            self._delta = msgspec.json.decode(data_of(event))
            self._read_usage(self._delta.setdefault("usage", {}))
            self.is_final = True
            return b""
        elif event.startswith(STOP):
            self.is_final = self.is_complete = True
        elif event.startswith(ERROR):
            raise EngineLost(f"the engine failed during its answer: {engine_error(data_of(event)).get('message')}")
        if self.is_final:
            self._closing += event
            return b""
        return event

    def _read_usage(self, usage: dict[str, Any]) -> None:
        self._prompt = usage.get("input_tokens", self._prompt)
        self._cached = usage.get("cache_read_input_tokens") or self._cached
        self._output = usage.get("output_tokens", self._output)

    def read_whole(self, body: bytes, _generation_s: GenerationTime) -> None:
        self.is_final = self.is_complete = True
        with readable():
            answer = msgspec.json.decode(body)
            if "usage" in answer:
                self._answer = answer
                self._read_usage(answer["usage"])
            else:  # an answer of count_tokens, which is passed on unchanged
                self._closing = body

    def usage(self) -> Usage:
        return Usage(self._prompt, self._cached, (max(self._output, self._deltas),))

    def speed_tps(self) -> float | None:
        return stream_speed_tps(self.usage().output_tokens, self.first_at, self.last_at)

    def end(self, receipt: Receipt) -> bytes:
        proof = {"speed": self._speed, "headway": proof_of(receipt)}
        answer = self._collector.whole() if self._collector is not None else self._answer
        if answer is not None:
            return _encode({**answer, "usage": {**answer["usage"], **proof}})
        if self._delta is None:
            return self._closing
        delta = {**self._delta, "usage": {**self._delta["usage"], **proof}}
        return DELTA + b"data: " + _encode(delta) + b"\n\n" + self._closing
