"""The meters: what they let through, what they count, and that no cut of the network changes either."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.api.anthropic import AnthropicMeter
from headway.api.openai import OpenAIMeter
from headway.errors import EngineLost
from headway.wire import Meter, Served

ID = '"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m"'


def token(text: str, count: int, usage: bool = True, finish: str = "null") -> str:
    tail = (
        f',"usage":{{"prompt_tokens":7,"total_tokens":{7 + count},"completion_tokens":{count},'
        '"completion_tokens_details":null}'
        if usage
        else ""
    )
    content = msgspec.json.encode(text).decode()
    choice = f'{{"index":0,"delta":{{"content":{content}}},"logprobs":null,"finish_reason":{finish},"token_ids":null}}'
    return f'data: {{{ID},"choices":[{choice}]{tail}}}\n\n'


FIRST = (
    f'data: {{{ID},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,'
    '"finish_reason":null}],"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0,'
    '"completion_tokens_details":null},"prompt_token_ids":null,"prompt_text":null}\n\n'
)
# A model may write anything, our own marks included.
WORDS = ["Hi", ' ,"usage":{', "}}", "\n\n", " data: [DONE]", " é世", '"}}\\n\\n']
LAST = (
    f'data: {{{ID},"choices":[],"usage":{{"prompt_tokens":7,"total_tokens":14,"completion_tokens":7}},'
    '"system_fingerprint":"v","metrics":{"time_to_first_token_ms":96.4,"generation_time_ms":229.8}}\n\n'
)
STREAM = FIRST + "".join(token(word, n + 1) for n, word in enumerate(WORDS)) + LAST + "data: [DONE]\n\n"
BARE = (
    FIRST.replace(
        ',"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0,"completion_tokens_details":null}', ""
    )
    + "".join(token(word, 0, usage=False) for word in WORDS)
    + "data: [DONE]\n\n"
)

MESSAGES = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"x","usage":{"input_tokens":9,"output_tokens":0}}}\n\n'
    'event: content_block_start\ndata: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}\n\n'
    + "".join(
        f'event: content_block_delta\ndata: {{"type":"content_block_delta","delta":{{"text":"{w}"}},"index":0}}\n\n'
        for w in ("a", "b", "c")
    )
    + 'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"input_tokens":9,"output_tokens":4}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def pieces(text: str, cuts: list[int]) -> list[bytes]:
    data = text.encode()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def events(text: str) -> list[bytes]:
    return [event.encode() + b"\n\n" for event in text.split("\n\n")[:-1]]


def through(meter: Meter, parts: list[bytes]) -> str:
    return b"".join(meter.feed(part, float(n)) for n, part in enumerate(parts)).decode()


def payloads(text: str) -> list[Any]:
    """The stream's content, without regard to how its JSON is spaced."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else msgspec.json.decode(line) for line in lines]


def sans_proof(chunks: list[Any]) -> list[Any]:
    """What we add is looked at elsewhere: the tier in the first and last chunk, the proof in the last."""
    for chunk in chunks:
        if isinstance(chunk, dict):
            chunk.pop("service_tier", None)
            for usage in (chunk.get("usage"), chunk.get("message", {}).get("usage")):
                (usage or {}).pop("headway", None)
                (usage or {}).pop("speed", None)
    return chunks


def test_usage_the_client_did_not_ask_for_is_taken_out() -> None:
    meter = OpenAIMeter(wants_usage=False, wants_continuous_usage=False)
    assert sans_proof(payloads(through(meter, events(STREAM)))) == payloads(BARE)
    assert meter.usage() == (7, 7)
    assert meter.complete


def test_a_client_that_asked_for_usage_gets_it_once_at_the_end() -> None:
    meter = OpenAIMeter(wants_usage=True, wants_continuous_usage=False)
    got = sans_proof(payloads(through(meter, events(STREAM))))
    assert [chunk["usage"] for chunk in got if isinstance(chunk, dict) and chunk.get("usage")] == [
        {"prompt_tokens": 7, "total_tokens": 14, "completion_tokens": 7}
    ]


def test_a_client_that_asked_for_all_gets_the_bytes_as_they_came() -> None:
    meter = OpenAIMeter(wants_usage=True, wants_continuous_usage=True)
    assert sans_proof(payloads(through(meter, events(STREAM)))) == payloads(STREAM)


@given(st.lists(st.integers(0, 10_000), max_size=30), st.booleans())
def test_cuts_of_the_network_change_nothing(cuts: list[int], wants_usage: bool) -> None:
    whole = OpenAIMeter(wants_usage=wants_usage, wants_continuous_usage=False)
    cut = OpenAIMeter(wants_usage=wants_usage, wants_continuous_usage=False)
    got, wanted = (payloads(through(m, parts)) for m, parts in ((cut, pieces(STREAM, cuts)), (whole, events(STREAM))))
    assert sans_proof(got) == sans_proof(wanted)
    assert cut.usage() == whole.usage()
    assert cut.complete


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_the_anthropic_stream_passes_unchanged(cuts: list[int]) -> None:
    meter = AnthropicMeter()
    assert sans_proof(payloads(through(meter, pieces(MESSAGES, cuts)))) == payloads(MESSAGES)
    assert meter.usage() == (9, 4)
    assert meter.complete


