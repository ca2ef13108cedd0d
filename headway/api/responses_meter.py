"""Reads answers of the Responses dialect as they pass.

This dialect has usage only at the end. Before that each delta counts as one token, which is a lower bound if the engine
puts several tokens into one delta, and the prompt counts nothing: an estimate could bill more than the engine read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from headway.api.answers import MAX_COUNT, Count, read_fields
from headway.api.counted_deltas import CountedDeltas
from headway.api.dialect import failure_in_stream
from headway.api.openai_meter import MAX_LOGPROBS_EVENT_BYTES, OpenAIForm
from headway.api.proof import proof_of
from headway.api.utf8 import is_utf8
from headway.sse import EventSplitter, data_of, readable
from headway.wire import GenerationTime, Grant, Receipt, Usage

TOKENS = (
    b"event: response.output_text.delta\n",
    b"event: response.reasoning_text.delta\n",
    b"event: response.function_call_arguments.delta\n",
    b"event: response.custom_tool_call_input.delta\n",
)
OPENINGS = (b"event: response.created\n", b"event: response.in_progress\n")
LAST = b"event: response.completed\n"  # vLLM's only last event, also of an answer that is not complete
ERROR = b"event: error\n"
COMMENT = b":"
ENDINGS = {"completed": "response.completed", "incomplete": "response.incomplete"}

Response = dict[str, Any]  # the fields of a response; those that the gateway does not need are not decoded


class InputDetails(Struct):
    cached_tokens: Count | None = None


class ResponseUsage(Struct):
    input_tokens: Count
    output_tokens: Count
    input_tokens_details: InputDetails | None = None


class RenderedPrompt(Struct):
    """vLLM's answer to a request to render a prompt."""

    token_ids: list[int]


_read_usage = msgspec.json.Decoder(ResponseUsage).decode
_read_rendered = msgspec.json.Decoder(RenderedPrompt).decode
_encode = msgspec.json.Encoder().encode


