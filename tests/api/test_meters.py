"""The meters: what they let through, what they count, and that no cut of the network changes either."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.api import answers, collect_stream
from headway.api.answers import read_fields
from headway.api.anthropic_meter import AnthropicMeter, MessagesForm
from headway.api.openai_meter import OpenAIForm, OpenAIMeter
from headway.api.proof import proof_of
from headway.api.responses_meter import ResponsesForm
from headway.core.types import Tier
from headway.errors import EngineLost, RefusalReason
from headway.gateway.billing import make_receipt
from headway.sse import EventSplitter
from headway.wire import Grant, Meter, Receipt, Usage

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


STANDARD = Grant("standard", "standard")


def openai_meter(*, wants_usage: bool, wants_continuous_usage: bool = False, grant: Grant = STANDARD) -> OpenAIMeter:
    return OpenAIForm(wants_usage, wants_continuous_usage).meter(grant)


def anthropic_meter(grant: Grant = STANDARD) -> AnthropicMeter:
    return MessagesForm().meter(grant)


def granted(asked: Tier, served: Tier, reason: RefusalReason | None = None, floor_tps: float = 0.0) -> Grant:
    return Grant(asked, served, "r0", reason, floor_tps)


def receipt_of(meter: Meter, grant: Grant = STANDARD, seat_us: int | None = None) -> Receipt:
    return make_receipt(
        grant,
        "finished",
        meter,
        is_delivered=True,
        reader_was_slow=False,
        seat_us=seat_us,
        answer_s=2.0,
        boardings=1,
    )


def pieces(text: str, cuts: list[int]) -> list[bytes]:
    data = text.encode()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def events(text: str) -> list[bytes]:
    return [event.encode() + b"\n\n" for event in text.split("\n\n")[:-1]]


def through(meter: Meter, parts: list[bytes], grant: Grant = STANDARD) -> str:
    """All that the client gets: as it is fed, and at the end if there is one."""
    passed = b"".join(meter.feed(part, float(n)) for n, part in enumerate(parts))
    return (passed + (meter.end(receipt_of(meter, grant)) if meter.is_final else b"")).decode()


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
    meter = openai_meter(wants_usage=False)
    assert sans_proof(payloads(through(meter, events(STREAM)))) == payloads(BARE)
    assert meter.usage() == Usage(7, 0, (7,))
    assert meter.is_complete


def test_a_client_that_asked_for_usage_gets_it_once_at_the_end() -> None:
    meter = openai_meter(wants_usage=True)
    got = sans_proof(payloads(through(meter, events(STREAM))))
    assert [chunk["usage"] for chunk in got if isinstance(chunk, dict) and chunk.get("usage")] == [
        {"prompt_tokens": 7, "total_tokens": 14, "completion_tokens": 7}
    ]


def test_a_client_that_asked_for_all_gets_the_bytes_as_they_came() -> None:
    meter = openai_meter(wants_usage=True, wants_continuous_usage=True)
    assert sans_proof(payloads(through(meter, events(STREAM)))) == payloads(STREAM)


@given(st.lists(st.integers(0, 10_000), max_size=30), st.booleans())
def test_cuts_of_the_network_change_nothing(cuts: list[int], wants_usage: bool) -> None:
    whole = openai_meter(wants_usage=wants_usage)
    cut = openai_meter(wants_usage=wants_usage)
    got, wanted = (payloads(through(m, parts)) for m, parts in ((cut, pieces(STREAM, cuts)), (whole, events(STREAM))))
    assert sans_proof(got) == sans_proof(wanted)
    assert cut.usage() == whole.usage()
    assert cut.is_complete


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_the_anthropic_stream_passes_unchanged(cuts: list[int]) -> None:
    meter = anthropic_meter()
    assert sans_proof(payloads(through(meter, pieces(MESSAGES, cuts)))) == payloads(MESSAGES)
    assert meter.usage() == Usage(9, 0, (4,))
    assert meter.is_complete


def test_a_stream_cut_in_the_middle_has_the_count_so_far() -> None:
    openai = openai_meter(wants_usage=False)
    through(openai, events(STREAM)[:4])
    assert openai.usage() == Usage(7, 0, (3,))
    assert not openai.is_complete
    anthropic = anthropic_meter()
    through(anthropic, events(MESSAGES)[:4])
    assert anthropic.usage() == Usage(9, 0, (2,))
    assert not anthropic.is_complete


def test_the_stamps_are_of_the_first_and_the_last_token() -> None:
    meter = openai_meter(wants_usage=True)
    through(meter, events(STREAM))  # piece n is read at time n
    assert (meter.first_at, meter.last_at) == (0.0, float(len(WORDS)))
    anthropic = anthropic_meter()
    through(anthropic, events(MESSAGES))
    assert (anthropic.first_at, anthropic.last_at) == (2.0, 4.0)


def test_an_error_inside_a_stream_is_a_lost_engine_and_no_success() -> None:
    broken = FIRST + 'data: {"error":{"message":"out of memory","type":"X","code":500}}\n\ndata: [DONE]\n\n'
    meter = openai_meter(wants_usage=False)
    with pytest.raises(EngineLost, match="out of memory"):
        through(meter, events(broken))
    assert not meter.is_complete
    with pytest.raises(EngineLost, match="no room"):
        through(anthropic_meter(), [b'event: error\ndata: {"type":"error","error":{"message":"no room"}}\n\n'])


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    meter = anthropic_meter()
    with pytest.raises(EngineLost, match="without an end"):
        for _ in range(10):
            meter.feed(b"x" * 2**20, 0.0)


def test_comments_pass() -> None:
    meter = openai_meter(wants_usage=False)
    assert meter.feed(b": keep-alive\n\n", 0.0) == b": keep-alive\n\n"
    assert meter.first_at is None


def test_usage_of_whole_answers() -> None:
    def unknown(_answer: object) -> None:
        return None

    meter = openai_meter(wants_usage=False)
    cached = b'{"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}'
    meter.read_whole(cached, unknown)
    assert meter.usage() == Usage(3, 2, (5,))
    anthropic = anthropic_meter()
    anthropic.read_whole(b'{"usage":{"input_tokens":3,"output_tokens":5}}', unknown)
    assert anthropic.usage() == Usage(3, 0, (5,))
    cached_message = anthropic_meter()
    counts = b'"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":4,"output_tokens":5'
    cached_message.read_whole(b'{"usage":{' + counts + b"}}", unknown)
    assert cached_message.usage() == Usage(27, 20, (5,)), "this dialect does not count them as input tokens"
    nothing = anthropic_meter()  # count_tokens: nothing was generated
    nothing.read_whole(b'{"input_tokens": 3}', unknown)
    assert nothing.end(receipt_of(nothing)) == b'{"input_tokens": 3}'


def test_the_proof_says_what_was_asked_served_measured_and_kept() -> None:
    grant = granted("fast", "fast", floor_tps=0.5)
    meter = openai_meter(wants_usage=True, grant=grant)
    tokens = [token("x", n + 1).encode() for n in range(20)]
    last = LAST.replace('"completion_tokens":7', '"completion_tokens":20').encode()
    parts = [FIRST.encode(), *tokens, last, b"data: [DONE]\n\n"]
    passed = b"".join(meter.feed(part, float(n)) for n, part in enumerate(parts))
    got = payloads((passed + meter.end(receipt_of(meter, grant, seat_us=1_250_000))).decode())[:-1]
    assert got[0]["service_tier"] == got[-1]["service_tier"] == "fast"
    proof: dict[str, Any] = {"tier_asked": "fast", "tier_served": "fast", "reason": None}
    proof |= {"tokens_per_second": 0.95, "floor_tokens_per_second": 0.5, "kept": True}  # 19 tokens in 20 s
    proof |= {"seat_seconds": 1.25, "answer_seconds": 2.0}
    assert got[-1]["usage"]["headway"] == proof
    assert receipt_of(meter, granted("fast", "fast", floor_tps=2.0)).kept is False


class _Measured:
    """A meter that has read what it is told to have read."""

    def __init__(self, output_tokens: int, speed_tps: float) -> None:
        self._usage, self._speed_tps = Usage(0, 0, (output_tokens,)), speed_tps

    def usage(self) -> Usage:
        return self._usage

    def speed_tps(self) -> float:
        return self._speed_tps


def test_short_answers_carry_no_promise() -> None:
    short: Any = _Measured(15, 1.0)
    assert proof_of(receipt_of(short, granted("fast", "fast", floor_tps=10.0)))["kept"] is None
    long: Any = _Measured(500, 1.0)
    assert proof_of(receipt_of(long))["kept"] is None


def test_a_downgraded_answer_says_so_in_its_dialect() -> None:
    grant = granted("fast", "standard", "hold_timeout")
    got = payloads(through(openai_meter(wants_usage=True, grant=grant), events(STREAM), grant))
    assert got[0]["service_tier"] == "default"
    assert got[-2]["usage"]["headway"]["reason"] == "hold_timeout"
    grant = granted("fast", "fast", floor_tps=1.0)
    got = payloads(through(anthropic_meter(grant), events(MESSAGES), grant))
    assert got[0]["message"]["usage"]["speed"] == "fast"
    assert got[-2]["usage"]["speed"] == "fast"
    assert got[-2]["usage"]["headway"]["tier_served"] == "fast"


def test_a_client_that_said_priority_hears_the_word_again() -> None:
    meter = OpenAIForm(says_priority=True).meter(granted("fast", "fast"))
    assert payloads(through(meter, events(STREAM)))[0]["service_tier"] == "priority"


def test_the_closing_events_wait_for_the_receipt() -> None:
    """The proof is in them, and it is made when the engine's last usage has been read."""
    meter = openai_meter(wants_usage=True)
    passed = [meter.feed(event, 0.0) for event in events(STREAM)]
    assert meter.is_final
    assert passed[-2:] == [b"", b""]
    closing = payloads(meter.end(receipt_of(meter)).decode())
    assert closing[0]["usage"]["headway"]["tier_served"] == "standard"
    assert closing[1] == "[DONE]"


