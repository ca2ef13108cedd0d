"""The parsers that read what others send, and what must hold of each for any input.

`check(data, shape)` raises if it does not hold. `shape` selects the form of the answer and where the network splits it,
so an input and a number make a failure again.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headway.api import anthropic, openai, responses
from headway.api.dialect import Dialect
from headway.api.utf8 import is_utf8
from headway.core.types import EXPRESS, Tier
from headway.engines.vllm import VLLMEngine
from headway.errors import EngineFailed, EngineLost, InvalidRequest
from headway.gateway.billing import make_receipt
from headway.ledger.spool import Spool
from headway.price import Price
from headway.sse import SHORT_EVENTS, EventSplitter
from headway.wire import AnswerForm, AnswerOver, Collect, ContinuableMeter, Grant, Meter, Usage
from runs.hostile import corpus
from runs.hostile.mutate import Mutator

MAX_COUNT = 2**31 - 1
MAX_TOKENS = 2**20
CPU_S, CPU_S_PER_BYTE = 0.005, 0.050 / 2**20
LOOK_CLOSELY_AT = 16  # one input in so many is compared event by event, or field by field
LINES_AT_ONCE = 64
LARGE_BYTES = 64 * 1024
GOOD = "good-"
# What only Headway reads.
SET_BY_US = "request_id"  # in requests of the Responses dialect
TOKEN_IDS = re.compile(rb'"(token_ids|prompt_token_ids)":\[[^\]]*\]')
NOT_FOR_ENGINES = {"service_tier", "stream_options", "prompt_cache_key", "speed"}


class Broken(Exception):
    """Something that must hold does not."""


class Target(Protocol):
    name: str
    inputs_at_once: int  # in one `data`
    well_formed: Sequence[bytes]

    def maker(self, seed: int) -> Callable[[], bytes]:
        """Makes hostile inputs."""

    def large(self) -> Sequence[bytes]:
        """Inputs of a megabyte and more: a parser that is slow for its size shows it here."""

    def check(self, data: bytes, shape: int) -> None: ...


def within_time(target: Target, data: bytes, shape: int) -> None:
    """Check the input, and the CPU time that it takes. What took long is timed again, because the machine is shared."""
    began = time.perf_counter()
    target.check(data, shape)
    limit_s = CPU_S + CPU_S_PER_BYTE * len(data)
    if time.perf_counter() - began <= limit_s or target.inputs_at_once > 1:
        return
    took_s = 0.0
    for _ in range(3):
        if took_s > 5 * limit_s:
            break
        began = time.thread_time()
        target.check(data, shape)
        took_s = time.thread_time() - began
        if took_s <= limit_s:
            return
    raise Broken("takes too much CPU time for its size")


def pieces(data: bytes, shape: int) -> list[bytes]:
    """Split as a network may: by events as the engine writes them, at up to three places, not at all, or so that many
    small pieces come first. Of a large input all pieces are small."""
    kind, shape = shape & 7, shape >> 3
    if kind < 4 and data.count(b"\n\n") < 1_000:
        events = data.split(b"\n\n")
        return [*[event + b"\n\n" for event in events[:-1]], *([events[-1]] if events[-1] else [])]
    if kind <= 4 or not data:
        return [data]
    if kind == 5:
        size = 1 + shape % 29 if len(data) < LARGE_BYTES else LARGE_BYTES // 64
        end = 16 * size if len(data) < LARGE_BYTES else len(data)
        return [*[data[at : at + size] for at in range(0, end, size)], data[end:]]
    places = sorted({(shape * factor >> 4) % len(data) for factor in (1, 2_654_435_761, 40_503)[: kind - 4]} - {0})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# --- meters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a client asked for an answer."""

    form: AnswerForm
    grant: Grant
    streaming: bool
    collect: Collect  # whether the engine may stream what the client gets in one piece


