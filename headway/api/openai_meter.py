"""Reads answers of the OpenAI dialect as they pass.

engines/vllm.py asks the engine for usage with every token, so that the count is exact wherever a stream is cut. The
meter removes the usage that the client did not ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.api.answers import MAX_COUNT, Count, Fields, cut_object, join_object, read_fields
from headway.api.collect_stream import AnswerCollector
from headway.api.dialect import failure_in_stream
from headway.api.limits import AnyObject
from headway.api.openai_continuation import seam_of
from headway.api.proof import proof_of
from headway.api.stream_record import StreamRecord
from headway.api.utf8 import is_utf8
from headway.core.types import MIN_TOKENS_FOR_PROMISE
from headway.errors import EngineLost
from headway.sse import MAX_EVENT_BYTES, EventSplitter, data_of, readable
from headway.wire import GenerationTime, Grant, Receipt, Request, Seam, Usage, stream_speed_tps

USAGE_AFTER_TOKEN = b'}],"usage":{'
# A token's usage that is flat and ends its event. To look for two bytes (`[^}\n]`) would take twice the time.
_split_at_usages = re.compile(rb'\}\],"usage":\{[^}]*\}\}\n\n').split

# An event of a client that reads slowly has many tokens, each with the log-probabilities that it asked for
# (api/limits.py bounds them).
MAX_LOGPROBS_EVENT_BYTES = 4 * MAX_EVENT_BYTES


class PromptDetails(Struct):
    cached_tokens: Count | None = None


class CompletionUsage(Struct):
    """The counts of a usage object. Fields that are not counted are not decoded."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: PromptDetails | None = None


class ChoiceHead(Struct):
    """What the meter reads of a choice, in a stream or in a whole answer."""

    index: Count = 0
    delta: AnyObject | UnsetType = UNSET
    text: str | UnsetType = UNSET
    finish_reason: str | None = None


class TokenEnd(Struct):
    finish_reason: str | None = None


class CountedToken(Struct):
    usage: CompletionUsage
    choices: list[TokenEnd] = []


_read_usage = msgspec.json.Decoder(CompletionUsage | None).decode
_read_choices = msgspec.json.Decoder(list[ChoiceHead]).decode
_read_token = msgspec.json.Decoder(CountedToken).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OpenAIForm:
    """The form in which a client of this dialect wants its answer; implements wire.AnswerForm."""

    wants_usage: bool = False
    wants_continuous_usage: bool = False
    says_priority: bool = False
    choices: int = 1
    max_tokens: int = MAX_COUNT  # of each choice
    wants_logprobs: bool = False
    collects: bool = False  # the client wants the answer in one piece, also if the engine streams it
    is_continuable: bool = False  # what another engine needs to go on with the stream is kept
    stops: tuple[str, ...] = ()  # strings that end the answer
    has_tools: bool = False

    def meter(self, grant: Grant) -> OpenAIMeter:
        return OpenAIMeter(self, grant)

    def service_tier(self, grant: Grant) -> str:
        """The tier served, under its name in this dialect. A client that asked for `priority` gets that name back."""
        if grant.tier == "standard":
            return "default"
        return "priority" if grant.tier == "fast" and self.says_priority else grant.tier