def test_a_last_event_that_ends_with_its_usage_is_no_token() -> None:
    last = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7,"total_tokens":14,"completion_tokens":7}}\n\n'
    meter = openai_meter(wants_usage=True)
    got = payloads(through(meter, [*events(STREAM)[:-2], last, b"data: [DONE]\n\n"]))
    assert got[-2]["usage"]["headway"]["kept"] is None
    assert meter.last_at == float(len(WORDS))


def test_nor_is_it_one_if_other_objects_come_before_its_usage() -> None:
    last = (
        b'data: {"id":"1","choices":[],"metrics":{"speculation":{}},'
        b'"usage":{"prompt_tokens":7,"total_tokens":14,"completion_tokens":7}}\n\n'
    )
    meter = openai_meter(wants_usage=True)
    got = payloads(through(meter, [*events(STREAM)[:-2], last, b"data: [DONE]\n\n"]))
    assert got[-2]["usage"]["headway"]["tier_served"] == "standard"
    assert meter.last_at == float(len(WORDS))


SIGNATURE = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta",'
    b'"delta":{"type":"signature_delta","signature":"s"},"index":0}\n\n'
)


def test_the_signature_of_a_thinking_block_is_no_token() -> None:
    start, block, *tokens, stop, delta, end = events(MESSAGES)
    meter = anthropic_meter()
    thought = [start, block, *tokens, SIGNATURE]
    assert SIGNATURE.decode() in through(meter, thought), "but it is passed on"
    assert meter.usage() == Usage(9, 0, (len(tokens),))
    assert meter.last_at == 4.0
    exact = delta.replace(b'"output_tokens":4', b'"output_tokens":2')
    through(meter, [stop, exact, end])
    assert meter.usage() == Usage(9, 0, (2,)), "the engine's last count, not the number of its deltas"


