"""Makes hostile inputs out of well-formed ones, by seed: it replaces, doubles, removes and moves JSON values, bytes and
events. The places of all JSON values are found once for each well-formed input, so a mutation is a few slices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# Anything that is JSON, or nearly, in the place of a value.
NUMBERS = (
    b"0", b"-0", b"1", b"-1", b"5", b"7", b"8", b"1.5", b"-1.5", b"1e1", b"1e999", b"-1e999", b"1e-400", b"0.1e1",
    b"2147483647", b"2147483648", b"-2147483648", b"4294967296", b"9007199254740993", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809",
    b"1" + b"0" * 40, b"9" * 4400, b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"0x1", b"1_0",
)  # fmt: skip
TEXTS = (
    b'""', b'"a"', b'"1"', b'"null"', b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"',
    b'"\xed\xa0\x80"', b'"\xc3"', b'"\xf4\x90\x80\x80"', b'"\xef\xbb\xbf"', b'"\\n\\n"', b'"\n\n"', b'"\x00"',
    b'"\\x"', b'"' + b"x" * 300 + b'"', b'"' + b"\\u0041" * 300 + b'"', b'"', b'"\\"', b'",\\"usage\\":{"',
    b'"}}\\n\\n"', b'"[DONE]"', b'"((a+)+)+"', b'"(a{1,1000}){1,1000}"', b'"[a-z]{1,999}"', b'"[{(*+?"', b'"fast"',
    b'"m"', b'"#"', b'"http://x/"',
)  # fmt: skip
WHOLES = (
    b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[{}]", b"[null]", b'{"":{}}', b'{"a":1,"a":2}',
    b'{"usage":{}}', b'{"prompt_tokens":1,"completion_tokens":2}', b'{"prompt_tokens":-5,"completion_tokens":-7}',
    b'{"prompt_tokens":1.5,"completion_tokens":2.5}', b'{"prompt_tokens":"1","completion_tokens":"2"}',
    b'{"prompt_tokens":null,"completion_tokens":null}', b'{"prompt_tokens":true,"completion_tokens":false}',
    b'{"prompt_tokens":18446744073709551616,"completion_tokens":2147483648}',
    b'{"input_tokens":-1,"output_tokens":1.5}', b'{"input_tokens":{},"output_tokens":[]}', b'{"output_tokens":"9"}',
    b'{"cached_tokens":-1}', b'{"cached_tokens":"x"}', b'[{"index":-1}]', b'[{"index":7}]', b'[{"index":"0"}]',
    b'[{"index":1e99}]', b'[{"index":null}]', b'[[0]]', b"[1,2]", b'{"message":7}', b'{"error":null}', b'{"$ref":"#"}',
    b'{"minItems":1000000000}', b'{"type":"text_delta","text":5}', b"{", b"[", b"}", b"]", b",", b":", b"", b" ",
    b"nul", b"tru", b"-", b'{"a"', b'{"a":', b"[1,", b"{,}", b"[,]",
)  # fmt: skip
DEEP = (
    b"[" * 200 + b"]" * 200, b"[" * 3000 + b"]" * 3000, b"[" * 3000, b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"a":' * 2000 + b"1" + b"}" * 2000, b'[{"a":' * 1500 + b"1" + b"}]" * 1500,
)  # fmt: skip
# What parsers look for, and what text may not have.
BYTES = (
    b"\n", b"\n\n", b"\n\n\n", b"\r\n", b"\r\n\r\n", b"\r", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"',
    b"\\", b"{", b"}", b"[", b"]", b",", b":", b"data:", b"data: [DONE]\n\n", b"data: ", b"event: ", b": \n\n",
    b',"usage":{', b"}}\n\n", b"}\n\n", b"event: message_stop\n", b"event: message_delta\n",
    b"event: content_block_delta\n", b"event: error\ndata: {}\n\n", b"event: message_start\ndata: {}\n\n",
    b"data: {}\n\n", b"data: []\n\n", b"data: 7\n\n", b"id: 1\nretry: 5\n", b" ", b"\t", b"0", b"-", b"e9",
    b"data: null\n\n", b'data: "x"\n\n',
)  # fmt: skip
NAMES = (b'"error"', b'"choices"', b'"stream"', b'"n"', b'"type"', b'"x"')
END = b"\n\n"


@dataclass(frozen=True, slots=True)
class _Known:
    data: bytes
    values: tuple[tuple[int, int], ...]
    members: tuple[tuple[int, int], ...]  # of objects: `"name":value`


class Mutator:
    def __init__(self, well_formed: Sequence[bytes], seed: int) -> None:
        self._random = random.Random(seed)
        self._known = [_Known(data, *_places(data)) for data in well_formed]
        self._pieces = [known.data[a:b] for known in self._known for a, b in known.values if b - a < 200]

    def next(self) -> bytes:
        chance = self._random.random
        known = self._known[int(chance() * len(self._known))]
        roll = chance()
        if roll < 0.55 and known.values:
            data = self._change_json(known, roll)
        elif roll < 0.62:
            other = self._known[int(chance() * len(self._known))].data
            data = known.data[: int(chance() * len(known.data))] + other[int(chance() * len(other)) :]
        elif roll < 0.72:
            data = self._change_events(known.data)
        else:
            data = self._change_bytes(known.data)
        return self._change_bytes(data) if chance() < 0.15 else data

    def _pick(self, choices: Sequence[bytes]) -> bytes:
        return choices[int(self._random.random() * len(choices))]

    def _value(self) -> bytes:
        roll = self._random.random()
        if roll < 0.35:
            return self._pick(NUMBERS)
        if roll < 0.60:
            return self._pick(TEXTS)
        if roll < 0.90:
            return self._pick(WHOLES)
        return self._pick(self._pieces) if roll < 0.99 else self._pick(DEEP)

    def _change_json(self, known: _Known, roll: float) -> bytes:
        chance, data, values = self._random.random, known.data, known.values
        if roll < 0.30 or not known.members:
            a, b = values[int(chance() * len(values))]
            return data[:a] + self._value() + data[b:]
        if roll < 0.42:  # two values; the later one first, so that the place of the other one still holds
            (a, b), (c, d) = sorted(values[int(chance() * len(values))] for _ in range(2))
            if b <= c:
                data = data[:c] + self._value() + data[d:]
            return data[:a] + self._value() + data[b:]
        a, b = known.members[int(chance() * len(known.members))]
        if roll < 0.46:  # remove it
            return data[:a] + data[b + (data[b : b + 1] == b",") :]
        if roll < 0.51:  # the same name twice
            name = data[a : data.index(b'"', a + 1) + 1]
            return data[:b] + b"," + name + b":" + self._value() + data[b:]
        name = b'"usage"' if chance() < 0.5 else self._pick(NAMES)
        return data[:b] + b"," + name + b":" + self._value() + data[b:]

    def _change_events(self, data: bytes) -> bytes:
        """Remove, double or move one event."""
        events = data.split(END)
        number = int(self._random.random() * len(events))
        event = events.pop(number)
        roll = self._random.random()
        if roll < 0.6:
            events.insert(int(self._random.random() * (len(events) + 1)), event)
        if roll < 0.3:
            events.insert(int(self._random.random() * (len(events) + 1)), event)
        return END.join(events)

    def _change_bytes(self, data: bytes) -> bytes:
        chance = self._random.random
        at, roll = int(chance() * (len(data) + 1)), chance()
        if roll < 0.25:
            return data[:at] + bytes((int(chance() * 256),)) + data[at + 1 :]
        if roll < 0.60:
            return data[:at] + self._pick(BYTES) + data[at:]
        if roll < 0.75:
            return data[:at] + data[at + int(chance() * 30) :]
        if roll < 0.90:
            return data[:at]
        return data[at:]


def _places(data: bytes) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The places of all JSON values and members in `data`: in a JSON text, in events, or in lines of them."""
    values: list[tuple[int, int]] = []
    members: list[tuple[int, int]] = []

    def value(at: int) -> int:
        if data[at : at + 1] == b'"':
            end = _text_end(data, at)
        elif data[at : at + 1] in (b"{", b"["):
            is_object, end = data[at : at + 1] == b"{", at + 1
            while data[end : end + 1] not in (b"}", b"]"):
                if data[end : end + 1] in (b",", b" "):
                    end += 1
                    continue
                start = end
                if is_object:
                    end = _text_end(data, end) + 1  # and the colon
                end = value(end + (data[end : end + 1] == b" "))
                if is_object:
                    members.append((start, end))
            end += 1
        else:
            end = at
            while data[end : end + 1] and data[end] not in b",]} \n":
                end += 1
        values.append((at, end))
        return end

    at = 0
    while (at := _next_json(data, at)) >= 0:
        at = value(at)
    return tuple(values), tuple(members)


def _next_json(data: bytes, at: int) -> int:
    found = [place for start in (b"{", b"[") if (place := data.find(start, at)) >= 0]
    if data.startswith(b"[DONE]", min(found, default=0)):
        return _next_json(data, min(found) + 1)
    return min(found, default=-1)


def _text_end(data: bytes, at: int) -> int:
    at += 1
    while data[at : at + 1] != b'"':
        at += 2 if data[at : at + 1] == b"\\" else 1
    return at + 1
