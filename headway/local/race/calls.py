"""One streamed call in the OpenAI dialect, over HTTP, as any client makes it; what it answers goes into a lane."""

from __future__ import annotations

import asyncio
import time

import msgspec

from headway.core.types import Tier
from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool
from headway.local.race.state import Lane, OfferedTier, Proof

PATH = "/v1/chat/completions"
EVENT_END = b"\n\n"
DATA = b"data: "
DONE = b"[DONE]"
RETRY_S = 1.0


class _StreamedDelta(msgspec.Struct):
    content: str | None = None


class _StreamedChoice(msgspec.Struct):
    delta: _StreamedDelta


class _StreamedUsage(msgspec.Struct):
    completion_tokens: int = 0
    headway: Proof | None = None


class _StreamedError(msgspec.Struct):
    message: str


class _StreamedChunk(msgspec.Struct):
    id: str = ""
    choices: list[_StreamedChoice] = []
    usage: _StreamedUsage | None = None
    error: _StreamedError | None = None  # in the place of all others


class _OfferedModel(msgspec.Struct):
    id: str
    service_tiers: list[OfferedTier]


class _ModelsPage(msgspec.Struct):
    data: list[_OfferedModel]


def request_body(model: str, tier: Tier, prompt: str, max_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "service_tier": tier,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},  # the proof is part of the usage
        }
    )


async def read_offers(gateway: ConnectionPool, model: str) -> dict[Tier, OfferedTier]:
    answer = await gateway.request(b"GET", "/v1/models")
    try:
        models = msgspec.json.decode(await answer.read(), type=_ModelsPage).data
    finally:
        answer.close()
    return {offer.name: offer for one in models if one.id == model for offer in one.service_tiers}


async def call(gateway: ConnectionPool, model: str, lane: Lane, prompt: str) -> None:
    """Ask for the lane's tier and follow the answer to its end. A failure is told in the lane, not raised."""
    body = request_body(model, lane.offer.name, prompt, lane.max_tokens)
    try:
        answer = await gateway.request(b"POST", PATH, body)
        try:
            if answer.status != 200:
                lane.problem = f"status {answer.status}: {(await answer.read()).decode(errors='replace')}"
                return
            await answer.pipe(AnswerReader(lane).feed)
        finally:
            answer.close()
    except ConnectionFailed as error:
        lane.problem = str(error)


class AnswerReader:
    """Reads the events of one answer into its lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._rest = b""

    def feed(self, data: bytes) -> None:
        now = time.monotonic()
        *events, self._rest = (self._rest + data).split(EVENT_END)
        for event in events:
            payload = event.removeprefix(DATA)
            if payload != DONE:
                self._read(msgspec.json.decode(payload, type=_StreamedChunk), now)

    def _read(self, chunk: _StreamedChunk, now: float) -> None:
        lane = self._lane
        if chunk.error is not None:
            lane.problem = chunk.error.message
            return
        lane.call_id = chunk.id.removeprefix("chatcmpl-")  # the engine's request id is the gateway's call id
        for choice in chunk.choices:
            if choice.delta.content:
                lane.add_token(choice.delta.content, now)
        if chunk.usage is not None and chunk.usage.headway is not None:
            lane.tokens, lane.proof = chunk.usage.completion_tokens, chunk.usage.headway


async def keep_calling(gateway: ConnectionPool, model: str, tier: Tier, prompt: str, lengths: list[int]) -> None:
    """One of the other callers: a call after the other, for ever; nobody looks at the answers."""
    while True:
        for max_tokens in lengths:
            answer = await gateway.request(
                b"POST", "/v1/chat/completions", request_body(model, tier, prompt, max_tokens)
            )
            try:
                await answer.pipe(_ignore)
                if answer.status != 200:
                    await asyncio.sleep(RETRY_S)
            finally:
                answer.close()


def _ignore(data: bytes) -> None:
    """An answer nobody looks at."""
