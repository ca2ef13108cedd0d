"""How the rest of a chat answer is parsed, with a parser of our own: tests/e2e/test_parsed_rests.py has vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headway.engines.vllm_parsing import PARSING_SHARE, ParsedAnswer
from headway.errors import ConnectionFailed, EngineLost
from headway.wire import ChatSoFar

pytestmark = pytest.mark.anyio
CHAT = b'{"model":"m","messages":[]}'
SO_FAR = ChatSoFar(CHAT, b"1,2", (b"10", b"11,12"), ())
DONE = b"data: [DONE]\n\n"


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def token(*ids: int, finish: str | None = None, count: int = 0) -> bytes:
    choice = {"index": 0, "text": "raw", "finish_reason": finish, "stop_reason": None, "token_ids": ids}
    return event({"id": "cmpl", "choices": [choice], "usage": {"completion_tokens": count}})


class Completion:
    """An engine's answer that comes in these pieces; None waits until all before was parsed."""

    status, content_type = 200, b"text/event-stream"

    def __init__(self, *pieces: bytes | None, ends_with: Exception | None = None) -> None:
        self.pieces, self.ends_with = pieces, ends_with
        self.was_closed = self.was_cancelled = False
        self.ended_at = 0.0

    async def read(self) -> bytes:
        return b""

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        try:
            for piece in self.pieces:
                if piece is None:
                    await asyncio.sleep(0.01)
                else:
                    sink(piece)
            self.ended_at = asyncio.get_running_loop().time()
            if self.ends_with is not None:
                raise self.ends_with
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        self.was_closed = True


