"""Servers that are not vLLM: what they do not say is counted."""

from __future__ import annotations

import msgspec
import pytest

from headway.engines.openai_server import StreamUsage

TOKEN = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
OWN_USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}\n\n'
DONE = b"data: [DONE]\n\n"


def passed(*pieces: bytes) -> bytes:
    usage = StreamUsage(prompt_tokens=7)
    return b"".join([usage.added_to(piece) for piece in pieces]) + usage.end()


def test_a_stream_without_usage_gets_one() -> None:
    *tokens, counted, done, rest = passed(TOKEN, TOKEN, TOKEN, DONE).split(b"\n\n")
    assert tokens == [TOKEN.strip()] * 3
    assert msgspec.json.decode(counted.removeprefix(b"data: "))["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}
    assert (done, rest) == (DONE.strip(), b"")


def test_the_usage_of_a_server_stays() -> None:
    assert passed(TOKEN, OWN_USAGE, DONE) == TOKEN + OWN_USAGE + DONE


@pytest.mark.parametrize("size", [1, 7, 50])
def test_events_may_come_in_any_pieces(size: int) -> None:
    stream = TOKEN * 3 + DONE
    assert passed(*[stream[at : at + size] for at in range(0, len(stream), size)]) == passed(stream)


def test_lines_may_end_as_in_http() -> None:
    assert passed((TOKEN + DONE).replace(b"\n", b"\r\n")) == passed(TOKEN + DONE)


def test_comments_and_empty_events_are_not_tokens() -> None:
    empty = [delta.encode() for delta in ("{}", '{"role": "assistant"}', '{"role": "assistant", "content": ""}')]
    events = [b'data: {"choices": [{"index": 0, "delta": %b}]}\n\n' % delta for delta in empty]
    assert b'"completion_tokens":1' in passed(b": ping\n\n", *events, TOKEN, DONE)


def test_a_stream_that_ends_with_its_connection_is_complete_if_it_says_why_it_ended() -> None:
    """As those of `transformers serve`, whose last event has the usage."""
    last = b'data: {"choices":[{"delta":{},"index":0,"finish_reason":"length"}],"usage":{"completion_tokens":5}}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":5}}\n\n'
    assert passed(TOKEN, last) == TOKEN + last + usage + DONE
    assert passed(TOKEN, TOKEN) == TOKEN + TOKEN, "it was cut off"


def test_an_event_is_bounded() -> None:
    with pytest.raises(ValueError, match="more than"):
        passed(b"data: " + b"x" * (2**20 + 1))