def _asked(dialect: Dialect, path: str, tier: Tier, body: dict[str, Any]) -> _Asked:
    [read] = [route.read for route in dialect.ROUTES if route.path == path]
    request = read(msgspec.json.encode({"model": "m", "max_tokens": 9, **body}), "call-1")
    price = Price(150_000, 600_000, 2_000 if tier in EXPRESS else 1_000)
    grant = Grant(tier, tier, "r0", floor_tps=5.0 if tier in EXPRESS else 0.0, price=price)
    return _Asked(request.form, grant, request.streaming, request.collect)


_MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
_WITH_USAGE = {"include_usage": True}
_ALL_USAGE = {"include_usage": True, "continuous_usage_stats": True}
_CHAT, _MESSAGE = "/v1/chat/completions", "/v1/messages"

OPENAI_ASKED = (
    _asked(openai, _CHAT, "standard", {**_MESSAGES, "stream": True}),
    _asked(openai, _CHAT, "fast", {**_MESSAGES, "stream": True, "stream_options": _WITH_USAGE, "service_tier": "fast"}),
    _asked(openai, _CHAT, "standard", {**_MESSAGES, "stream": True, "stream_options": _ALL_USAGE}),
    _asked(openai, _CHAT, "standard", {**_MESSAGES, "stream": True, "n": 2, "stream_options": _WITH_USAGE}),
    _asked(openai, _CHAT, "standard", _MESSAGES),
    _asked(openai, _CHAT, "fast", {**_MESSAGES, "n": 2, "service_tier": "priority"}),
)
ANTHROPIC_ASKED = (
    _asked(anthropic, _MESSAGE, "standard", {**_MESSAGES, "stream": True}),
    _asked(anthropic, _MESSAGE, "fast", {**_MESSAGES, "stream": True, "speed": "fast"}),
    _asked(anthropic, _MESSAGE, "fast", {**_MESSAGES, "speed": "fast"}),
    _asked(anthropic, _MESSAGE, "standard", _MESSAGES),
)
_generation_s = VLLMEngine("r0", "http://127.0.0.1:1", "m").generation_s


class MeterTarget:
    """An engine's answer. Whatever it is, the meter reads it or raises EngineFailed, and can say what it counted."""

    inputs_at_once = 1

    def __init__(self, name: str, asked: Sequence[_Asked], streams: Sequence[bytes], wholes: Sequence[bytes]) -> None:
        self.name = name
        self._streaming = [one for one in asked if one.streaming]
        self._all = list(asked)
        self.well_formed: Sequence[bytes] = [*streams, *wholes]

    def maker(self, seed: int) -> Callable[[], bytes]:
        return Mutator(self.well_formed, seed).next

    def large(self) -> Sequence[bytes]:
        stream = self.well_formed[2]
        first, _, rest = stream.partition(b"\n\n")
        name = b"event: content_block_delta\n" if first.startswith(b"event") else b""
        before = first + b"\n\n" + name + b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"x":'
        after = b"}\n\n" + rest
        middles = (b'"' + b"x" * 2**20 + b'"', b"[" + b"1," * 2**19 + b"1]", b"[" * 2**20, b"7" * 2**20)
        return [before + middle + after for middle in middles] + [first + b"\n" * 2**20 + rest]

    def check(self, data: bytes, shape: int) -> None:
        is_whole = data.startswith(b"{")
        asked = self._all[shape % len(self._all)] if is_whole else self._streaming[shape % len(self._streaming)]
        if not is_whole and shape & 0xF000 == 0:
            asked = self._all[shape % len(self._all)]
        meter = asked.form.meter(asked.grant)
        is_read_whole = is_whole and not asked.streaming and asked.collect != "always"
        passed: list[bytes] = []
        try:
            if is_read_whole:
                meter.read_whole(data, _generation_s)
            else:
                for number, piece in enumerate(pieces(data, shape >> 4)):
                    passed.append(meter.feed(piece, number * 0.125))
                    if shape & 0x300 == 0:  # the checkpoint of the ledger may come at any time
                        _check_counts(meter.usage())
        except EngineFailed:
            _check_counts(meter.usage())
            _check_speed(meter.speed_tps())
            return
        _check_counts(meter.usage())
        _check_speed(meter.speed_tps())
        if meter.is_complete:
            passed.append(meter.end(_receipt(meter, asked.grant)))
        if asked.streaming:
            self._check_events(data, b"".join(passed), closely=shape % LOOK_CLOSELY_AT == 0)
        elif meter.is_complete and (is_read_whole or asked.collect != "never"):
            _as_others_read(passed[-1], "a client cannot read the answer")

    def _check_events(self, sent: bytes, passed: bytes, *, closely: bool) -> None:
        if passed.count(b"\n\n") > sent.count(b"\n\n"):
            raise Broken("the client gets more events than the engine sent")
        if closely:
            engine = [_known_by(event) for event in sent.split(b"\n\n")[:-1]]
            for event in passed.split(b"\n\n")[:-1]:
                names = _known_by(event)
                found = next((one for one in engine if one & names), None)
                if found is None:
                    raise Broken("the client gets an event that the engine did not send")
                engine.remove(found)