class Parser:
    """Says the ids that it is given. From the id 20 on they are a call of a tool."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, body: bytes) -> bytes:
        asked = msgspec.json.decode(body)
        self.asked.append(asked)
        ids, state = asked["generate_chunk"]["choices"][0]["token_ids"], asked["stream_state"]
        text, has_called = " ".join(map(str, ids)), state["tools_streamed"] or any(one >= 20 for one in ids)
        call = {"id": None, "index": 0, "function": {"name": None, "arguments": text}}
        delta: dict[str, Any] = {"role": None, "content": None, "reasoning": None, "tool_calls": [call]}
        if not has_called:
            delta = {"role": None, "content": text, "tool_calls": []}
        after = {**state, "output_token_ids": state["output_token_ids"] + ids, "tools_streamed": has_called}
        return msgspec.json.encode({"chunk": {"choices": [{"delta": delta}]}, "stream_state": after})


async def parsed(answer: Completion, parser: Parser, so_far: ChatSoFar = SO_FAR) -> list[Any]:
    shown: list[bytes] = []
    await ParsedAnswer(answer, so_far, parser).pipe(shown.append)
    return [msgspec.json.decode(one[6:]) if one.startswith(b"data: {") else one for one in shown]


async def test_the_engine_is_told_what_came_before() -> None:
    parser = Parser()
    first, second, last, done = await parsed(
        Completion(token(13), None, token(14, count=2), event({"choices": [], "usage": {"total_tokens": 7}}) + DONE),
        parser,
        ChatSoFar(CHAT, b"1,2", (b"10", b"11,12"), ("call-1",)),
    )
    assert parser.asked[0]["chat_request"] == msgspec.json.decode(CHAT)
    assert parser.asked[0]["prompt_token_ids"] == [1, 2]
    assert parser.asked[0]["stream_state"] == {
        "output_token_ids": [10, 11, 12],
        "output_chunk_lens": [1, 2],
        "role_sent": True,
        "tools_streamed": True,
        "last_tool_call_ids": ["call-1"],
    }
    assert parser.asked[1]["stream_state"]["output_token_ids"] == [10, 11, 12, 13]
    assert [one["choices"][0]["token_ids"] for one in (first, second)] == [[13], [14]]
    assert second["usage"] == {"completion_tokens": 2}
    assert (last, done) == ({"choices": [], "usage": {"total_tokens": 7}}, DONE)


async def test_pieces_are_larger_the_more_tokens_wait() -> None:
    parser = Parser()
    data = b"".join(token(number, count=number) for number in range(1, 33))
    told = await parsed(Completion(data[:50], data[50:900], data[900:]), parser)
    pieces = [one["choices"][0]["token_ids"] for one in told]
    assert [number for piece in pieces for number in piece] == list(range(1, 33))
    assert [len(piece) for piece in pieces] == [4, 3, 3, 2, 2, 2, 2] + [1] * 14
    assert [one["usage"]["completion_tokens"] for one in told] == [piece[-1] for piece in pieces]


async def test_the_token_that_stops_an_answer_has_no_text() -> None:
    [told] = await parsed(Completion(token(13, 2, finish="stop")), Parser())
    choice = told["choices"][0]
    assert (choice["delta"], choice["finish_reason"]) == ({"content": "13"}, "stop")
    assert choice["token_ids"] == [13, 2]
    [told] = await parsed(Completion(token(13, 2, finish="length")), Parser())
    assert told["choices"][0]["delta"] == {"content": "13 2"}


async def test_an_answer_with_a_call_of_a_tool_ends_by_it() -> None:
    [told] = await parsed(Completion(token(20, 2, finish="stop")), Parser())
    choice = told["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": "20"}}]}
    [told] = await parsed(Completion(token(20, finish="length")), Parser())
    assert told["choices"][0]["finish_reason"] == "length", "as vLLM's own streams say it"


async def test_what_was_parsed_is_passed_on_before_the_engine_is_lost() -> None:
    shown: list[bytes] = []
    answer = ParsedAnswer(Completion(token(13), ends_with=ConnectionFailed("cut")), SO_FAR, Parser())
    with pytest.raises(ConnectionFailed):
        await answer.pipe(shown.append)
    assert len(shown) == 1


async def test_a_parser_that_fails_ends_the_answer_and_leaves_no_task() -> None:
    async def fail(_body: bytes) -> bytes:
        raise EngineLost("no")

    answer = Completion(token(13), None, token(14))
    with pytest.raises(EngineLost):
        await ParsedAnswer(answer, SO_FAR, fail).pipe(lambda _: None)
    await asyncio.sleep(0)
    assert answer.was_cancelled


@pytest.mark.parametrize("page", [b"", b"[]", b'{"chunk":{"choices":[]},"stream_state":{}}', b"[" * 100_000])
async def test_a_parser_that_lies_is_a_lost_engine(page: bytes) -> None:
    async def lie(_body: bytes) -> bytes:
        return page

    with pytest.raises(EngineLost):
        await ParsedAnswer(Completion(token(13)), SO_FAR, lie).pipe(lambda _: None)


@pytest.mark.parametrize("wrong", [b"data: {]\n\n", event({"choices": 7}), event({"choices": [{"token_ids": ["a"]}]})])
async def test_an_engine_that_lies_is_lost(wrong: bytes) -> None:
    with pytest.raises(EngineLost):
        await parsed(Completion(wrong), Parser())


async def test_parsing_takes_a_small_share_of_the_time() -> None:
    loop, parser = asyncio.get_running_loop(), Parser()
    times: list[tuple[float, float]] = []

    async def slow(body: bytes) -> bytes:
        began = loop.time()
        await asyncio.sleep(0.005)
        page = await parser(body)
        times.append((began, loop.time()))
        return page

    pieces = [piece for number in range(40) for piece in (token(number), None)]
    answer = Completion(*pieces)
    await ParsedAnswer(answer, SO_FAR, slow).pipe(lambda _: None)
    while_it_came = [one for one in times if one[1] < answer.ended_at]
    busy_s = sum(ended - began for began, ended in while_it_came[:-1])
    span_s = while_it_came[-1][0] - while_it_came[0][0] if while_it_came else 0.0
    assert busy_s <= 1.01 * PARSING_SHARE * span_s
