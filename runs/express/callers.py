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
from typing import cast

import msgspec

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

    def request(self, model: str) -> bytes:
        body: dict[str, object] = {"model": model, "max_tokens": self.tokens, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "Tell me a long story about a bus."}]
        if self.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.tier != "standard":
            body["service_tier"] = self.tier
        content = msgspec.json.encode(body)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        )
        if not self.falls_back:
            head += "headway-fallback: none\r\n"
        return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


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


class Caller(asyncio.Protocol):
    """One call. The gateway closes the connection at its end, or the client when it leaves."""

    def __init__(self, plan: Plan, model: str) -> None:
        self.done: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._plan, self._model = plan, model
        self._head = self._body = b""
        self._head_read = self._has_left = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._plan.request(self._model))
        if self._plan.leaves_after_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._plan.leaves_after_s, self._leave)

    def data_received(self, data: bytes) -> None:
        if not self._head_read:
            self._head, end, data = (self._head + data).partition(b"\r\n\r\n")
            self._head_read = bool(end)
        self._body += data
        if self._plan.streamed and self._head.startswith(b"HTTP/1.1 200"):
            self._body = self._body[-TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_result(self._ended())

    def _leave(self) -> None:
        self._has_left = True
        self._transport.abort()

    def _ended(self) -> Ended:
        ended = Ended(self._plan, "unexplained", time.monotonic())
        head = self._head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        ended.id, ended.tier_served = headers.get("x-request-id", ""), headers.get("headway-tier-served", "")
        status = head[0].split()[1] if self._head_read else ""
        if self._plan.streamed and b"data: [DONE]" in self._body:
            ended.how = "answered"
            self._read_usage(ended, self._body[self._body.rindex(b"data: {") : self._body.rindex(b"data: [DONE]")])
        elif not self._plan.streamed and status == "200" and not self._has_left:
            ended.how = "answered"
            self._read_usage(ended, b"data: " + self._body)
        elif self._has_left:
            ended.how = "left"
        elif status in ("429", "503") and b'"code":"' in self._body:
            ended.how = "refused"
            ended.words = msgspec.json.decode(self._body)["error"]["code"]
        elif status == "200" and b'data: {"error":' in self._body:
            ended.how = "cut"
        else:
            ended.words = f"status {status or 'none'}, then {self._body[-200:]!r}"
        return ended

    def _read_usage(self, ended: Ended, event: bytes) -> None:
        # The chunked encoding surrounds the event, so take the object from its first brace to its last.
        usage = msgspec.json.decode(event[event.index(b"{") : event.rindex(b"}") + 1])["usage"]
        ended.tokens, ended.proof = usage["completion_tokens"], usage["headway"]


async def call(port: int, model: str, plan: Plan) -> Ended:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            _, caller = await loop.create_connection(lambda: Caller(plan, model), "127.0.0.1", port)
            return await caller.done
    except (OSError, TimeoutError) as error:
        return Ended(plan, "unexplained", time.monotonic(), words=repr(error))


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