def collected(form: Any, parts: list[bytes]) -> dict[str, Any]:
    meter = form.meter(STANDARD)
    assert b"".join(meter.feed(part, float(n)) for n, part in enumerate(parts)) == b""
    answer: dict[str, Any] = msgspec.json.decode(meter.end(receipt_of(meter)))
    return answer


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_a_stream_is_collected_into_one_answer_and_counted_as_it_comes(cuts: list[int]) -> None:
    form = OpenAIForm(collects=True)
    meter = form.meter(STANDARD)
    for part in events(STREAM)[:4]:
        meter.feed(part, 0.0)
    assert meter.usage() == Usage(7, 0, (3,)), "what a client that leaves now is charged"
    answer = collected(form, pieces(STREAM, cuts))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "".join(WORDS)
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["usage"]["headway"]["tier_served"] == "standard"
    assert (answer["system_fingerprint"], answer["service_tier"]) == ("v", "default")


def test_each_choice_is_collected_by_itself() -> None:
    head = '"id":"1","object":"text_completion","created":1,"model":"m"'
    texts = [(1, "b", "null"), (0, "a", "null"), (1, "B", '"stop"'), (0, "A", '"length"')]
    parts = [
        f'data: {{{head},"choices":[{{"index":{index},"text":"{text}","logprobs":{{"tokens":["{text}"]}},'
        f'"finish_reason":{finish}}}]}}\n\n'.encode()
        for index, text, finish in texts
    ]
    last = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
    answer = collected(OpenAIForm(choices=2, collects=True), [*parts, last, b"data: [DONE]\n\n"])
    assert [(one["text"], one["finish_reason"], one["logprobs"]) for one in answer["choices"]] == [
        ("aA", "length", {"tokens": ["a", "A"]}),
        ("bB", "stop", {"tokens": ["b", "B"]}),
    ]


