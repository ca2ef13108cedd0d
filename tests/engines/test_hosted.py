"""What a call costs at a hosted server, whatever that server says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.engines.base import EngineRequest
from headway.engines.hosted import HostedAnswer, HostedCost
from headway.price import Price

PRICE = Price(3_000_000, 50_000_000, cached_micro=1_000_000)  # micro-units per token: 3, 50 and 1
REQUEST = EngineRequest("/v1/chat/completions", (), b"{}", prompt_tokens=7, max_cost=9_999)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


class Said:
    """An answer that was read already."""

    status, content_type = 200, b"application/json"

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def pipe(self, sink: Any) -> None:
        sink(self._body)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


async def spent(body: bytes, *, streamed: bool) -> list[int]:
    settled: list[int] = []
    answer = HostedAnswer(Said(body), REQUEST, HostedCost(PRICE, REQUEST, settled.append))
    if streamed:
        await answer.pipe(lambda _data: None)
    else:
        await answer.read()
    answer.close()
    answer.close()
    return settled


def event(usage: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4}, 230),
        ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}, 218),
        ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 60}}, 210),
        ({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": None}, 230),
    ],
)
async def test_a_call_costs_what_the_usage_says(usage: Any, cost: int) -> None:
    assert await spent(msgspec.json.encode({"usage": usage}), streamed=False) == [cost]
    assert await spent(TOKEN + event(usage), streamed=True) == [cost]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "usage",
    [
        None, [], "much", 7, {"prompt_tokens": -1, "completion_tokens": 4}, {"prompt_tokens": 2**31, "completion_tokens": 4},
        {"prompt_tokens": "10", "completion_tokens": 4}, {"completion_tokens": True},
        {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": [1]},
    ],
)  # fmt: skip
async def test_a_usage_that_is_none_costs_what_was_seen(usage: Any) -> None:
    assert await spent(msgspec.json.encode({"usage": usage}), streamed=False) == [9_999]
    assert await spent(TOKEN * 2 + event(usage), streamed=True) == [7 * 3 + 2 * 50]
    assert await spent(b"not JSON", streamed=False) == [9_999]
