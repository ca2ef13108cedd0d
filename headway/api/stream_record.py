"""Keeps of a stream what another engine needs to go on with it: the token ids of the prompt and of the answer so far.

vLLM says them in each event if asked (engines/vllm.py). They are cut out here, since the client did not ask. With stop
strings the text is kept too: the engine holds back text that may be the beginning of one, so the text that was
delivered is behind the ids.

Invariant: while `is_whole`, `ids` are those of every token of the events that were passed on.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw

from headway.api.answers import Fields

TOKEN_IDS, NO_IDS_END = b',"token_ids":[', b',"token_ids":null}]}\n\n'
LIST_AT = len(TOKEN_IDS) - 1
NO_IDS = Raw(b"null")
IDS = rb"(?:\d+(?:,\d+)*)?"
# A token's ids, after a bracket, and its flat usage, which ends its event.
_split_at_ids = re.compile(rb',"token_ids":(\[' + IDS + rb')\]\}\],"usage":\{[^}]*\}\}\n\n').split
_are_ids = re.compile(rb"(?:\[" + IDS + rb")*").fullmatch
# As vLLM begins a call of a tool. Inside of a text the quotes would have backslashes.
_tool_call_ids = re.compile(rb'\{"id":"([^"\\]+)","type":"function","index":').findall
TEXT = re.compile(rb'(?:"delta":\{"content"|"text"):"((?:[^"\\]|\\.)*)"')
MAX_BYTES = 2 * 2**20  # of ids, and as many of text, that are kept of an answer
OPENING = ("id", "object", "created", "model")  # the same in each event of a stream

_read_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode


class StreamRecord:
    __slots__ = (
        "_bytes",
        "_has_tools",
        "_ids",
        "_keeps_more",
        "_keeps_text",
        "_texts",
        "is_whole",
        "opening",
        "prompt_ids",
        "tool_call_ids",
    )

    def __init__(self, *, keeps_text: bool, has_tools: bool = False) -> None:
        self.is_whole = True
        self.opening: dict[str, Raw] = {}
        self.prompt_ids = b""  # JSON numbers with commas between them
        self._ids = bytearray()  # the same, of each event, with a bracket before it
        self.tool_call_ids: list[str] = []
        self._has_tools = has_tools
        self._keeps_text = keeps_text
        self._keeps_more = keeps_text or has_tools
        self._texts: list[bytes] = []  # of JSON strings
        self._bytes = 0  # of texts and of ids of calls

    def cut_one(self, event: bytes, usage_at: int) -> bytes:
        """Keep the ids of an event with a token. Returns it without ids and usage; b"" if it has no ids."""
        at = event.rfind(TOKEN_IDS, 0, usage_at)
        if at < 0 or event.find(b"]", at) != usage_at - 1:  # the list is not the last of the choice
            return b""
        self._ids += event[at + LIST_AT : usage_at - 1]  # `_keep`, without the call: this is done for every token
        if len(self._ids) > MAX_BYTES:
            self.forget()
        if self._keeps_more:
            self._keep_tool_calls(event)
            if self._keeps_text and (found := TEXT.search(event, 0, at)) is not None:
                self._keep_text(found[1])
        return event[:at] + NO_IDS_END

    def cut_all(self, data: bytes) -> bytes:
        """The same with several events, each of one line. Returns b"" if `data` is not just their complete events."""
        parts = _split_at_ids(data)
        if self._keeps_text or parts[-1] or data.count(b"\n") != len(parts) - 1:
            return b""
        self._keep(b"".join(parts[1::2]))
        self._keep_tool_calls(data)
        return NO_IDS_END.join(parts[::2])

    def cut_parsed(self, fields: Fields) -> Fields:
        """The same with the fields of any event."""
        if not self.opening:
            self.opening = {name: fields[name] for name in OPENING if name in fields}
        kept: dict[str, Any] = dict(fields)
        if _is_list(prompt_ids := fields.get("prompt_token_ids")):
            self.prompt_ids, kept["prompt_token_ids"] = _numbers(prompt_ids), NO_IDS
        choices = _read_choices(fields["choices"]) if "choices" in fields else []
        for choice in choices:
            if _is_list(prompt_ids := choice.get("prompt_token_ids")):
                self.prompt_ids, choice["prompt_token_ids"] = _numbers(prompt_ids), NO_IDS
            if _is_list(ids := choice.get("token_ids")):
                self._keep(b"[" + _numbers(ids))
                choice["token_ids"] = NO_IDS
            if self._has_tools:
                self._keep_tool_calls(_encode(choice))
            if self._keeps_text and (found := TEXT.search(_encode(choice))) is not None:
                self._keep_text(found[1])
        if choices:
            kept["choices"] = Raw(_encode(choices))
        return kept

    def text(self) -> str:
        """What was delivered, if text is kept."""
        parts: list[str] = msgspec.json.decode(b'["' + b'","'.join(self._texts) + b'"]', type=list[str])
        return "".join(parts)

    def forget(self) -> None:
        """Too much came: the record is not whole any more. Later ids are kept up to the limit and dropped again."""
        self.is_whole = False
        self._ids, self._texts, self.prompt_ids, self.tool_call_ids = bytearray(), [], b"", []

    @property
    def ids(self) -> list[bytes]:
        """JSON numbers with commas between them, of each event that has some. Raises ValueError if the engine sent
        anything else, which is checked only here."""
        if not _are_ids(self._ids):
            raise ValueError("token ids that are no numbers")
        return [ids for ids in bytes(self._ids).split(b"[") if ids]

    def _keep(self, ids: bytes) -> None:
        """Of one event or more, each with a bracket before them."""
        self._ids += ids
        if len(self._ids) > MAX_BYTES:
            self.forget()

    def _keep_tool_calls(self, data: bytes) -> None:
        if self._has_tools and b'"tool_calls":[' in data and self.is_whole:
            found = _tool_call_ids(data)
            self.tool_call_ids += [one.decode() for one in found]
            self._count(sum(map(len, found)))

    def _keep_text(self, text: bytes) -> None:
        if self.is_whole:
            self._texts.append(text)
            self._count(len(text))

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            self.forget()


def _is_list(value: Raw | None) -> bool:
    return value is not None and bytes(value).startswith(b"[")


def _numbers(value: Raw | None) -> bytes:
    """Of a list of token ids. Raises msgspec.ValidationError if it is anything else."""
    numbers = msgspec.json.decode(value or b"[]", type=list[int])
    return _encode(numbers)[1:-1]