def test_a_stream_without_a_token_cannot_be_collected() -> None:
    with pytest.raises(EngineLost, match="cannot be read"):
        collected(OpenAIForm(collects=True), [b"data: [DONE]\n\n"])


def choice_event(index: int, count: int) -> bytes:
    usage = f'"usage":{{"prompt_tokens":7,"total_tokens":{7 + count},"completion_tokens":{count}}}'
    return f'data: {{"choices":[{{"index":{index},"delta":{{"content":"x"}}}}],{usage}}}\n\n'.encode()


def delta_events(count: int) -> bytes:
    event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}
    return b"event: content_block_delta\ndata: %b\n\n" % msgspec.json.encode(event) * count


def output_events(count: int) -> bytes:
    return b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n' * count


def test_tokens_that_come_with_the_first_one_are_not_taken_for_fast() -> None:
    """The engine made eight at its pace, and the gateway read them at once, late."""
    both = b"".join(choice_event(index, count) for count in range(1, 9) for index in (0, 1))
    one, two = openai_meter(wants_usage=True), OpenAIForm(choices=2).meter(STANDARD)
    one.feed(b"".join(choice_event(0, count) for count in range(1, 9)), 5.0)
    two.feed(both, 5.0)
    messages, responses = anthropic_meter(), ResponsesForm(streaming=True).meter(STANDARD)
    messages.feed(delta_events(8), 5.0)
    responses.feed(output_events(8), 5.0)
    for meter in (one, two, messages, responses):
        assert meter.speed_tps() is None
    for count in range(9, 17):
        now = 5.0 + 0.5 * (count - 8)
        one.feed(choice_event(0, count), now)
        two.feed(choice_event(0, count) + choice_event(1, count), now)
        messages.feed(delta_events(1), now)
        responses.feed(output_events(1), now)
    for meter in (one, two, messages, responses):
        assert meter.speed_tps() == 2.0


