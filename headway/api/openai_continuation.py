"""Goes on with a stream of the OpenAI dialect at another engine.

    first engine ──────────────────────► OpenAIMeter ──► client
    next engine ──► ContinuedMeter ──► the same OpenAIMeter ──► client

The next engine gets the ids of the prompt and of the answer so far as the prompt of a completion, so nothing is
tokenized or rendered again. ContinuedMeter rewrites its events to those that the first engine would have sent: the same
id and dialect, and counts that go on. So the client, the bill and the proof see one stream.

vLLM decodes the new tokens in the context of the prompt, so a character that is split between two tokens comes out
whole. Text that may be the beginning of a stop string is held back; what the first engine held back is decoded from the
ids, and stop strings are searched from there on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from headway.api.answers import Count
from headway.api.stop_strings import StopStrings
from headway.api.stream_record import StreamRecord
from headway.errors import CannotContinue, EngineLost
from headway.sse import EventSplitter, data_of, readable
from headway.wire import AnswerOver, ChatSoFar, GenerationTime, Grant, Meter, Receipt, Request, Seam, Usage

COMPLETIONS = "/v1/completions"
DEFAULT_MAX_TOKENS = 16  # of a completion, in this dialect
# Fields that say how the next token is chosen. All others are about the prompt, or are set here.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "logit_bias",
    "ignore_eos",
    "stop_token_ids",
    "skip_special_tokens",
)
DONE = b"data: [DONE]\n\n"

_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_ids = msgspec.json.Decoder(tuple[int, ...]).decode
_encode = msgspec.json.Encoder().encode


class RecordedMeter(Meter, Protocol):
    record: StreamRecord | None
    repeated_tokens: int
    has_finished: bool

    @property
    def prompt_ids(self) -> bytes: ...

    def goes_on(self, grant: Grant) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenAISeam:
    """Implements wire.Seam."""

    asked: Request
    stops: tuple[str, ...]
    inner: RecordedMeter
    record: StreamRecord
    pieces: tuple[bytes, ...]  # the ids of each event of the answer, as JSON numbers with commas between them
    ids: bytes  # all of them
    prompt_tokens: int
    tokens: int
    is_over: bool

    @property
    def decoded(self) -> tuple[int, ...]:
        return _read_ids(b"[" + self.ids + b"]") if self.stops else ()

    def request(self, max_model_len: int | None) -> Request | None:
        asked = self.asked
        limit = asked.max_output_tokens
        if limit is None and asked.path == COMPLETIONS:
            limit = DEFAULT_MAX_TOKENS
        elif limit is None and max_model_len is not None:
            limit = max_model_len - self.prompt_tokens
        if limit is None or limit <= self.tokens:
            return None
        fields = _read_fields(asked.body)
        body: dict[str, Any] = {name: fields[name] for name in ("model", *SAMPLING) if name in fields}
        body["prompt"] = Raw(b"[" + b",".join(filter(None, (self.record.prompt_ids, self.ids))) + b"]")
        body["stream"], body["max_tokens"] = True, limit - self.tokens
        if (least := fields.get("min_tokens")) is not None:
            body["min_tokens"] = max(0, int(msgspec.json.decode(least)) - self.tokens)
        so_far = None
        if asked.path != COMPLETIONS:
            so_far = ChatSoFar(asked.body, self.record.prompt_ids, self.pieces, tuple(self.record.tool_call_ids))
        left = limit - self.tokens
        return replace(asked, path=COMPLETIONS, body=_encode(body), max_output_tokens=left, so_far=so_far)

    def meter(self, grant: Grant, text: str) -> Meter:
        held = ""
        if self.stops:
            delivered = self.record.text()
            if not text.startswith(delivered):
                raise CannotContinue("another engine decodes the answer so far to another text")
            held = text[len(delivered) :]
        self.inner.goes_on(grant)
        return ContinuedMeter(self, StopStrings(self.stops, held))

    def closing(self) -> bytes:
        return self.event({"choices": [], "usage": self.usage(self.tokens, 0)}) + DONE

    def event(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + _encode({**self.record.opening, **fields}) + b"\n\n"

    def usage(self, tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
        """Of the whole answer, which has so many tokens now. Of the tokens that the first engine found in its cache
        nothing is known: it says so only at the end. Those that the next engine found are taken instead."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
        }
        if cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": min(cached_tokens, self.prompt_tokens)}
        return usage


def seam_of(inner: RecordedMeter, stops: tuple[str, ...], asked: Request) -> Seam | None:
    """Parsers of an engine can hide ids: what is kept must be as much as the engine has counted."""
    record, usage = inner.record, inner.usage()
    if record is None or not record.is_whole or not record.opening:
        return None
    try:
        pieces = tuple(record.ids)
    except ValueError:
        return None
    ids = b",".join(pieces)
    is_counted = _count(record.prompt_ids) == usage.prompt_tokens and _count(ids) == usage.output_tokens
    if not is_counted or not usage.prompt_tokens:
        return None
    tokens, is_over = usage.output_tokens, inner.has_finished
    return OpenAISeam(asked, stops, inner, record, pieces, ids, usage.prompt_tokens, tokens, is_over)


