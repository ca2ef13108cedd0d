"""Callers for runs/express/live.py: each call is one connection and records how it ended.

A call ends as `answered`, `refused` (429 or 503 with the gateway's message), `cut` (the stream ended with an error
event, as it does when its engine is lost), `left` (the client disconnected), or `unexplained`, which is a failure.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, field

import msgspec

from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool, Headers, Response
from runs.measure.streams import CHAT_PATH, CLOSE

CALL_TIMEOUT_S = 90.0
TAIL_BYTES = 2000  # the last events of a stream: its usage with the proof, and [DONE]


@dataclass(slots=True)
class Plan:
    """What a client requests, and whether it stays to the end."""

    tier: str
    tokens: int
    streamed: bool = True
    falls_back: bool = True
    leaves_after_s: float | None = None

    def body(self, model: str) -> bytes:
        body: dict[str, object] = {"model": model, "max_tokens": self.tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "Tell me a long story about a bus."}]
        if self.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.tier != "standard":
            body["service_tier"] = self.tier
        return msgspec.json.encode(body)

    @property
    def headers(self) -> Headers:
        return CLOSE if self.falls_back else (*CLOSE, (b"headway-fallback", b"none"))


@dataclass(slots=True)
class Ended:
    """How a call ended, as its client saw it."""

    plan: Plan
    how: str
    at: float  # on the machine's monotonic clock
    id: str = ""  # empty if the client left before the answer began
    tier_served: str = ""
    tokens: int = 0
    proof: dict[str, object] = field(default_factory=dict)
    words: str = ""  # the message of a refusal, or the details of an unexplained end


async def call(port: int, model: str, plan: Plan) -> Ended:
    """Make one call on a connection of its own. The client leaves by closing it."""
    pool = ConnectionPool(f"http://127.0.0.1:{port}")
    body = b""
    response: Response | None = None

    def keep(data: bytes) -> None:
        nonlocal body
        body += data
        if plan.streamed and response is not None and response.status == 200:
            body = body[-TAIL_BYTES:]

    ended = Ended(plan, "unexplained", 0.0)
    stay = asyncio.timeout(plan.leaves_after_s)
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            response = await pool.send(b"POST", CHAT_PATH, plan.body(model), plan.headers)
            async with stay:
                await response.pipe(keep)
    except (ConnectionFailed, TimeoutError) as error:
        ended.words = repr(error)
    finally:
        ended.at = time.monotonic()
        if response is not None:
            response.close()
    if response is not None:
        _explain(ended, response, body, has_left=stay.expired())
    return ended


def _explain(ended: Ended, response: Response, body: bytes, *, has_left: bool) -> None:
    ended.id = response.headers.get(b"x-request-id", b"").decode()
    ended.tier_served = response.headers.get(b"headway-tier-served", b"").decode()
    is_answer = response.status == 200
    if ended.plan.streamed and b"data: [DONE]" in body:
        ended.how = "answered"
        event = body[body.rindex(b"data: {") : body.rindex(b"data: [DONE]")]
        _read_usage(ended, event.removeprefix(b"data: "))
    elif not ended.plan.streamed and is_answer and response.ended:
        ended.how = "answered"
        _read_usage(ended, body)
    elif has_left:
        ended.how = "left"
    elif response.status in (429, 503) and b'"code":"' in body:
        ended.how = "refused"
        ended.words = msgspec.json.decode(body)["error"]["code"]
    elif is_answer and b'data: {"error":' in body:
        ended.how = "cut"
    else:
        ended.words = f"{ended.words} status {response.status or 'none'}, then {body[-200:]!r}"


def _read_usage(ended: Ended, answer: bytes) -> None:
    usage = msgspec.json.decode(answer)["usage"]
    ended.tokens, ended.proof = usage["completion_tokens"], usage["headway"]


def length(chance: random.Random, median: int) -> int:
    return max(4, min(400, round(chance.lognormvariate(math.log(median), 0.7))))


def standard_plan(chance: random.Random) -> Plan:
    plan = Plan("standard", length(chance, 80), streamed=chance.random() < 0.8)
    if chance.random() < 0.15:
        plan.leaves_after_s = chance.expovariate(1 / 2.0)
    return plan


def fast_plan(chance: random.Random) -> Plan:
    plan = Plan("fast", length(chance, 60), streamed=chance.random() < 0.75, falls_back=chance.random() < 0.7)
    if chance.random() < 0.2:
        plan.leaves_after_s = chance.expovariate(1 / 0.6)
    return plan