def test_each_choice_is_counted_and_timed_by_itself() -> None:
    meter = OpenAIForm(choices=2).meter(granted("fast", "fast", floor_tps=0.9))
    now = 0.0
    for count in range(1, 21):  # the first choice gives a token a second, the second one in two
        meter.feed(choice_event(0, count), now)
        if count % 2 == 0:
            meter.feed(choice_event(1, count // 2), now)
        now += 1.0
    assert meter.usage() == Usage(7, 0, (20, 10))
    meter.feed(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":30}}\n\n', now)
    assert meter.usage() == Usage(7, 0, (20, 10))
    assert meter.speed_tps() == 1.0  # the second is too short for a promise
    for count in range(11, 41):
        meter.feed(choice_event(1, count), now)
        now += 2.0
    speed_tps = meter.speed_tps()
    assert speed_tps is not None
    assert speed_tps < 0.6


@pytest.mark.parametrize(
    "data", [b"data: {oops\n\n", b'data: {"choices": 5}\n\n', b'data: {"choices": [1]}\n\n', b'data: {"usage": 7}\n\n']
)
def test_what_cannot_be_read_is_a_lost_engine(data: bytes) -> None:
    with pytest.raises(EngineLost, match="cannot be read"):
        openai_meter(wants_usage=True).feed(data, 0.0)
    with pytest.raises(EngineLost, match="cannot be read"):
        anthropic_meter().feed(b"event: message_start\n" + data, 0.0)
    with pytest.raises(EngineLost, match="cannot be read"):
        openai_meter(wants_usage=True).read_whole(b"[]", lambda _: None)


# --- engines that lie ---

NO_COUNTS = ["-1", "1.5", "true", '"5"', "null", "2147483648", "[]", "1e3"]


def unknown_time(_answer: object) -> None:
    return None


@pytest.mark.parametrize("count", NO_COUNTS)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_a_count_that_is_no_count_is_a_lost_engine(name: str, count: str) -> None:
    usage = {"prompt_tokens": "7", "completion_tokens": "7", name: count}
    odd = ",".join(f'"{key}":{value}' for key, value in usage.items())
    for choices in ("[]", '[{"index":0,"delta":{"content":"x"}}]'):  # the last event, and a token that is parsed
        meter = openai_meter(wants_usage=True)
        meter.feed(FIRST.encode(), 0.0)
        with pytest.raises(EngineLost, match="cannot be read"):
            meter.feed(f'data: {{"usage":{{{odd}}},"choices":{choices}}}\n\n'.encode(), 1.0)
        assert meter.usage() == Usage(7, 0, (0,))
    meter = openai_meter(wants_usage=False)
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.read_whole(f'{{"choices":[],"usage":{{{odd}}}}}'.encode(), unknown_time)
    assert meter.usage() == Usage()
    assert not meter.is_complete


@pytest.mark.parametrize("count", [count for count in NO_COUNTS if count != "null"])
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cache_read_input_tokens"])
def test_a_count_that_is_no_count_is_a_lost_engine_in_messages(name: str, count: str) -> None:
    odd = f'"usage":{{"input_tokens":9,"output_tokens":0,"{name}":{count}}}'
    first = f'event: message_start\ndata: {{"type":"message_start","message":{{{odd}}}}}\n\n'
    last = f'event: message_delta\ndata: {{"type":"message_delta","delta":{{}},{odd}}}\n\n'
    for event in (first, last):
        meter = anthropic_meter()
        with pytest.raises(EngineLost, match="cannot be read"):
            meter.feed(event.encode(), 0.0)
        assert not meter.is_final
    with pytest.raises(EngineLost, match="cannot be read"):
        anthropic_meter().read_whole(f'{{"content":[],{odd}}}'.encode(), unknown_time)


def test_an_odd_usage_that_passed_with_its_token_is_not_counted_and_ends_the_stream() -> None:
    """Such a token is not parsed when it passes. Whoever asks for the usage finds the fault, and does not fail."""
    meter = openai_meter(wants_usage=False)
    for event in events(STREAM)[:3]:
        meter.feed(event, 0.0)
    assert meter.usage() == Usage(7, 0, (2,))
    meter.feed(token("x", 3).replace('"completion_tokens":3', '"completion_tokens":-3').encode(), 1.0)
    assert meter.usage() == Usage(7, 0, (2,))
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.feed(token("x", 4).encode(), 2.0)


def test_an_odd_usage_that_passed_with_its_token_is_found_at_the_end_too() -> None:
    meter = openai_meter(wants_usage=False)
    meter.feed(FIRST.encode(), 0.0)
    meter.feed(token("x", 1).replace('"completion_tokens":1', '"completion_tokens":1.5').encode(), 1.0)
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.feed(b"data: [DONE]\n\n", 2.0)
    assert not meter.is_complete


@pytest.mark.parametrize(
    "later",
    [
        token("x", 2),
        token("x", 5).replace('"prompt_tokens":7', '"prompt_tokens":6'),
        LAST.replace('"completion_tokens":7', '"completion_tokens":2'),
        token("x", 5).replace('"prompt_tokens":7', '"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":8}'),
    ],
)
def test_counts_do_not_fall(later: str) -> None:
    meter = openai_meter(wants_usage=True)
    meter.feed((FIRST + token("x", 3)).encode(), 0.0)
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.feed((later + LAST).encode(), 1.0)


def test_no_more_is_counted_than_was_asked_for() -> None:
    meter = OpenAIForm(max_tokens=6).meter(STANDARD)
    with pytest.raises(EngineLost, match="7 output tokens, 6 were asked for"):
        through(meter, events(STREAM))
    assert meter.usage() == Usage(7, 0, (0,))
    message = MessagesForm(max_tokens=3).meter(STANDARD)
    with pytest.raises(EngineLost, match="4 output tokens after 0, 3 were asked for"):
        through(message, events(MESSAGES))


def test_the_total_does_not_fall() -> None:
    again = LAST.replace('"completion_tokens":7', '"completion_tokens":2')
    with pytest.raises(EngineLost, match="2 output tokens after 7"):
        through(openai_meter(wants_usage=True), events(STREAM.replace("data: [DONE]\n\n", again)))
    two = anthropic_meter()
    two.feed(b'event: message_start\ndata: {"message":{"usage":{"input_tokens":9,"output_tokens":5}}}\n\n', 0.0)
    with pytest.raises(EngineLost, match="4 output tokens after 5"):
        two.feed(b'event: message_delta\ndata: {"delta":{},"usage":{"output_tokens":4}}\n\n', 1.0)


@pytest.mark.parametrize("answer", [b'{"choices":[]}', b'{"choices":[],"usage":null}', b'{"choices":[],"usage":{}}'])
def test_an_answer_without_usage_is_no_answer(answer: bytes) -> None:
    with pytest.raises(EngineLost, match="cannot be read"):
        openai_meter(wants_usage=True).read_whole(answer, unknown_time)
    with pytest.raises(EngineLost, match="cannot be read"):
        anthropic_meter().read_whole(answer, unknown_time)
    meter = openai_meter(wants_usage=False)
    with pytest.raises(EngineLost, match="no usage"):
        through(meter, events(BARE))
    with pytest.raises(EngineLost, match="without a usage"):
        through(anthropic_meter(), [event for event in events(MESSAGES) if b"message_delta" not in event])


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":null}\n\n',
        b'data: {"choices":{"index":0}}\n\n',
        b'data: {"choices":[{"index":0,"delta":null}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{}}]}\n\n',
        b'data: {"choices":[{"index":-1,"delta":{}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\xff"}}]}\n\n',
        b"data: no JSON\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"x":' + b"[" * 100_000 + b"\n\n",
    ],
)
def test_frames_that_are_not_as_asked_for_are_a_lost_engine(event: bytes) -> None:
    for start in ("", FIRST):
        meter = openai_meter(wants_usage=True)
        meter.feed(start.encode(), 0.0)
        with pytest.raises(EngineLost, match="cannot be read"):
            meter.feed(event, 1.0)


def test_a_token_that_is_not_utf_8_is_a_lost_engine() -> None:
    meter = openai_meter(wants_usage=True)
    meter.feed(FIRST.encode(), 0.0)
    with pytest.raises(EngineLost, match="UTF-8"):
        meter.feed(token("e", 1).encode().replace(b'"e"', b'"\xe9"'), 1.0)
    delta = b'event: content_block_delta\ndata: {"delta":{"text":"\xe9"}}\n\n'
    with pytest.raises(EngineLost, match="UTF-8"):
        anthropic_meter().feed(delta, 0.0)
    with pytest.raises(EngineLost, match="UTF-8"):
        anthropic_meter().read_whole(b'{"x":"\xff","usage":{"input_tokens":1,"output_tokens":1}}', unknown_time)


def test_nothing_follows_the_end() -> None:
    meter = openai_meter(wants_usage=True)
    through(meter, events(STREAM))
    with pytest.raises(EngineLost, match="after its end"):
        meter.feed(token("x", 9).encode(), 99.0)
    anthropic = anthropic_meter()
    last = len(events(MESSAGES)) - 1
    for event in events(MESSAGES)[:last]:
        anthropic.feed(event, 0.0)
    with pytest.raises(EngineLost, match="after its last usage"):
        anthropic.feed(events(MESSAGES)[2], 1.0)
    endless = anthropic_meter()
    endless.feed(MESSAGES.encode(), 0.0)
    with pytest.raises(EngineLost, match="does not end"):
        for _ in range(10_000):
            endless.feed(b": still here, and here, and here\n\n", 1.0)


def test_an_event_in_many_pieces_is_not_copied_with_each_of_them() -> None:
    splitter = EventSplitter()
    splitter.split(b"data: ")
    rest = splitter.rest
    for _ in range(100):
        assert splitter.split(b"x" * 10) == []
    assert splitter.rest is rest
    assert splitter.split(b"\n") == []
    assert splitter.split(b"\nrest") == [b"data: " + b"x" * 1000 + b"\n\n"]
    assert splitter.rest == b"rest"


def test_a_large_answer_is_passed_on_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    logprobs = ",".join(
        ['{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[{"token":"}],","logprob":-1}]}'] * 2000
    )
    choice = f'{{"index":0,"message":{{"content":"\\",\\"usage\\":{{}}"}},"logprobs":{{"content":[{logprobs}]}}}}'
    rest = '"service_tier":null,"usage":{"prompt_tokens":3,"completion_tokens":5},"prompt_logprobs":null'
    body = f'{{"id":"1","choices":[{choice}],{rest}}}'.encode()
    assert len(body) > answers.PARSED_BYTES
    meter = openai_meter(wants_usage=False)
    monkeypatch.setattr(answers, "read_fields", lambda small: parsed.append(small) or read_fields(small))  # type: ignore[func-returns-value]
    parsed: list[bytes] = []
    meter.read_whole(body, unknown_time)
    assert [len(small) < 200 for small in parsed] == [True]
    assert meter.usage() == Usage(3, 0, (5,))
    wanted = msgspec.json.decode(body)
    got = msgspec.json.decode(meter.end(receipt_of(meter)))
    assert got["choices"] == wanted["choices"]
    assert got["usage"].pop("headway")["tier_served"] == "standard"
    assert got == wanted | {"service_tier": "default"}
    assert meter.end(receipt_of(meter)).count(b'"service_tier"') == 1


def test_a_large_event_is_passed_on_without_being_decoded() -> None:
    """Such as the first of `echo` with log-probabilities, which arrives in many pieces."""
    logprobs = '{"tokens":[' + ",".join(['"a"'] * 50_000) + "]}"
    usage = '"usage":{"prompt_tokens":3,"completion_tokens":1}'
    event = f'data: {{"id":"1","choices":[{{"index":0,"text":"a","logprobs":{logprobs}}}],{usage}}}\n\n'.encode()
    for wants_all in (False, True):
        meter = OpenAIForm(wants_all, wants_all, wants_logprobs=True).meter(STANDARD)
        passed = b"".join(meter.feed(event[at : at + 65_536], 0.0) for at in range(0, len(event), 65_536))
        [got] = payloads(passed.decode())
        wanted = msgspec.json.decode(event[6:])
        assert got.pop("service_tier") == "default"
        if not wants_all:
            wanted.pop("usage")
        assert got == wanted
        assert meter.usage() == Usage(3, 0, (1,))


def test_a_collected_message_that_cannot_be_put_together_is_a_lost_engine() -> None:
    meter = MessagesForm(collects=True).meter(STANDARD)
    broken = MESSAGES.replace('{"text":"a"}', '{"type":"input_json_delta","partial_json":"{oops"}')
    broken = broken.replace('"delta":{"text"', '"delta":{"type":"text_delta","text"')
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.feed(broken.encode(), 0.0)
    assert not meter.is_complete


CHUNK = b'data: {"id":"x","created":1,"model":"m","object":"text_completion","choices":[%b]}\n\n'


@pytest.mark.parametrize(
    ("form", "event"),
    [
        (MessagesForm(collects=True), b'event: ping\ndata: {"type": "ping"}\n\n'),
        (OpenAIForm(collects=True), CHUNK % b'{"index":0,"text":"word"}'),
    ],
)
def test_an_answer_that_does_not_end_is_not_collected_for_ever(
    form: MessagesForm | OpenAIForm, event: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_stream, "MAX_COLLECTED_BYTES", 1000)
    meter = form.meter(STANDARD)
    with pytest.raises(EngineLost, match="too large"):
        for _ in range(100):
            meter.feed(event, 0.0)


@pytest.mark.parametrize("part", [b'{"index":0}', b'{"text":5}', b'{"text":"a","logprobs":[1]}', b'{"delta":[]}', b"7"])
def test_a_choice_that_cannot_be_collected_is_a_lost_engine(part: bytes) -> None:
    with pytest.raises(EngineLost, match="cannot be read"):
        OpenAIForm(collects=True).meter(STANDARD).feed(CHUNK % part, 0.0)


def test_a_single_byte_is_not_an_event() -> None:
    assert not EventSplitter().is_one_event(b"n")
    assert EventSplitter().split(b"n") == []


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"event: a\ndata: 1\n\n", 1),
        (b"event: a\ndata: 1\n\n" * 3, 3),
        (b"event: a\ndata: 1\n\nevent: b\ndata: 1\n\n", 0),
        (b"event: a\ndata: 1\n\nevent: a", 0),
        (b"event: a\ndata: 1\n\nevent: a\n", 0),
        (b"event: a\ndata: 1\n\n\nevent: a\ndata: 1\n\n", 0),
        (b"event: a\ndata: 1\n\nevent: a\ndata: 1\n\n\n", 0),
        (b"\n\n\n\n", 0),
        (b"", 0),
    ],
    ids=["one", "three", "another", "begun", "half", "gap", "blank", "empty", "nothing"],
)
def test_events_with_the_same_first_line_are_counted_without_being_split(data: bytes, count: int) -> None:
    assert EventSplitter().count_alike(data) == count
    after_a_part = EventSplitter()
    after_a_part.split(b"ev")
    assert not after_a_part.count_alike(data)


