"""Reads answers of the Anthropic dialect as they pass.

This dialect carries usage at the start and the end only. In between each delta counts as one token, which is exact
until an engine puts several tokens into one delta, and a lower bound then.
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
    """How a client of this dialect wants its answer; implements wire.AnswerForm."""

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
        self._speed = "fast" if grant.tier in EXPRESS else "standard"  # this dialect has two words for tiers
        self._splitter = EventSplitter()
        self._collector = MessageCollector() if form.collects else None
        self._prompt = self._cached = self._output = self._deltas = 0
        self._delta: dict[str, Any] | None = None  # the event with the last usage
        self._closing = b""  # what follows it
        self._answer: dict[str, Any] | None = None  # a whole one

    def feed(self, data: bytes, now: float) -> bytes:
        if self._splitter.is_one_event(data) and data.startswith(TOKEN) and self._collector is None:
            return self._read(data, now)
        with readable():
            return b"".join([self._read(event, now) for event in self._splitter.split(data)])

    def _read(self, event: bytes, now: float) -> bytes:
        if self._collector is not None and (payload := data_of(event)).startswith(b"{"):
            self._collector.take(msgspec.json.decode(payload))
        if event.startswith(TOKEN):
            if self.first_at is None:
                self.first_at = now
            self.last_at = now
            self._deltas += 1
        elif event.startswith(START):
            start = msgspec.json.decode(data_of(event))
            self._take(start["message"].setdefault("usage", {}))
            start["message"]["usage"]["speed"] = self._speed
            return START + b"data: " + _encode(start) + b"\n\n"
        elif event.startswith(DELTA):
            self._delta = msgspec.json.decode(data_of(event))
            self._take(self._delta.setdefault("usage", {}))
            self.is_final = True
            return b""
        elif event.startswith(STOP):
            self.is_final = self.is_complete = True
        elif event.startswith(ERROR):
            raise EngineLost(f"the engine failed in the middle: {engine_error(data_of(event)).get('message')}")
        if self.is_final:
            self._closing += event
            return b""
        return event

    def _take(self, usage: dict[str, Any]) -> None:
        self._prompt = usage.get("input_tokens", self._prompt)
        self._cached = usage.get("cache_read_input_tokens") or self._cached
        self._output = usage.get("output_tokens", self._output)

    def read_whole(self, body: bytes, _generation_s: GenerationTime) -> None:
        self.is_final = self.is_complete = True
        with readable():
            answer = msgspec.json.decode(body)
            if "usage" in answer:
                self._answer = answer
                self._take(answer["usage"])
            else:  # an answer of count_tokens: nothing was generated, it passes as it came
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
