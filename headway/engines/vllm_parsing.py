"""The rest of a chat answer whose beginning other vLLM engines have given, parsed as if one engine had given all of it.

The engine completes token ids, which passes through no parser of reasoning or tools. Its endpoint `derender` parses a
piece of an answer. It keeps nothing between two pieces, so it is told all that came before, and reads that again. The
work grows with the square of the answer's length, in the process that also writes the streams of other calls. So it
works for PARSING_SHARE of the time at most, and the further it is behind, the more tokens it parses together. Parsers
are made for one token or a few, as speculation gives them: some lose text if an answer comes in one piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from headway.engines.base import Answer
from headway.engines.changed_answer import ChangedAnswer
from headway.sse import EventSplitter, data_of, readable
from headway.wire import ChatSoFar

PARSING_SHARE = 0.2
PIECES_BEHIND = 8  # so many pieces are parsed of the tokens that wait

Derender = Callable[[bytes], Awaitable[bytes]]


class CompletedToken(Struct):
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class CompletedEvent(Struct):
    choices: list[CompletedToken] = []
    usage: Raw = Raw(b"null")


class ParsedChoice(Struct):
    delta: dict[str, Any]


class ParsedChunk(Struct):
    choices: list[ParsedChoice]


class StreamState(Struct):
    """vLLM's own state of a stream, as far as it is read here."""

    tools_streamed: bool


class Derendered(Struct):
    chunk: ParsedChunk
    stream_state: Raw


_read_event = msgspec.json.Decoder(CompletedEvent).decode
_read_derendered = msgspec.json.Decoder(Derendered).decode
_read_state = msgspec.json.Decoder(StreamState).decode
_encode = msgspec.json.Encoder().encode


class ParsedAnswer(ChangedAnswer):
    """The events of a completion, with the text of each as the `delta` of a chat answer."""

    def __init__(self, answer: Answer, so_far: ChatSoFar, derender: Derender) -> None:
        super().__init__(answer)
        self._so_far = so_far
        self._derender = derender
        self._state = _first_state(so_far)
        self._splitter = EventSplitter()
        self._events: deque[bytes] = deque()  # that are not parsed yet
        self._has_more = asyncio.Event()

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(self._answer.pipe(self._take))
        reading.add_done_callback(lambda _: self._has_more.set())
        try:
            while self._events or not reading.done():
                if not self._events:
                    self._has_more.clear()
                    await self._has_more.wait()
                    continue
                began = loop.time()
                await self._parse(sink)
                if not reading.done():
                    await asyncio.sleep((loop.time() - began) * (1 / PARSING_SHARE - 1))
            reading.result()
        finally:
            reading.cancel()
            if reading.done() and not reading.cancelled():
                reading.exception()  # so that asyncio does not log one that nobody awaited

    def _take(self, data: bytes) -> None:
        with readable():
            self._events += self._splitter.split(data)
        self._has_more.set()

    async def _parse(self, sink: Callable[[bytes], None]) -> None:
        """Parse the next piece, up to an event that has no tokens, which is passed on as it is."""
        piece: list[CompletedEvent] = []
        most = max(1, len(self._events) // PIECES_BEHIND)
        while self._events and len(piece) < most:
            payload = data_of(self._events[0])
            with readable():
                told = _read_event(payload) if payload.startswith(b"{") else CompletedEvent()
            if not told.choices:
                break
            piece.append(told)
            self._events.popleft()
        if piece:
            sink(await self._parsed(piece))
        else:
            sink(self._events.popleft())

    async def _parsed(self, tokens: list[CompletedEvent]) -> bytes:
        """These tokens, as one event."""
        ids = [one for told in tokens for one in told.choices[0].token_ids or ()]
        last, usage = tokens[-1].choices[0], tokens[-1].usage
        # The token that stops an answer is counted and has no text.
        shown = ids[:-1] if last.finish_reason == "stop" else ids
        body = {
            "stream": True,
            "prompt_token_ids": Raw(b"[" + self._so_far.prompt_ids + b"]"),
            "chat_request": Raw(self._so_far.chat),
            "generate_chunk": {
                "request_id": "",
                "choices": [{"index": 0, "token_ids": shown, "finish_reason": last.finish_reason}],
            },
            "stream_state": self._state,
        }
        page = await self._derender(_encode(body))
        with readable():
            parsed = _read_derendered(page)
            self._state = parsed.stream_state
            delta = _without_nulls(parsed.chunk.choices[0].delta)
            finish_reason = last.finish_reason
            if finish_reason == "stop" and _read_state(self._state).tools_streamed:
                finish_reason = "tool_calls"
        choice = {"delta": delta, "finish_reason": finish_reason, "stop_reason": last.stop_reason, "token_ids": ids}
        return b"data: " + _encode({"choices": [choice], "usage": usage}) + b"\n\n"


def _first_state(so_far: ChatSoFar) -> Raw:
    """vLLM's state of the stream where it goes on. Parsers are given an answer in the pieces in which it came."""
    state = {
        "output_token_ids": Raw(b"[" + b",".join(so_far.ids) + b"]"),
        "output_chunk_lens": [ids.count(b",") + 1 for ids in so_far.ids],
        "role_sent": True,
        "tools_streamed": bool(so_far.tool_call_ids),
        "last_tool_call_ids": so_far.tool_call_ids,
    }
    return Raw(_encode(state))


def _without_nulls(delta: Any) -> Any:
    """As vLLM's streams say it: without fields that are not set."""
    if isinstance(delta, dict):
        return {name: _without_nulls(value) for name, value in delta.items() if value is not None and value != []}
    return [_without_nulls(one) for one in delta] if isinstance(delta, list) else delta
