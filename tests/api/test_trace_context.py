"""The W3C trace context of a request: what is taken for one, and that the engine gets it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.api.trace_context import read_trace
from headway.engines.base import Answer, EngineRequest
from headway.engines.scripted import Script, running
from headway.engines.vllm import CHAT, VLLMEngine
from headway.wire import NO_TRACE, Trace
from tests.running import MODEL, config_for, post, running_gateway

QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sent_headers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Gets the headers of each call that is sent to an engine."""
    sent: list[dict[str, str]] = []
    send = VLLMEngine.send

    async def record(self: VLLMEngine, request: EngineRequest, before_write: Callable[[], None]) -> Answer:
        sent.append({name.decode(): value.decode() for name, value in request.headers})
        return await send(self, request, before_write)

    monkeypatch.setattr(VLLMEngine, "send", record)
    return sent


@pytest.mark.anyio
async def test_the_engine_gets_the_callers_trace_context(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sent_headers(monkeypatch)
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        await here.raw(post(CHAT, BODY, b"traceparent: " + PARENT.encode(), b"tracestate: vendor=1"))
        await here.raw(post(CHAT, BODY))
    assert (sent[0]["traceparent"], sent[0]["tracestate"]) == (PARENT, "vendor=1")
    assert "traceparent" not in sent[1]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-00",
        PARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        PARENT + "\n",
        "0" * 10_000,
    ],
)
def test_a_trace_context_that_is_not_valid_is_none(parent: str) -> None:
    assert read_trace({b"traceparent": parent.encode(), b"tracestate": b"a=1"}) == NO_TRACE


@pytest.mark.parametrize(("state", "kept"), [(b"a=1,b=2", "a=1,b=2"), (b"a=\xff", ""), (b"a" * 513, ""), (b"", "")])
def test_a_trace_state_is_bounded(state: bytes, kept: str) -> None:
    assert read_trace({b"traceparent": PARENT.encode(), b"tracestate": state}) == Trace(PARENT, kept)
