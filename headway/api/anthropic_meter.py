"""Reads answers of the Anthropic dialect as they pass.

This dialect has usage only at the start and at the end. In between each delta counts as one token, which is a lower
bound if the engine puts several tokens into one delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from headway.api.answers import MAX_COUNT, Count, cut_object, join_object
from headway.api.collect_stream import MessageCollector
from headway.api.counted_deltas import CountedDeltas
from headway.api.dialect import failure_in_stream
from headway.api.proof import proof_of
from headway.api.utf8 import is_utf8
from headway.core.types import EXPRESS
from headway.sse import EventSplitter, data_of, readable
from headway.wire import GenerationTime, Grant, Receipt, Usage

TOKEN = b"event: content_block_delta\n"
NO_TOKEN = b'"signature_delta"'  # of a thinking block: the engine's mark, not the model's output
START = b"event: message_start\n"
DELTA = b"event: message_delta\n"
STOP = b"event: message_stop\n"
ERROR = b"event: error\n"
PING = b"event: ping\n"
COMMENT = b":"

MAX_CLOSING_BYTES = 64 * 1024  # that a message may have after its last usage


class MessageUsage(Struct):
    """The counts of a usage object. The last usage of a stream may leave out what the first one said."""

    input_tokens: Count | None = None  # without those of the two below
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None  # read now, and kept in the engine's cache
    output_tokens: Count | None = None


class TokenCount(Struct):
    """An answer of count_tokens."""

    input_tokens: Count


_read_usage = msgspec.json.Decoder(MessageUsage).decode
_read_token_count = msgspec.json.Decoder(TokenCount).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class MessagesForm:
    """The form in which a client of this dialect wants its answer; implements wire.AnswerForm."""

    collects: bool = False  # the client wants the answer in one piece, also if the engine streams it
    max_tokens: int = MAX_COUNT

    def meter(self, grant: Grant) -> AnthropicMeter:
        return AnthropicMeter(self, grant)


class AnthropicMeter(CountedDeltas):
    __slots__ = (
        "_cached",
        "_closing",
        "_collector",
        "_delta",
        "_max_tokens",
        "_output",
        "_prompt",
        "_speed",
        "_splitter",
        "_whole",
        "is_complete",
        "is_final",
    )

    has_usage = False

    def __init__(self, form: MessagesForm, grant: Grant) -> None:
        super().__init__()
        self.is_final = self.is_complete = False
        self._speed = "fast" if grant.tier in EXPRESS else "standard"  # the only two values of this dialect
        self._max_tokens = form.max_tokens
        self._splitter = EventSplitter()
        self._collector = MessageCollector() if form.collects else None
        self._prompt: int | None = None
        self._cached = self._output = 0
        self._delta: dict[str, Any] | None = None  # the event with the last usage
        self._closing = b""  # the events after it
        # An answer in one piece, as cut by `cut_object`. Its usage is decoded.
        self._whole: tuple[bytes, dict[str, Any]] | None = None

    def feed(self, data: bytes, now: float) -> bytes:
        if (
            data.startswith(TOKEN)
            and (tokens := self._splitter.count_alike(data))
            and self._collector is None
            and not self.is_final
            and NO_TOKEN not in data
            and (data.isascii() or is_utf8(data))
        ):
            self._count_deltas(tokens, now)
            return data
        with readable():
            return b"".join([self._read(event, now) for event in self._splitter.split(data)])

    def _read(self, event: bytes, now: float) -> bytes:
        if not is_utf8(event):
            raise ValueError("not UTF-8")
        if self._collector is not None and (payload := data_of(event)):
            self._collector.add(payload)
        if self.is_final and not event.startswith((STOP, PING, COMMENT)):
            raise ValueError("it went on after its last usage")
        if event.startswith(TOKEN):
            if NO_TOKEN not in event:
                self._count_deltas(1, now)
        elif event.startswith(START):
            start = msgspec.json.decode(data_of(event))
            usage = start["message"].setdefault("usage", {})
            self._take_usage(msgspec.convert(usage, MessageUsage))
            usage["speed"] = self._speed
            return START + b"data: " + _encode(start) + b"\n\n"
        elif event.startswith(DELTA):
            self._delta = msgspec.json.decode(data_of(event))
            self._take_last_usage(msgspec.convert(self._delta["usage"], MessageUsage))
            return b""
        elif event.startswith(STOP):
            if not self.is_final or self.is_complete:
                raise ValueError("it ended without a usage, or twice")
            if self._collector is not None:
                self._whole = b"", self._collector.whole()
            self.is_complete = True
        elif event.startswith(ERROR):
            raise failure_in_stream(data_of(event), has_begun=self.first_at is not None)
        if not self.is_final:
            return event
        self._closing += event
        if len(self._closing) > MAX_CLOSING_BYTES:
            raise ValueError("it does not end")
        return b""

    def _take_usage(self, usage: MessageUsage) -> None:
        prompt, cached = self._prompt, usage.cache_read_input_tokens or self._cached
        if usage.input_tokens is not None:
            prompt = usage.input_tokens + (usage.cache_creation_input_tokens or 0)
        if (prompt or 0) + cached > MAX_COUNT:
            raise ValueError(f"{prompt} input tokens and {cached} cached ones")
        self._prompt, self._cached = prompt, cached
        if usage.output_tokens is not None:
            if not self._output <= usage.output_tokens <= self._max_tokens:
                asked = f"{self._max_tokens} were asked for"
                raise ValueError(f"{usage.output_tokens} output tokens after {self._output}, {asked}")
            self._output = usage.output_tokens

    def _take_last_usage(self, usage: MessageUsage) -> None:
        self._take_usage(usage)
        if self._prompt is None or usage.output_tokens is None:
            raise ValueError("no usage")
        self.is_final = True

    def read_whole(self, body: bytes, _generation_s: GenerationTime) -> None:
        with readable():
            if not is_utf8(body):
                raise ValueError("not UTF-8")
            head, fields = cut_object(body)
            if "usage" in fields:
                self._whole = head, {**fields, "usage": msgspec.json.decode(fields["usage"])}
                self._take_last_usage(_read_usage(fields["usage"]))
            else:  # an answer of count_tokens, which is passed on unchanged
                _read_token_count(body)
                self._closing = body
        self.is_final = self.is_complete = True

    def usage(self) -> Usage:
        # The engine's last count is exact. Before it, a delta is at least one token.
        is_exact = self.is_final and self._output
        output = self._output if is_exact else max(self._output, self._deltas)
        return Usage((self._prompt or 0) + self._cached, self._cached, (output,))

    def speed_tps(self) -> float | None:
        return self._stream_speed_tps(self.usage().output_tokens)

    def end(self, receipt: Receipt) -> bytes:
        proof = {"speed": self._speed, "headway": proof_of(receipt)}
        if self._whole is not None:
            head, fields = self._whole
            return join_object(head, {**fields, "usage": {**fields["usage"], **proof}})
        if self._delta is None:
            return self._closing
        delta = {**self._delta, "usage": {**self._delta["usage"], **proof}}
        return DELTA + b"data: " + _encode(delta) + b"\n\n" + self._closing