def _count(ids: bytes) -> int:
    return ids.count(b",") + 1 if ids else 0


class FoundInCache(Struct):
    cached_tokens: Count | None = None


class NextUsage(Struct):
    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: FoundInCache | None = None


class NextChoice(Struct):
    text: str = ""
    delta: Raw | UnsetType = UNSET  # if the engine has parsed it
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class NextEvent(Struct):
    error: Raw | None = None
    choices: list[NextChoice] | None = None
    usage: NextUsage | None = None


_read_event = msgspec.json.Decoder(NextEvent).decode


class ContinuedMeter:
    """Implements wire.Meter for what comes after a seam."""

    def __init__(self, seam: OpenAISeam, stops: StopStrings) -> None:
        self._seam = seam
        self._inner = seam.inner
        self._stops = stops
        self._is_chat = seam.asked.path != COMPLETIONS
        self._splitter = EventSplitter()
        self._tokens = 0  # of the next engine
        self._is_stopped = False  # by a stop string
        # Until the engine says how much of it it found in its cache.
        self.repeated_tokens = self._inner.repeated_tokens + seam.prompt_tokens + seam.tokens

    first_at = property(lambda self: self._inner.first_at)
    last_at = property(lambda self: self._inner.last_at)
    has_usage = property(lambda self: self._inner.has_usage)
    is_final = property(lambda self: self._inner.is_final)
    is_complete = property(lambda self: self._inner.is_complete)

    @property
    def prompt_ids(self) -> bytes:
        return self._inner.prompt_ids

    def feed(self, data: bytes, now: float) -> bytes:
        if self._is_stopped:
            raise AnswerOver
        with readable():
            events = b"".join([self._rewritten(event) for event in self._splitter.split(data)])
        return self._inner.feed(events, now)

    def _rewritten(self, event: bytes) -> bytes:
        payload = data_of(event)
        if self._is_stopped:
            return b""
        if not payload or payload == b"[DONE]":
            return event
        told = _read_event(payload)
        if told.error is not None:
            return event  # which ends the stream, or has it go on at yet another engine
        if not told.choices:
            return self._last_usage(told.usage) if told.usage is not None else b""
        return self._token(told.choices[0], told.usage)

    def _token(self, choice: NextChoice, usage: NextUsage | None) -> bytes:
        if usage is None or choice.token_ids is None:
            raise ValueError("no usage or no ids")
        self._check(usage)
        self._tokens = usage.completion_tokens
        shown, stop = self._stops.add(choice.text, is_last=choice.finish_reason is not None)
        finish_reason, stop_reason = choice.finish_reason, choice.stop_reason
        if stop is not None:
            finish_reason, stop_reason, self._is_stopped = "stop", stop, True
        text: dict[str, Any] = {"text": shown}
        if self._is_chat:
            text = {"delta": {"content": shown} if choice.delta is UNSET else choice.delta}
        end: dict[str, Any] = {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason is not None or not self._is_chat:
            end["stop_reason"] = stop_reason
        if not self._is_chat:
            end["prompt_token_ids"] = None
        tokens = self._seam.tokens + self._tokens
        # As vLLM writes it: the ids come last in a choice, and the usage last in the event.
        told = {"index": 0, **text, **end, "token_ids": choice.token_ids}
        event = self._seam.event({"choices": [told], "usage": self._seam.usage(tokens)})
        if stop is not None:
            event += self._seam.event({"choices": [], "usage": self._seam.usage(tokens, 0)}) + DONE
        return event

    def _last_usage(self, usage: NextUsage) -> bytes:
        self._check(usage)
        cached = (usage.prompt_tokens_details or FoundInCache()).cached_tokens or 0
        self.repeated_tokens -= min(cached, usage.prompt_tokens)
        return self._seam.event({"choices": [], "usage": self._seam.usage(self._seam.tokens + self._tokens, cached)})

    def _check(self, usage: NextUsage) -> None:
        if usage.prompt_tokens != self._seam.prompt_tokens + self._seam.tokens:
            raise ValueError(f"{usage.prompt_tokens} prompt tokens are not those of the answer so far")
        if usage.completion_tokens < self._tokens:
            raise ValueError(f"{usage.completion_tokens} output tokens after {self._tokens}")

    def read_whole(self, _body: bytes, _generation_s: GenerationTime) -> None:
        raise EngineLost("the engine did not stream")

    def usage(self) -> Usage:
        return self._inner.usage()

    def speed_tps(self) -> float | None:
        return self._inner.speed_tps()

    def end(self, receipt: Receipt) -> bytes:
        return self._inner.end(receipt)

    def seam(self, request: Request) -> Seam | None:  # noqa: ARG002 (that of the first engine)
        seam = seam_of(self._inner, self._seam.stops, self._seam.asked)
        self._inner.repeated_tokens = self.repeated_tokens
        return seam