def _known_by(event: bytes) -> set[object]:
    """What identifies an event although its usage was removed or changed, and its token ids were removed: its bytes, or
    its other fields."""
    event = TOKEN_IDS.sub(b'"\\1":null', event)
    payload = next((line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")), b"")
    names: set[object] = {event.partition(b',"usage":')[0].removesuffix(b"}"), *([payload] if payload else [])}
    try:
        fields = json.loads(payload, parse_int=_integer)
    except (ValueError, RecursionError):
        return names
    if isinstance(fields, dict):
        if isinstance(message := fields.get("message"), dict):
            fields["message"] = {name: value for name, value in message.items() if name != "usage"}
        fields = {name: value for name, value in fields.items() if name not in ("usage", "service_tier")}
    return names | {repr(fields)}


def _check_counts(usage: Usage) -> None:
    for count in (usage.prompt_tokens, usage.cached_tokens, *usage.outputs):
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            raise Broken("a count that is no integer from 0 to 2^31 - 1")


def _check_speed(speed_tps: float | None) -> None:
    if speed_tps is not None and not (isinstance(speed_tps, float) and 0 <= speed_tps < math.inf):
        raise Broken("a speed that is no finite positive number")


def _receipt(meter: Meter, grant: Grant) -> Any:
    return make_receipt(
        grant, "finished", meter, is_delivered=True, reader_was_slow=False, seat_us=5, answer_s=2.0, boardings=1
    )


# --- the event splitter ----------------------------------------------------------------------------------------------


class ContinuedTarget:
    """What the next engine says in a stream that goes on there. The client gets events of its own stream."""

    name = "continued meter"
    inputs_at_once = 1
    well_formed: Sequence[bytes] = corpus.NEXT_STREAMS

    def maker(self, seed: int) -> Callable[[], bytes]:
        return Mutator(self.well_formed, seed).next

    def large(self) -> Sequence[bytes]:
        first, _, rest = self.well_formed[1].partition(b"\n\n")
        return [first + b"\n\n" + b'data: {"choices":[{"index":0,"text":"' + b"x" * 2**20 + b'"}]}\n\n' + rest]

    def check(self, data: bytes, shape: int) -> None:
        stops = ["never said", "town before"] if shape & 1 else []
        body = {"model": "m", "max_tokens": 9, "stream": True, "stop": stops, **_MESSAGES}
        request = openai.read_chat(msgspec.json.encode(body), "call-1")
        grant = Grant("standard", "standard", "r0")
        first = request.form.meter(grant)
        first.feed(corpus.BEGUN, 0.0)
        assert isinstance(first, ContinuableMeter)
        seam = first.seam(request)
        assert seam is not None
        meter, passed = seam.meter(grant, " the morning" if stops else ""), []
        try:
            for number, piece in enumerate(pieces(data, shape >> 4)):
                passed.append(meter.feed(piece, 1.0 + number * 0.125))
            if meter.is_complete:
                passed.append(meter.end(_receipt(meter, grant)))
        except (EngineFailed, AnswerOver):
            pass
        _check_counts(meter.usage())
        _check_speed(meter.speed_tps())
        events = [event for event in b"".join(passed).split(b"\n\n") if event.startswith(b"data: {")]
        if len(events) > data.count(b"\n\n") + 2:
            raise Broken("the client gets more events than the engine sent")
        for event in events if shape % LOOK_CLOSELY_AT == 0 else ():
            told = _as_others_read(event[6:], "a client cannot read the stream that went on")
            if told["id"] != "chatcmpl-1" or TOKEN_IDS.search(event):
                raise Broken("the client sees that another engine goes on")


class SplitterTarget:
    """The same events, wherever the network splits the stream."""

    name = "event splitter"
    inputs_at_once = 1
    well_formed: Sequence[bytes] = [*corpus.OPENAI_STREAMS, *corpus.ANTHROPIC_STREAMS]

    def maker(self, seed: int) -> Callable[[], bytes]:
        return Mutator(self.well_formed, seed).next

    def large(self) -> Sequence[bytes]:
        return [b"\n" * 2**20, b"x" * 2**20 + b"\n\n", b"x\n\n" * 2**18, b"\n\nx" * 2**18]

    def check(self, data: bytes, shape: int) -> None:
        splitter, events = EventSplitter(), []
        try:
            for piece in pieces(data, shape | 5):
                if splitter.is_one_event(piece) and EventSplitter().split(piece) != [piece]:
                    raise Broken("what is not one event counts as one")
                events += splitter.split(piece)
        except EngineLost:
            if len(data) < 2**20 and data.count(b"\n\n") <= SHORT_EVENTS:
                raise Broken("a short stream is refused") from None
            return
        if b"".join(events) + bytes(splitter.rest) != data:
            raise Broken("bytes are lost")
        if [bytes(event) for event in events] != [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]:
            raise Broken("the events depend on the pieces")


# --- the spool -------------------------------------------------------------------------------------------------------


class SpoolTarget:
    """Damaged lines between good ones: the spool opens, and every good line is read."""

    name = "spool reader"
    inputs_at_once = LINES_AT_ONCE
    well_formed: Sequence[bytes] = [line.removesuffix(b"\n") for line in corpus.spool_lines("evil-", 8)]

    def __init__(self) -> None:
        self._good = [line for line in corpus.spool_lines(GOOD, 8) if line.startswith(b'["entry"')]
        self._wanted = _entries_of(self._good)
        memory = Path("/dev/shm")  # the reader is tested, not the disk
        self._parent = memory if memory.is_dir() else None

    def maker(self, seed: int) -> Callable[[], bytes]:
        mutator = Mutator(self.well_formed, seed)
        return lambda: b"\n".join(mutator.next() for _ in range(LINES_AT_ONCE))

    def large(self) -> Sequence[bytes]:
        return [b"x" * 2**20, b"[" * 2**20, b"\n" * 2**16, b'["entry",' + b"7" * 2**20 + b"]"]

    def check(self, data: bytes, shape: int) -> None:
        evil = data.split(b"\n")
        every = max(1, len(evil) // len(self._good))
        lines = []
        for number, good in enumerate(self._good):
            lines += [line + b"\n" for line in evil[number * every : (number + 1) * every]]
            lines.append(good)
        lines += [line + b"\n" for line in evil[len(self._good) * every :]]
        found = _entries_of(lines, self._parent)
        if [one for one in found if one.startswith(GOOD)] != self._wanted:
            raise Broken("a good line is not read, or read twice")


def _entries_of(lines: list[bytes], parent: Path | None = None) -> list[str]:
    """The ids of the entries that a spool with one such segment ships."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        (folder / "000000000001.jsonl").write_bytes(b"".join(lines))
        spool = Spool(folder, corpus.SPOOL_BYTES)
        try:
            found = []
            while (batch := spool.next_batch()) is not None:
                found += [entry.id for entry in batch.entries]
                spool.shipped(batch)
            return found
        finally:
            spool.stop()
    finally:
        shutil.rmtree(folder)


# --- request fields --------------------------------------------------------------------------------------------------


class FieldsTarget:
    """A client's request: it is read, or refused with an error that api/app.py turns into a 400."""

    inputs_at_once = 1

    def __init__(self, dialect: Dialect, path: str, well_formed: Sequence[bytes]) -> None:
        self.name = f"fields of {path}"
        [self._route] = [route for route in dialect.ROUTES if route.path == path]
        self.well_formed = well_formed

    def maker(self, seed: int) -> Callable[[], bytes]:
        return Mutator(self.well_formed, seed).next

    def large(self) -> Sequence[bytes]:
        before, _, after = self.well_formed[0].partition(b'"hi"')
        middles = (b'"' + b"x" * 2**20 + b'"', b"[" * 2**20, b"[" + b"1," * 2**19 + b"1]", b"7" * 2**20)
        patterns = b"[" + b",".join(b'{"pattern":"(a{1,9}b)*"}' for _ in range(2_000)) + b"]"
        tool = b'{"type":"function","function":{"name":"f","parameters":{"anyOf":%b}}}' % patterns
        tools = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"tools":[%b]}'
        return [before + middle + after for middle in middles] + [tools % b",".join([tool] * 16)]

    def check(self, data: bytes, shape: int) -> None:
        if not is_utf8(data):
            return
        try:
            request, _ = self._route.parse(data, "call-1", {}, refuses_unknown=False)
        except (InvalidRequest, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return
        call = request.call
        if not 1 <= call.choices <= 8:
            raise Broken("a number of choices out of bounds")
        if request.max_output_tokens is not None and not 0 <= request.max_output_tokens <= MAX_TOKENS:
            raise Broken("a number of tokens out of bounds")
        if request.body[:1] != b"{" or request.body[-1:] != b"}":
            raise Broken("the engine's request is no JSON object")
        if shape % LOOK_CLOSELY_AT == 0:
            fields = _as_others_read(request.body, "an engine cannot read the request")
            assert self._route.fields is not None
            asked = msgspec.json.encode({name: value for name, value in fields.items() if name != SET_BY_US})
            if NOT_FOR_ENGINES & fields.keys() or self._route.fields.clean(asked, refuses_unknown=True):
                raise Broken("a field goes to the engine that must not")


def _integer(digits: str) -> int | str:
    """Python refuses to read integers of more than 4,300 digits, which JSON allows."""
    return int(digits) if len(digits) < 4_000 else digits


def _as_others_read(body: bytes, problem: str) -> dict[str, Any]:
    """Read JSON with another parser than Headway's."""
    try:
        fields: dict[str, Any] = json.loads(body, parse_int=_integer)
    except (ValueError, RecursionError):
        raise Broken(problem) from None
    return fields


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        MeterTarget("OpenAI meter", OPENAI_ASKED, corpus.OPENAI_STREAMS, corpus.OPENAI_WHOLE),
        MeterTarget("Anthropic meter", ANTHROPIC_ASKED, corpus.ANTHROPIC_STREAMS, corpus.ANTHROPIC_WHOLE),
        ContinuedTarget(),
        SplitterTarget(),
        SpoolTarget(),
        FieldsTarget(openai, "/v1/chat/completions", corpus.CHATS),
        FieldsTarget(openai, "/v1/completions", corpus.COMPLETIONS),
        FieldsTarget(openai, "/v1/embeddings", corpus.EMBEDDINGS),
        FieldsTarget(responses, "/v1/responses", corpus.RESPONSES),
        FieldsTarget(anthropic, "/v1/messages", corpus.MESSAGES),
        FieldsTarget(anthropic, "/v1/messages/count_tokens", corpus.PROMPTS),
    )
}
