"""What the next engine is asked at a seam, and how its answer is read. Without a gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api.openai import read_chat, read_completion
from headway.api.openai_meter import OpenAIForm, OpenAIMeter
from headway.api.stop_strings import StopStrings
from headway.errors import CannotContinue, EngineLost
from headway.wire import AnswerOver, Grant, Meter, Request, Seam

TOOL = {"type": "function", "function": {"name": "f"}}
GRANT = Grant("standard", "standard")
HEAD: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
NEXT_HEAD: dict[str, Any] = {"id": "cmpl-2", "object": "text_completion", "created": 9, "model": "m"}


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def opening(prompt_ids: list[int]) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return event({**HEAD, "choices": [choice], "usage": usage(len(prompt_ids), 0), "prompt_token_ids": prompt_ids})


def token(text: str, ids: list[int], prompt: int, output: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    return event({**HEAD, "choices": [choice], "usage": usage(prompt, output)})


def next_token(text: str, ids: list[int] | None, prompt: int, output: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": ids}
    return event({**NEXT_HEAD, "choices": [choice], "usage": usage(prompt, output)})


def last(prompt: int, output: int, cached: int) -> bytes:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return event({**NEXT_HEAD, "choices": [], "usage": {**usage(prompt, output), **details}, "metrics": {}})


def chat(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": True, **fields}
    return read_chat(msgspec.json.encode(body), "call")


def begun(request: Request, tokens: list[tuple[str, list[int]]], *, in_one: bool = False) -> OpenAIMeter:
    """A meter that has read the opening and these tokens."""
    assert isinstance(request.form, OpenAIForm)
    meter = request.form.meter(GRANT)
    meter.feed(opening([11, 12, 13]), 0.0)
    events, count = [], 0
    for text, ids in tokens:
        count += len(ids)
        events.append(token(text, ids, 3, count))
    for data in [b"".join(events)] if in_one else events:
        meter.feed(data, 1.0)
    return meter


def seam_of(meter: OpenAIMeter | Meter, request: Request) -> Seam:
    assert hasattr(meter, "seam")
    seam: Seam | None = meter.seam(request)
    assert seam is not None
    return seam


def payloads(shown: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(one[6:]) for one in shown.split(b"\n\n") if one]


@pytest.mark.parametrize("in_one", [True, False])
def test_the_next_engine_is_asked_to_complete_the_ids(in_one: bool) -> None:
    request = chat(temperature=0.5, top_p=0.9, user="me", max_tokens=None, max_completion_tokens=20)
    meter = begun(request, [("a", [1]), ("b", [2]), ("c", [3, 4])], in_one=in_one)
    seam = seam_of(meter, request)
    assert (seam.tokens, seam.is_over, seam.decoded) == (4, False, ())
    asked = seam.request(None)
    assert asked is not None
    assert asked.path == "/v1/completions"
    assert msgspec.json.decode(asked.body) == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "prompt": [11, 12, 13, 1, 2, 3, 4],
        "stream": True,
        "max_tokens": 16,
    }


def test_the_client_sees_no_ids() -> None:
    request = chat()
    assert isinstance(request.form, OpenAIForm)
    meter = request.form.meter(GRANT)
    shown = meter.feed(opening([11, 12, 13]), 0.0)
    shown += meter.feed(token("a", [1], 3, 1), 0.1)
    shown += meter.feed(token("b", [2], 3, 2) + token("c", [3], 3, 3), 0.2)
    shown += meter.feed(token("d", [4], 3, 4)[:20], 0.3) + meter.feed(token("d", [4], 3, 4)[20:], 0.3)
    first, *others = payloads(shown)
    assert first["prompt_token_ids"] is None
    assert [one["choices"][0]["delta"]["content"] for one in others] == ["a", "b", "c", "d"]
    assert all(one["choices"][0]["token_ids"] is None and "usage" not in one for one in others)
    assert msgspec.json.decode(seam_of(meter, request).request(None).body)["prompt"][3:] == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_the_stream_goes_on_as_one() -> None:
    request = chat(stream_options={"include_usage": True})
    first = begun(request, [("a", [1]), ("b", [2])])
    meter = seam_of(first, request).meter(GRANT, "")
    shown = meter.feed(next_token("c", [3], 5, 1), 2.0)
    shown += meter.feed(next_token("d", [4], 5, 2) + next_token("e", [5], 5, 3, "stop"), 3.0)
    told = payloads(shown)
    assert {(one["id"], one["object"], one["created"]) for one in told} == {("chatcmpl-1", HEAD["object"], 7)}
    assert [one["choices"][0]["delta"] for one in told] == [{"content": "c"}, {"content": "d"}, {"content": "e"}]
    assert [one["choices"][0]["finish_reason"] for one in told] == [None, None, "stop"]
    assert meter.feed(last(5, 3, 4), 3.0) == b""
    assert meter.feed(b"data: [DONE]\n\n", 3.0) == b""
    assert meter.is_complete
    assert (meter.usage().prompt_tokens, meter.usage().outputs, meter.usage().cached_tokens) == (3, (5,), 3)
    assert (meter.first_at, meter.last_at) == (0.0, 3.0)
    assert meter.repeated_tokens == 1  # type: ignore[attr-defined]


def test_a_second_seam_has_the_ids_of_both_engines() -> None:
    request = chat()
    first = begun(request, [("a", [1]), ("b", [2])])
    second = seam_of(first, request).meter(GRANT, "")
    second.feed(next_token("c", [3], 5, 1), 2.0)
    seam = seam_of(second, request)
    asked = seam.request(None)
    assert asked is not None
    body = msgspec.json.decode(asked.body)
    assert (body["prompt"], body["max_tokens"]) == ([11, 12, 13, 1, 2, 3], 17)
    third = seam.meter(GRANT, "")
    third.feed(next_token("d", [4], 6, 1), 3.0)
    assert third.usage().outputs == (4,)
    assert third.repeated_tokens == 5 + 6  # type: ignore[attr-defined]


def test_without_all_ids_there_is_no_seam() -> None:
    request = chat()
    hidden = begun(request, [("a", [1])])
    hidden.feed(token("b", [], 3, 2), 1.0)
    assert hidden.seam(request) is None, "an engine that hides an id"
    lied: Any = ["x"]
    unreadable = begun(request, [("a", [1])])
    unreadable.feed(token("b", lied, 3, 2), 1.0)
    assert unreadable.seam(request) is None, "an engine whose ids are no numbers"
    none = begun(request, [("a", [1])])
    choice = {"index": 0, "delta": {"content": "b"}, "logprobs": None, "finish_reason": None, "token_ids": None}
    none.feed(event({**HEAD, "choices": [choice], "usage": usage(3, 2)}), 1.0)
    assert none.seam(request) is None, "an engine that stops to say them"
    assert OpenAIForm().meter(GRANT).seam(request) is None


def test_an_answer_that_was_over_is_ended_without_an_engine() -> None:
    request = chat()
    meter = begun(request, [("a", [1])])
    meter.feed(token("b", [2], 3, 2, "stop"), 1.0)
    seam = seam_of(meter, request)
    assert seam.is_over
    assert meter.feed(seam.closing(), 2.0) == b""
    assert meter.is_complete
    assert meter.usage().outputs == (2,)


def test_without_a_limit_the_rest_of_the_context_is_asked_for() -> None:
    request = chat(max_tokens=None)
    seam = seam_of(begun(request, [("a", [1])]), request)
    assert seam.request(None) is None
    asked = seam.request(100)
    assert asked is not None
    assert msgspec.json.decode(asked.body)["max_tokens"] == 96


def test_held_text_is_decoded_and_stops_are_searched_across_the_seam() -> None:
    request = chat(stop=["END.", "\n\n"])
    # The engine holds three characters back.
    meter = begun(request, [("", [1]), ("a", [2]), ("bc", [3])])
    seam = seam_of(meter, request)
    assert seam.decoded == (1, 2, 3)
    with pytest.raises(CannotContinue):
        seam.meter(GRANT, "abX")
    goes_on = seam.meter(GRANT, "abc EN")
    assert payloads(goes_on.feed(next_token("D", [4], 6, 1), 2.0))[0]["choices"][0]["delta"]["content"] == " "
    [told] = payloads(goes_on.feed(next_token(". And", [5], 6, 2), 2.0))
    choice = told["choices"][0]
    assert (choice["delta"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", "END.")
    assert goes_on.is_complete
    assert goes_on.usage().outputs == (5,)
    with pytest.raises(AnswerOver):
        goes_on.feed(next_token("more", [6], 6, 3), 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        next_token("c", [3], 4, 1),  # another prompt
        next_token("c", None, 5, 1),
        event({**NEXT_HEAD, "choices": [{"index": 0, "text": "c", "token_ids": [3]}]}),  # no usage
        next_token("c", [3], 5, 4) + next_token("c", [4], 5, 2),  # counts fall
        event({**NEXT_HEAD, "choices": 7}),
        event({"error": {"message": "dead", "code": 500}}),
    ],
)
def test_a_next_engine_that_lies_is_lost(wrong: bytes) -> None:
    request = chat()
    meter = seam_of(begun(request, [("a", [1]), ("b", [2])]), request).meter(GRANT, "")
    with pytest.raises(EngineLost):
        meter.feed(wrong, 2.0)


@pytest.mark.parametrize(
    ("fields", "is_continuable"),
    [
        ({}, True),
        ({"temperature": 1.0, "top_k": 5, "logit_bias": {"7": 1}, "stop": "x", "n": 1}, True),
        ({"response_format": {"type": "text"}, "frequency_penalty": 0.0, "repetition_penalty": 1.0}, True),
        ({"seed": 0}, False),
        ({"n": 2}, False),
        ({"presence_penalty": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logprobs": True}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"structured_outputs": {"regex": "a+"}}, False),
        ({"tools": [TOOL]}, True),
        ({"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True}, True),
        ({"tools": [TOOL], "tool_choice": "required"}, False),
        ({"tools": [TOOL], "tool_choice": "none"}, False),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, False),
        ({"tools": [TOOL], "parallel_tool_calls": False}, False),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, False),
        ({"tools": [TOOL], "stop": "x"}, False),
        ({"tools": [TOOL], "include_reasoning": False}, False),
        ({"stop": "x", "min_tokens": 3}, False),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, False),
        ({"stream": False}, False),
    ],
)
def test_what_can_go_on(fields: dict[str, Any], is_continuable: bool) -> None:
    request = chat(**fields)
    assert request.call.is_continuable == is_continuable


@pytest.mark.parametrize(
    ("fields", "is_parsable"), [({}, True), ({"stop": "x"}, False), ({"include_reasoning": False}, False)]
)
def test_what_can_go_on_where_the_engine_parses_reasoning(fields: dict[str, Any], is_parsable: bool) -> None:
    request = chat(**fields)
    assert request.call.is_continuable
    assert request.is_parsable == is_parsable


def with_call(ids: list[int], output: int, call_id: str) -> bytes:
    function = {"name": "f", "arguments": '{"id":"no","type":"function","index":9}'}
    calls = [{"id": call_id, "type": "function", "index": 0, "function": function}]
    choice = {"index": 0, "delta": {"tool_calls": calls}, "logprobs": None, "finish_reason": None, "token_ids": ids}
    return event({**HEAD, "choices": [choice], "usage": usage(3, output)})


def test_the_next_engine_is_told_what_parsers_were_given() -> None:
    request = chat(tools=[TOOL])
    meter = begun(request, [("a", [1]), ("b", [2, 3])])
    meter.feed(with_call([4], 4, "call-1"), 1.0)  # as one event, as several, and in parts
    meter.feed(with_call([5], 5, "call-2") + with_call([6], 6, "call-3"), 1.0)
    parts = with_call([7], 7, "call-4")
    meter.feed(parts[:50], 1.0)
    meter.feed(parts[50:], 1.0)
    asked = seam_of(meter, request).request(None)
    assert asked is not None
    assert asked.so_far is not None
    assert asked.so_far.chat == request.body
    assert asked.so_far.prompt_ids == b"11,12,13"
    assert asked.so_far.ids == (b"1", b"2,3", b"4", b"5", b"6", b"7")
    assert asked.so_far.tool_call_ids == ("call-1", "call-2", "call-3", "call-4")
    assert asked.has_tools


def test_what_the_next_engine_has_parsed_is_passed_on() -> None:
    request = chat(tools=[TOOL])
    meter = seam_of(begun(request, [("a", [1])]), request).meter(GRANT, "")
    delta = {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    choice = {"delta": delta, "finish_reason": "tool_calls", "stop_reason": None, "token_ids": [2, 3]}
    [told] = payloads(meter.feed(event({"choices": [choice], "usage": usage(4, 2)}), 2.0))
    assert told["id"] == "chatcmpl-1"
    assert (told["choices"][0]["delta"], told["choices"][0]["finish_reason"]) == (delta, "tool_calls")
    assert meter.usage().outputs == (3,)


def test_completions_go_on_in_their_own_form() -> None:
    body = {"model": "m", "prompt": "hi", "stream": True}
    request = read_completion(msgspec.json.encode(body), "call")
    assert isinstance(request.form, OpenAIForm)
    meter = request.form.meter(GRANT)
    choice = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "stop_reason": None}
    choice |= {"prompt_token_ids": [1, 2], "token_ids": [3]}
    shown = meter.feed(event({**NEXT_HEAD, "choices": [choice], "usage": usage(2, 1)}), 0.0)
    assert payloads(shown)[0]["choices"][0] == {**choice, "prompt_token_ids": None, "token_ids": None}
    seam = seam_of(meter, request)
    asked = seam.request(None)
    assert asked is not None
    assert msgspec.json.decode(asked.body)["max_tokens"] == 15, "16 is the default of this endpoint"
    assert asked.so_far is None
    [told] = payloads(seam.meter(GRANT, "").feed(next_token("b", [4], 3, 1), 1.0))
    assert told["choices"][0] == {**choice, "text": "b", "prompt_token_ids": None, "token_ids": None}


@pytest.mark.parametrize("pieces", [["ab", "cSTOPd"], ["abcS", "TO", "P"], ["abc", "S", "T", "O", "Pd"]])
def test_stop_strings_are_found_however_the_text_is_split(pieces: list[str]) -> None:
    search, shown, found = StopStrings(("STOP", "never"), ""), "", None
    for piece in pieces:
        text, found = search.add(piece, is_last=False)
        shown += text
    assert (shown, found) == ("abc", "STOP")


def test_what_is_no_stop_string_is_shown_in_the_end() -> None:
    search = StopStrings(("STOP",), "S")
    assert search.add("TO", is_last=False) == ("", None)
    assert search.add("x", is_last=True) == ("STOx", None)
