"""Callers for runs/failover.sh: short streams through the load balancer, each on a connection of its own.

A call ends as `complete`, `refused` (429 or 503 in the gateway's words), `cut` (its answer began and did not end),
`no answer` (no response, or an error of the load balancer), or `hangs` (nothing ended it).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, field

import msgspec

GIVE_UP_S = 60.0
TAIL_BYTES = 4096
TOKEN = b'"text":"'  # in the event of each token


@dataclass(frozen=True)
class Load:
    model: str
    key: str
    standard_per_s: float
    fast_per_s: float
    standard_tokens: int  # median
    fast_tokens: int


class Ended(msgspec.Struct):
    """One call, as its client saw it. Times are those of the machine's monotonic clock, which the replicas use too."""

    tier: str
    tokens: int  # asked for
    sent_s: float
    first_s: float = 0.0  # first byte of the answer
    ended_s: float = 0.0
    how: str = "no answer"
    call_id: str = ""
    relay: str = ""  # as the load balancer says
    words: str = ""
    received: int = 0  # tokens


@dataclass
class Callers:
    port: int
    load: Load
    seed: int
    ended: list[Ended] = field(default_factory=list)
    sent: int = 0
    last_first_s: float = 0.0  # when a call last got its first byte
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Poisson arrivals that do not wait for earlier calls to end. Returns when the last call has ended."""
        chance, load = random.Random(f"calls {self.seed}"), self.load
        rate = load.standard_per_s + load.fast_per_s
        next_s = time.monotonic()
        while not self._stop.is_set():
            next_s += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            is_fast = chance.random() < load.fast_per_s / rate
            median = load.fast_tokens if is_fast else load.standard_tokens
            tokens = max(8, min(3 * median, round(chance.lognormvariate(math.log(median), 0.5))))
            self.sent += 1
            task = asyncio.create_task(self._call("fast" if is_fast else "standard", tokens))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        await asyncio.gather(*self._calls)

    def stop(self) -> None:
        self._stop.set()

    async def _call(self, tier: str, tokens: int) -> None:
        ended = Ended(tier, tokens, time.monotonic())
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._ask(ended)
        except (OSError, asyncio.IncompleteReadError) as error:
            ended.words = repr(error)
        except TimeoutError:
            ended.how = "hangs"
        ended.ended_s = time.monotonic()
        self.ended.append(ended)

    async def _ask(self, ended: Ended) -> None:
        body: dict[str, object] = {"model": self.load.model, "max_tokens": ended.tokens, "stream": True}
        body |= {"prompt": "Tell me a story.", "stream_options": {"include_usage": True}}
        if ended.tier == "fast":
            body["service_tier"] = "fast"
        content = msgspec.json.encode(body)
        # Without a fallback a fast call is served as fast or not at all: then the request says which tier was served.
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"content-type: application/json\r\nx-api-key: {self.load.key}\r\n"
            f"headway-fallback: none\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head.encode() + content)
            answer = await reader.readuntil(b"\r\n\r\n")
            status, headers = read_head(answer)
            ended.call_id, ended.relay = headers.get("x-request-id", ""), headers.get("x-relay", "")
            if status == 200:
                ended.how = "cut"
                ended.first_s = self.last_first_s = time.monotonic()
            tail = b""
            while data := await reader.read(65_536):
                ended.received += (tail[1 - len(TOKEN) :] + data).count(TOKEN)
                tail = (tail + data)[-TAIL_BYTES:]
            _explain(ended, status, tail)
        finally:
            writer.transport.abort()


def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines if ": " in line)
    return int(first.split()[1]), {name.lower(): value for name, value in pairs}


def _explain(ended: Ended, status: int, tail: bytes) -> None:
    if status == 200:
        if b"[DONE]" in tail:
            ended.how = "complete"
        else:
            ended.words = tail[-200:].decode(errors="replace")
    elif status in (429, 503) and b'"code":"' in tail:
        ended.how = "refused"
        code = tail.partition(b'"code":"')[2].partition(b'"')[0]
        ended.words = f"{status} {code.decode()}"
    else:
        ended.words = f"status {status}: {tail[-200:].decode(errors='replace')}"