@pytest.mark.parametrize(
    "event",
    [token("a", 1)[:-1], token("a", 1) + "\n", token("a", 1, usage=False), token("a", 1).replace('"total', '\n"total')],
    ids=["half", "empty line", "no usage", "two lines"],
)
def test_only_whole_events_of_one_line_are_cut(event: str) -> None:
    meter = openai_meter(wants_usage=False)
    for data in ("", event, token("b", 1) + event):
        assert meter._cut(data.encode(), 1.0) == b""


def test_the_tokens_of_one_read_are_cut_at_once() -> None:
    tokens = "".join(token(word, n + 1) for n, word in enumerate(WORDS))
    for wants_usage, shown in ((False, "".join(token(word, 0, usage=False) for word in WORDS)), (True, tokens)):
        meter = openai_meter(wants_usage=wants_usage, wants_continuous_usage=wants_usage)
        meter.feed(FIRST.encode(), 0.0)
        assert meter._cut(tokens.encode(), 1.0).decode() == shown
        assert (meter.usage(), meter.last_at) == (Usage(7, 0, (7,)), 1.0)
        meter.feed((LAST + "data: [DONE]\n\n").encode(), 2.0)
        assert meter.is_complete


@pytest.mark.parametrize(
    "between",
    [
        ": a comment\n\n",
        token("x", 2, usage=False),
        "\n",
        LAST.replace('"completion_tokens":7', '"completion_tokens":2'),
    ],
    ids=["comment", "uncounted", "blank", "last"],
)
def test_other_events_among_the_tokens_of_one_read_are_parsed(between: str) -> None:
    stream = token("a", 1) + between + token("b", 3)
    at_once, one_by_one = openai_meter(wants_usage=False), openai_meter(wants_usage=False)
    for meter in (at_once, one_by_one):
        meter.feed(FIRST.encode(), 0.0)
    assert at_once.feed(stream.encode(), 1.0) == b"".join(one_by_one.feed(event, 1.0) for event in events(stream))
    assert (at_once.usage(), at_once.is_final) == (one_by_one.usage(), one_by_one.is_final)