def event_bytes(event: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


@dataclass(slots=True)
class AnswerSoFar:
    """What of an answer is needed outside of its meter: by an event that reports an error, and to store the answer."""

    response: Response | None = None  # as its first event has it
    events: int = 0
    final: bytes | None = None  # the whole response, once it is complete


@dataclass(frozen=True, slots=True)
class ResponsesForm:
    """The form in which a client of this dialect wants its answer; implements wire.AnswerForm."""

    streaming: bool
    says_priority: bool = False
    max_tokens: int = MAX_COUNT
    previous_response_id: str | None = None
    store: bool = True  # the client lets the response be stored
    items: int = 0  # of the input, as the engine gets it
    so_far: AnswerSoFar = field(default_factory=AnswerSoFar)

    def meter(self, grant: Grant) -> ResponsesMeter:
        return ResponsesMeter(self, grant)

    def told(self, grant: Grant) -> Response:
        """The fields of a response that the engine cannot know."""
        tier = OpenAIForm(says_priority=self.says_priority).service_tier(grant)
        return {"service_tier": tier, "previous_response_id": self.previous_response_id, "store": self.store}


class ResponsesMeter(CountedDeltas):
    __slots__ = (
        "_cached",
        "_engine_speed_tps",
        "_final",
        "_form",
        "_output",
        "_prompt",
        "_sequence_number",
        "_so_far",
        "_splitter",
        "_told",
        "is_complete",
        "is_final",
    )

    has_usage = False

    def __init__(self, form: ResponsesForm, grant: Grant) -> None:
        super().__init__()
        self.is_final = self.is_complete = False
        self._form = form
        self._told = form.told(grant)
        self._so_far = form.so_far
        self._so_far.response, self._so_far.events = None, 0
        self._splitter = EventSplitter(MAX_LOGPROBS_EVENT_BYTES)  # the last event has the whole answer
        self._prompt = self._cached = self._output = 0
        self._final: Response | None = None
        self._sequence_number: Any = 0  # of the last event
        self._engine_speed_tps: float | None = None

    def feed(self, data: bytes, now: float) -> bytes:
        if (
            data.startswith(TOKENS)
            and (tokens := self._splitter.count_alike(data))
            and not self.is_final
            and (data.isascii() or is_utf8(data))
        ):
            self._count_tokens(tokens, now)
            return data
        with readable():
            return b"".join([self._read(event, now) for event in self._splitter.split(data)])

    def _count_tokens(self, tokens: int, now: float) -> None:
        self._count_deltas(tokens, now)
        self._so_far.events += tokens

    def _read(self, event: bytes, now: float) -> bytes:
        if not is_utf8(event):
            raise ValueError("not UTF-8")
        if event.startswith(COMMENT):
            return b"" if self.is_final else event
        if self.is_final:
            raise ValueError("it went on after its end")
        if event.startswith(TOKENS):
            self._count_tokens(1, now)
        elif event.startswith(OPENINGS):
            return self._read_opening(read_fields(data_of(event)))
        elif event.startswith(LAST):
            fields = read_fields(data_of(event))
            self._take_final(dict(read_fields(fields["response"])))
            self._sequence_number = fields["sequence_number"]
            return b""
        elif event.startswith(ERROR) or (payload := data_of(event)).startswith(b'{"error"'):
            raise failure_in_stream(data_of(event), has_begun=self.first_at is not None)
        elif payload:
            self._so_far.events += 1
        return event

    def _read_opening(self, fields: dict[str, Any]) -> bytes:
        response = {**read_fields(fields["response"]), **self._told}
        self._so_far.response = response
        self._so_far.events += 1
        kind = msgspec.json.decode(fields["type"], type=str)
        return event_bytes({"type": kind, "sequence_number": fields["sequence_number"], "response": response})

    def _take_final(self, response: Response) -> None:
        usage = _read_usage(response["usage"])
        cached = (usage.input_tokens_details or InputDetails()).cached_tokens or 0
        if usage.output_tokens > self._form.max_tokens:
            raise ValueError(f"{usage.output_tokens} output tokens, {self._form.max_tokens} were asked for")
        if cached > usage.input_tokens:
            raise ValueError(f"{usage.input_tokens} input tokens, {cached} of them cached")
        self._prompt, self._cached, self._output = usage.input_tokens, cached, usage.output_tokens
        status = msgspec.json.decode(response["status"])
        if status not in ENDINGS:
            raise ValueError(f"it ended as {status!r}")
        usage_shown = msgspec.json.decode(response["usage"])
        self._final = {**response, **self._told, "status": status, "usage": usage_shown}
        self.is_final = self.is_complete = True

    def read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        with readable():
            if not is_utf8(body):
                raise ValueError("not UTF-8")
            fields = dict(read_fields(body))
            metrics = fields.get("metrics")
            timing = {"metrics": msgspec.json.decode(metrics)} if metrics is not None else {}
            took_s = generation_s(timing)
            self._take_final(fields)
            if took_s and self._output > 1:
                self._engine_speed_tps = (self._output - 1) / took_s

    def usage(self) -> Usage:
        if self.is_final:
            return Usage(self._prompt, self._cached, (self._output,))
        return Usage(0, 0, (self._deltas,))

    def speed_tps(self) -> float | None:
        if self._engine_speed_tps is not None:
            return self._engine_speed_tps
        return self._stream_speed_tps(self.usage().output_tokens)

    def end(self, receipt: Receipt) -> bytes:
        if self._final is None:
            return b""
        response = {**self._final, "usage": {**self._final["usage"], "headway": proof_of(receipt)}}
        encoded = self._so_far.final = _encode(response)
        if not self._form.streaming:
            return encoded
        kind = ENDINGS[response["status"]]
        return event_bytes({"type": kind, "sequence_number": self._sequence_number, "response": msgspec.Raw(encoded)})


@dataclass(frozen=True, slots=True)
class InputTokensForm:
    """The number of tokens of a prompt; implements wire.AnswerForm."""

    def meter(self, _grant: Grant) -> InputTokensMeter:
        return InputTokensMeter()


class InputTokensMeter:
    """Counts the tokens of a prompt that the engine has rendered. Nothing is generated, and nothing billed."""

    has_usage = False

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.is_final = self.is_complete = False
        self._tokens = 0

    def feed(self, _data: bytes, _now: float) -> bytes:
        raise AssertionError("a count is not streamed")

    def read_whole(self, body: bytes, _generation_s: GenerationTime) -> None:
        with readable():
            self._tokens = len(_read_rendered(body).token_ids)
        self.is_final = self.is_complete = True

    def usage(self) -> Usage:
        return Usage()

    def speed_tps(self) -> float | None:
        return None

    def end(self, _receipt: Receipt) -> bytes:
        return _encode({"object": "response.input_tokens", "input_tokens": self._tokens})