class OpenAIMeter:
    """Nearly every event is a token with its usage as the last key. The meter cuts that usage by position, of all such
    events of a read at once, and parses such an event only if it turns out to be the last. It parses all other events:
    the first, the last, and those of several choices."""

    __slots__ = (
        "_cached",
        "_choices",
        "_closing",
        "_collector",
        "_engine_speed_tps",
        "_fault",
        "_first_tokens",
        "_form",
        "_is_fast",
        "_last",
        "_prompt",
        "_splitter",
        "_tier",
        "_total",
        "_wants_all",
        "_whole",
        "first_at",
        "has_finished",
        "has_usage",
        "is_complete",
        "is_final",
        "last_at",
        "record",
        "repeated_tokens",
    )

    def __init__(self, form: OpenAIForm, grant: Grant) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.is_final = self.is_complete = False
        self.repeated_tokens = 0
        self.has_finished = False  # the engine has said that its last token was generated
        self.record = None
        if form.is_continuable:
            self.record = StreamRecord(keeps_text=bool(form.stops), has_tools=form.has_tools)
        self._form = form
        self._tier = form.service_tier(grant)
        self._wants_all = form.wants_continuous_usage
        self._is_fast = False  # the next event may be cut by position
        self._collector = AnswerCollector(form.choices) if form.collects else None
        self._splitter = EventSplitter(MAX_LOGPROBS_EVENT_BYTES if form.wants_logprobs else MAX_EVENT_BYTES)
        self._last = b""  # event of the newest token, if its usage has not been parsed
        self._prompt = self._cached = 0
        self.has_usage = False  # some usage was read
        self._total: int | None = None  # output tokens in the engine's last usage
        self._choices = [_Choice() for _ in range(form.choices)]
        self._first_tokens = 0
        self._engine_speed_tps: float | None = None
        self._fault: EngineLost | None = None  # found in a usage that has passed already
        # The event with the last usage, and an answer in one piece, as cut by `cut_object`. Usage is decoded.
        self._closing: dict[str, Any] | None = None
        self._whole: tuple[bytes, dict[str, Any]] | None = None

    def feed(self, data: bytes, now: float) -> bytes:
        if self._is_fast and not self._splitter.rest and (data.isascii() or is_utf8(data)):
            # One line and one event: the JSON contains no newline. (Finding one byte takes a third of the time of two.)
            if data.find(b"\n") == len(data) - 2:
                start = data.rfind(USAGE_AFTER_TOKEN)
                # True only if the usage object is flat, ends the event (`...}}\n\n`) and follows a token.
                if start > 0 and data.find(b"}", start + 1) == len(data) - 4:
                    self.last_at = now
                    self._last = data
                    if self.record is not None:
                        return self.record.cut_one(data, start) or self._without_ids(data)
                    return data if self._wants_all else data[: start + 2] + b"}\n\n"
            elif shown := self._cut(data, now):
                return shown
        self._read_last()  # what follows must not count less
        with readable():
            shown = b"".join([self._read(event, now) for event in self._splitter.split(data)])
        if now == self.first_at:
            self._first_tokens = self.usage().output_tokens
        return shown

    def _cut(self, data: bytes, now: float) -> bytes:
        """Cut the usages of several tokens, or one. Returns b"" if `data` is anything but their complete events."""
        if self.record is not None:
            if shown := self.record.cut_all(data):
                self.last_at, self._last = now, data[data.rfind(b"\n", 0, -2) + 1 :]
            return shown
        parts = _split_at_usages(data)
        # Each event has one line, and ends with its usage.
        if not data or parts[-1] or data.count(b"\n") != 2 * (len(parts) - 1):
            return b""
        self.last_at, self._last = now, data[data.rfind(b"\n", 0, -2) + 1 :]
        return data if self._wants_all else b"}]}\n\n".join(parts)

    def _read(self, event: bytes, now: float) -> bytes:
        if self._is_fast and is_utf8(event) and (shown := self._cut(event, now)):
            return shown
        return self._parse(event, now)

    def _parse(self, event: bytes, now: float) -> bytes:
        payload = data_of(event)
        if self._fault is not None:
            raise self._fault
        if self.is_complete or not is_utf8(event):
            raise ValueError("it went on after its end" if self.is_complete else "not UTF-8")
        if payload == b"[DONE]":
            self._read_last()
            if not self.has_usage:
                raise ValueError("no usage")
            if self._collector is not None:
                self._whole = b"", self._collector.whole(self._closing or {})
            self.is_final = self.is_complete = True
            self._is_fast = False
            return b""  # `end` writes it
        if not payload:
            return event  # a comment: vLLM can send them to keep a connection alive
        return self._read_chunk(event, payload, now)

    def _read_chunk(self, event: bytes, payload: bytes, now: float) -> bytes:
        # The index of a large event's choice is in the part that is not read, so with several choices all is read.
        is_all_read = self._form.choices > 1 or self._collector is not None
        is_read_here = is_all_read or self.record is not None
        head, fields = (b"", read_fields(payload)) if is_read_here else cut_object(payload)
        if "error" in fields:
            raise failure_in_stream(payload, has_begun=self.first_at is not None)
        usage = _read_usage(fields["usage"]) if "usage" in fields else None
        choices = [ChoiceHead()] if head else self._choices_of(fields)
        if not choices:
            return self._take_last_usage(fields, usage) if usage else event
        if usage:
            self._take_usage(usage)
            self._last = b""
        if self.record is not None:
            fields = self.record.cut_parsed(fields)
            event = b"data: " + _encode(fields) + b"\n\n"
        self.has_finished = self.has_finished or choices[0].finish_reason is not None
        self._choices[choices[0].index].saw_token(usage, now)
        is_first = self.first_at is None
        self.last_at = now
        if is_first:
            self.first_at = now
            self._is_fast = not is_all_read
        if self._collector is not None:
            self._collector.add(payload)
            return b""
        if not is_first and (not usage or self._wants_all):
            return event
        shown: dict[str, Any] = dict(fields)
        if is_first:
            shown["service_tier"] = self._tier
        if usage and not self._wants_all:
            del shown["usage"]
        return b"data: " + join_object(head, shown) + b"\n\n"

    def _choices_of(self, fields: Fields) -> list[ChoiceHead]:
        choices = _read_choices(fields["choices"]) if "choices" in fields else []
        if any(choice.index >= len(self._choices) for choice in choices):
            raise ValueError("a choice that was not asked for")
        return choices

    def _take_usage(self, usage: CompletionUsage) -> None:
        if usage.completion_tokens > self._form.max_tokens * self._form.choices:
            raise ValueError(f"{usage.completion_tokens} output tokens, {self._form.max_tokens} were asked for")
        cached = (usage.prompt_tokens_details or PromptDetails()).cached_tokens or 0
        if not cached <= usage.prompt_tokens >= self._prompt:
            raise ValueError(f"{usage.prompt_tokens} prompt tokens after {self._prompt}, {cached} of them cached")
        self._prompt, self._cached, self.has_usage = usage.prompt_tokens, cached, True

    def _take_last_usage(self, fields: Fields, usage: CompletionUsage) -> bytes:
        self._read_last()
        self._take_total(usage)
        self._closing = {**fields, "usage": msgspec.json.decode(fields["usage"])}
        self.is_final = True
        return b""

    def _take_total(self, usage: CompletionUsage) -> None:
        counted = max(self._total or 0, sum(choice.counted for choice in self._choices))
        if usage.completion_tokens < counted:
            raise ValueError(f"{usage.completion_tokens} output tokens after {counted}")
        self._take_usage(usage)
        self._total = usage.completion_tokens

    def _read_last(self) -> None:
        """Read the usage of the newest token, if it was cut by position."""
        if self._last:
            last, self._last = self._last, b""
            with readable():
                token = _read_token(data_of(last))
                self._take_usage(token.usage)
                self._choices[0].count(token.usage)
                self.has_finished = self.has_finished or any(one.finish_reason for one in token.choices)

    def _without_ids(self, data: bytes) -> bytes:
        """An event that has no ids: the stream cannot go on elsewhere. Returns what the client gets of it."""
        self.record = None
        return data[: data.rfind(USAGE_AFTER_TOKEN) + 2] + b"}\n\n"

    @property
    def prompt_ids(self) -> bytes:
        return self.record.prompt_ids if self.record is not None else b""

    def seam(self, request: Request) -> Seam | None:
        return seam_of(self, self._form.stops, request)

    def goes_on(self, grant: Grant) -> None:
        """At another engine."""
        self._tier = self._form.service_tier(grant)

    def read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        with readable():
            self._read_whole(body, generation_s)

    def _read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        if not is_utf8(body):
            raise ValueError("not UTF-8")
        head, fields = cut_object(body)
        self._choices_of(fields)
        if (usage := _read_usage(fields["usage"])) is None:
            raise ValueError("no usage")
        self._take_total(usage)
        others = {name: msgspec.json.decode(value) for name, value in fields.items() if name != "choices"}
        self._whole = head, {**fields, "usage": others["usage"]}
        self.is_final = self.is_complete = True
        # Nothing was streamed, so the engine's own timing is used. For several choices only the mean is known.
        took_s, tokens = generation_s(others), usage.completion_tokens / len(self._choices)
        if took_s and tokens > 1:
            self._engine_speed_tps = (tokens - 1) / took_s

    def usage(self) -> Usage:
        try:
            self._read_last()
        except EngineLost as fault:  # not the caller's concern: the next piece of the stream raises it
            self._fault, self._is_fast = fault, False
        outputs = tuple(choice.tokens for choice in self._choices)
        if self._total is not None and self._total != sum(outputs):
            outputs = (self._total,)
        return Usage(self._prompt, self._cached, outputs)

    def speed_tps(self) -> float | None:
        if self._engine_speed_tps is not None:
            return self._engine_speed_tps
        usage = self.usage()
        if self._form.choices == 1:
            return stream_speed_tps(usage.output_tokens, self.first_at, self.last_at, self._first_tokens)
        speeds = [(choice.tokens, choice.speed_tps()) for choice in self._choices]
        known = [(tokens, speed) for tokens, speed in speeds if speed is not None]
        # Choices too short for a promise are ignored, unless all choices are.
        long = [speed for tokens, speed in known if tokens >= MIN_TOKENS_FOR_PROMISE]
        return min(long or [speed for _, speed in known], default=None)

    def end(self, receipt: Receipt) -> bytes:
        proof = proof_of(receipt)
        if self._whole is not None:
            head, fields = self._whole
            return join_object(head, self._with_proof(fields, proof))
        done = b"data: [DONE]\n\n"
        if self._closing is None or not self._form.wants_usage:
            return done
        return b"data: " + _encode(self._with_proof(self._closing, proof)) + b"\n\n" + done

    def _with_proof(self, fields: dict[str, Any], proof: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "service_tier": self._tier, "usage": {**fields["usage"], "headway": proof}}


@dataclass(slots=True)
class _Choice:
    """One choice of an answer, as far as it was read."""

    tokens: int = 0
    counted: int = 0  # as in its last usage
    first_at: float | None = None
    last_at: float | None = None
    first_tokens: int = 0

    def saw_token(self, usage: CompletionUsage | None, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        # A token's usage counts this choice alone. Without usage, each event counts as one token.
        if usage:
            self.count(usage)
        else:
            self.tokens += 1
        if now == self.first_at:
            self.first_tokens = self.tokens

    def count(self, usage: CompletionUsage) -> None:
        if usage.completion_tokens < self.counted:
            raise ValueError(f"{usage.completion_tokens} output tokens after {self.counted}")
        self.tokens = self.counted = usage.completion_tokens

    def speed_tps(self) -> float | None:
        return stream_speed_tps(self.tokens, self.first_at, self.last_at, self.first_tokens)