@pytest.mark.parametrize("end", ["}\n\n", "}}\nx", "}} \n\n", "}]\n\n"], ids=["open", "line", "space", "list"])
def test_what_only_looks_like_a_token_is_not_cut(end: str) -> None:
    meter = openai_meter(wants_usage=False)
    meter.feed(FIRST.encode(), 0.0)
    assert not meter._cut((token("a", 1).removesuffix("}}\n\n") + end).encode(), 1.0)


@pytest.mark.parametrize("event", [b"\n\n", b"x\n\n", b": x\n\n"])
def test_a_flood_of_events_without_content_is_a_lost_engine(event: bytes) -> None:
    splitter = EventSplitter()
    with pytest.raises(EngineLost, match="too many events"):
        for _ in range(1_000):
            splitter.split(event)
    with pytest.raises(EngineLost, match="too many events"):
        EventSplitter().split(event * 1_000)


def test_a_few_short_events_are_not_a_flood() -> None:
    assert len(EventSplitter().split(b": x\n\n" * 64)) == 64


@pytest.mark.parametrize("meter", [OpenAIForm(wants_usage=True).meter(STANDARD), MessagesForm().meter(STANDARD)])
def test_a_number_that_cannot_be_read_is_found_before_the_end(meter: Meter) -> None:
    """In a field of the usage that is not counted."""
    tokens = '"prompt_tokens":7,"completion_tokens":1,"input_tokens":7,"output_tokens":1'
    body = f'{{"choices":[],"usage":{{{tokens},"x":1e999}}}}'.encode()
    with pytest.raises(EngineLost, match="cannot be read"):
        meter.read_whole(body, lambda _: None)
    assert not meter.is_complete


def test_a_collected_message_without_its_last_usage_is_a_lost_engine() -> None:
    """The name of the last event says that it has the usage, and its own type says something else."""
    meter = MessagesForm(collects=True).meter(STANDARD)
    last = b'event: message_delta\ndata: {"type":"","usage":{"input_tokens":9,"output_tokens":4}}\n\n'
    with pytest.raises(EngineLost, match="no usage"):
        meter.feed(last + b'event: message_stop\ndata: {"type":"message_stop"}\n\n', 0.0)
    assert not meter.is_complete