def test_a_stream_cut_in_the_middle_has_the_count_so_far() -> None:
    openai = OpenAIMeter(wants_usage=False, wants_continuous_usage=False)
    through(openai, events(STREAM)[:4])
    assert openai.usage() == (7, 3)
    assert not openai.complete
    anthropic = AnthropicMeter()
    through(anthropic, events(MESSAGES)[:4])
    assert anthropic.usage() == (9, 2)
    assert not anthropic.complete


def test_the_stamps_are_of_the_first_and_the_last_token() -> None:
    meter = OpenAIMeter(wants_usage=True, wants_continuous_usage=False)
    through(meter, events(STREAM))  # piece n is read at time n
    assert (meter.first_at, meter.last_at) == (0.0, float(len(WORDS)))
    anthropic = AnthropicMeter()
    through(anthropic, events(MESSAGES))
    assert (anthropic.first_at, anthropic.last_at) == (2.0, 4.0)


def test_an_error_inside_a_stream_is_a_lost_engine_and_no_success() -> None:
    broken = FIRST + 'data: {"error":{"message":"out of memory","type":"X","code":500}}\n\ndata: [DONE]\n\n'
    meter = OpenAIMeter(wants_usage=False, wants_continuous_usage=False)
    with pytest.raises(EngineLost, match="out of memory"):
        through(meter, events(broken))
    assert not meter.complete
    with pytest.raises(EngineLost, match="no room"):
        through(AnthropicMeter(), [b'event: error\ndata: {"type":"error","error":{"message":"no room"}}\n\n'])


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    meter = AnthropicMeter()
    with pytest.raises(EngineLost, match="without an end"):
        for _ in range(10):
            meter.feed(b"x" * 2**20, 0.0)


def test_comments_pass() -> None:
    meter = OpenAIMeter(wants_usage=False, wants_continuous_usage=False)
    assert meter.feed(b": keep-alive\n\n", 0.0) == b": keep-alive\n\n"
    assert meter.first_at is None


def test_usage_of_whole_answers() -> None:
    meter = OpenAIMeter(wants_usage=False, wants_continuous_usage=False)
    meter.read_whole(b'{"usage":{"prompt_tokens":3,"completion_tokens":5}}')
    assert meter.usage() == (3, 5)
    anthropic = AnthropicMeter()
    anthropic.read_whole(b'{"usage":{"input_tokens":3,"output_tokens":5}}')
    assert anthropic.usage() == (3, 5)
    assert anthropic.read_whole(b'{"input_tokens":3}') == b'{"input_tokens":3}'  # count_tokens: nothing was generated


def test_the_proof_says_what_was_asked_served_measured_and_kept() -> None:
    meter = OpenAIMeter(wants_usage=True, wants_continuous_usage=False)
    meter.served = Served("fast", "fast", None, 0.5, seat_us=lambda: 1_250_000)
    tokens = [token("x", n + 1).encode() for n in range(20)]
    last = LAST.replace('"completion_tokens":7', '"completion_tokens":20').encode()
    got = payloads(through(meter, [FIRST.encode(), *tokens, last]))
    assert got[0]["service_tier"] == got[-1]["service_tier"] == "fast"
    proof: dict[str, Any] = {"tier_asked": "fast", "tier_served": "fast", "reason": None}
    proof |= {"tokens_per_second": 0.95, "floor_tokens_per_second": 0.5, "kept": True}  # 19 tokens in 20 s
    proof["seat_seconds"] = 1.25
    assert got[-1]["usage"]["headway"] == proof
    meter.served = Served("fast", "fast", None, 2.0)
    assert meter.served.proof(0, 20, meter.speed_tps())["kept"] is False


def test_short_answers_carry_no_promise() -> None:
    assert Served("fast", "fast", None, 10.0).proof(0, 15, 1.0)["kept"] is None
    assert Served("standard", "standard").proof(0, 500, 1.0)["kept"] is None


def test_a_downgraded_answer_says_so_in_its_dialect() -> None:
    openai = OpenAIMeter(wants_usage=True, wants_continuous_usage=False)
    openai.served = Served("fast", "standard", "hold_timeout")
    got = payloads(through(openai, events(STREAM)))
    assert got[0]["service_tier"] == "default"
    assert got[-2]["usage"]["headway"]["reason"] == "hold_timeout"
    anthropic = AnthropicMeter()
    anthropic.served = Served("fast", "fast", None, 1.0)
    got = payloads(through(anthropic, events(MESSAGES)))
    assert got[0]["message"]["usage"]["speed"] == "fast"
    assert got[-2]["usage"]["speed"] == "fast"
    assert got[-2]["usage"]["headway"]["tier_served"] == "fast"


def test_a_client_that_said_priority_hears_the_word_again() -> None:
    meter = OpenAIMeter(wants_usage=False, wants_continuous_usage=False, says_priority=True)
    meter.served = Served("fast", "fast")
    assert payloads(through(meter, events(STREAM)))[0]["service_tier"] == "priority"
