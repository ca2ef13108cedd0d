"""Reads answers of the OpenAI dialect as they pass.

engines/vllm.py asks the engine for usage with every token, so that the count is exact wherever a stream is cut. The
meter removes the usage that the client did not ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headway.api.dialect import engine_error
from headway.api.proof import proof_of
from headway.api.sse import EventSplitter, data_of, readable
from headway.core.types import MIN_TOKENS_FOR_PROMISE
from headway.errors import EngineLost
from headway.wire import GenerationTime, Grant, Receipt, Usage, stream_speed_tps

CLOSING_BRACE = ord("}")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OpenAIForm:
    """The form in which a client of this dialect wants its answer; implements wire.AnswerForm."""

    wants_usage: bool = False
    wants_continuous_usage: bool = False
    says_priority: bool = False
    choices: int = 1

    def meter(self, grant: Grant) -> OpenAIMeter:
        return OpenAIMeter(self, grant)

    def service_tier(self, grant: Grant) -> str:
        """The tier served, under its name in this dialect. A client that asked for `priority` gets that name back."""
        if grant.tier == "standard":
            return "default"
        return "priority" if grant.tier == "fast" and self.says_priority else grant.tier


class OpenAIMeter:
    """Nearly every event is a token with its usage as the last key. The meter cuts that usage by position, and parses
    such an event only if it turns out to be the last. It parses all other events: the first, the last, those of several
    choices, and those that arrive in pieces."""

    __slots__ = (
        "_choices",
        "_closing",
        "_engine_speed_tps",
        "_form",
        "_is_single",
        "_last",
        "_splitter",
        "_tier",
        "_total",
        "_usage",
        "_wants_all",
        "answer",
        "first_at",
        "is_complete",
        "is_final",
        "last_at",
    )

    def __init__(self, form: OpenAIForm, grant: Grant) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.is_final = self.is_complete = False
        self._form = form
        self._tier = form.service_tier(grant)
        self._wants_all = form.wants_continuous_usage
        self._is_single = form.choices == 1
        self._splitter = EventSplitter()
        self._last = b""  # event of the newest token, if its usage has not been parsed
        self._usage: dict[str, Any] = {}  # the newest usage that was parsed
        self._total: int | None = None  # output tokens in the engine's last usage
        self._choices = [_Choice() for _ in range(form.choices)]
        self._engine_speed_tps: float | None = None
        self._closing: dict[str, Any] | None = None  # the event with the last usage
        self.answer: dict[str, Any] | None = None  # an answer that came in one piece

    def feed(self, data: bytes, now: float) -> bytes:
        # One line and one event: the JSON contains no newline. (Finding one byte takes a third of the time of two.)
        if (
            self._is_single
            and self.first_at is not None
            and not self._splitter.rest
            and data.find(b"\n") == len(data) - 2
        ):
            start = data.rfind(b',"usage":{')
            # True only if the usage object is flat, ends the event (`...}}\n\n`) and follows a token.
            if start > 0 and data.find(b"}", start) == len(data) - 4 and data[start - 2] == CLOSING_BRACE:
                self.last_at = now
                self._last = data
                return data if self._wants_all else data[:start] + b"}\n\n"
        with readable():
            return b"".join([self._parse(event, now) for event in self._splitter.split(data)])

    def _parse(self, event: bytes, now: float) -> bytes:
        payload = data_of(event)
        if payload == b"[DONE]":
            self.is_final = self.is_complete = True
            return b""  # `end` writes it
        if not payload.startswith(b"{"):
            return event  # a comment: vLLM can send them to keep a connection alive
        chunk = msgspec.json.decode(payload)
        if "error" in chunk:
            raise EngineLost(f"the engine failed during its answer: {engine_error(payload).get('message')}")
        usage = chunk.get("usage")
        if not chunk.get("choices"):
            return self._take_last_usage(chunk, usage) if usage else event
        index = chunk["choices"][0].get("index", 0)
        choice = self._choices[index if index < len(self._choices) else 0]
        choice.saw_token(usage, now)
        if usage:
            self._usage, self._last = usage, b""
        self.last_at = now
        if self.first_at is None:
            self.first_at = now
            chunk["service_tier"] = self._tier
        if usage and not self._wants_all:
            del chunk["usage"]
        return b"data: " + _encode(chunk) + b"\n\n"

    def _take_last_usage(self, chunk: dict[str, Any], usage: dict[str, Any]) -> bytes:
        self._usage, self._last = usage, b""
        self._total = usage.get("completion_tokens") or 0
        self._closing = chunk
        self.is_final = True
        return b""

    def read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        with readable():
            self._read_whole(body, generation_s)

    def _read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        self.answer = answer = msgspec.json.decode(body)
        self._usage = answer.get("usage") or {}
        self._total = self._usage.get("completion_tokens") or 0
        self.is_final = self.is_complete = True
        # Nothing was streamed, so the engine's own timing is used. For several choices only the mean is known.
        took_s, tokens = generation_s(answer), self._total / len(self._choices)
        if took_s and tokens > 1:
            self._engine_speed_tps = (tokens - 1) / took_s

    def usage(self) -> Usage:
        if self._last:
            self._usage, self._last = msgspec.json.decode(data_of(self._last))["usage"], b""
            self._choices[0].tokens = self._usage["completion_tokens"]
        outputs = tuple(choice.tokens for choice in self._choices)
        if self._total is not None and self._total != sum(outputs):
            outputs = (self._total,)
        details = self._usage.get("prompt_tokens_details") or {}
        return Usage(self._usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0, outputs)

    def speed_tps(self) -> float | None:
        if self._engine_speed_tps is not None:
            return self._engine_speed_tps
        usage = self.usage()
        if self._is_single:
            return stream_speed_tps(usage.output_tokens, self.first_at, self.last_at)
        speeds = [(choice.tokens, choice.speed_tps()) for choice in self._choices]
        known = [(tokens, speed) for tokens, speed in speeds if speed is not None]
        # Choices too short for a promise are ignored, unless all choices are.
        long = [speed for tokens, speed in known if tokens >= MIN_TOKENS_FOR_PROMISE]
        return min(long or [speed for _, speed in known], default=None)

    def end(self, receipt: Receipt) -> bytes:
        proof = proof_of(receipt)
        if self.answer is not None:
            usage = {**(self.answer.get("usage") or {}), "headway": proof}
            return _encode({**self.answer, "service_tier": self._tier, "usage": usage})
        done = b"data: [DONE]\n\n"
        if self._closing is None or not self._form.wants_usage:
            return done
        usage = {**self._closing["usage"], "headway": proof}
        return b"data: " + _encode({**self._closing, "service_tier": self._tier, "usage": usage}) + b"\n\n" + done


@dataclass(slots=True)
class _Choice:
    """One choice of an answer, as far as it was read."""

    tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None

    def saw_token(self, usage: dict[str, Any] | None, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        # A token's usage counts this choice alone. Without usage, each event counts as one token.
        self.tokens = (usage.get("completion_tokens") or 0) if usage else self.tokens + 1

    def speed_tps(self) -> float | None:
        return stream_speed_tps(self.tokens, self.first_at, self.last_at)
