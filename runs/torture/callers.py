"""The torture's clients: many at once, each asks, reads to the end or leaves, and writes down what it saw.

A call ends as `complete`, `left` (its client did), `refused` (4xx, 503 or 529 in the gateway's words), `failed` (an
answer that ended with an error event), `cut` (its answer began and did not end), `no answer`, or `hangs`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import ssl
import time
from dataclasses import dataclass, field

import msgspec

from runs.failover.callers import read_head
from runs.torture.workload import ALL, Ask, Mix, draw

GIVE_UP_S = 60.0
TLS_SHARE = 0.05
TAIL_BYTES = 6_000
PROOF = re.compile(rb'"headway":(\{[^{}]*\})')
FAILED, LIMITED = b'"type":"response.failed"', b'"type":"response.incomplete"'
ERROR_EVENTS = (b'data: {"error"', b"event: error", FAILED)
RESPONSE_ID = re.compile(rb'"id":"resp_([0-9a-f]{32})"')
SOCKET_STATUS = re.compile(rb'"type":"error"[^{]*"status":(\d{3})')
CODE = re.compile(rb'"(?:code|type)":"([a-z_]+)"')


class Proof(msgspec.Struct):
    """What an answer says of itself. Missing fields are those of a version or a tier that has none."""

    kept: bool | None = None
    billed_micro: int | None = None
    refunded_micro: int | None = None
    reader_was_slow: bool = False


_read_proof = msgspec.json.Decoder(Proof).decode


class Ended(msgspec.Struct, omit_defaults=True):
    """One call, as its client saw it. Times are of the machine's monotonic clock, which the engines use too."""

    kind: str
    is_streamed: bool
    key: str
    tier: str  # asked for
    tokens: int
    sent_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    how: str = "no answer"
    call_id: str = ""
    relay: str = ""  # as the load balancer says
    words: str = ""
    received: int | None = None  # tokens; None if they are not counted
    proof: Proof | None = None
    retry_after: bool = False
    over_tls: bool = False
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    early: int = 0  # tokens that came with the first one

    def saw(self, tokens: int, now: float) -> None:
        """So many tokens by now."""
        if tokens > (self.received or 0):
            self.last_token_s = now
            if not self.early:
                self.first_token_s, self.early = now, tokens
        self.received = tokens

    def speed_tps(self) -> float | None:
        if self.received is None or self.last_token_s <= self.first_token_s:
            return None
        return (self.received - self.early) / (self.last_token_s - self.first_token_s)


@dataclass
class Callers:
    port: int
    seed: int
    count: int
    streams: int  # after so many the load ends
    tls: tuple[int, ssl.SSLContext] | None = None  # the port in front, for some calls
    mix: Mix = ALL
    give_up_s: float = GIVE_UP_S
    ended: list[Ended] = field(default_factory=list)
    started: int = 0  # streams whose answer has begun
    sent: int = 0

    @property
    def is_over(self) -> bool:
        return self.started >= self.streams

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.count):
                group.create_task(self._one(random.Random(f"caller {self.seed} {number}")))

    async def _one(self, chance: random.Random) -> None:
        while not self.is_over:
            ended = await self.call(draw(chance, self.mix), over_tls=chance.random() < TLS_SHARE)
            self.ended.append(ended)
            if ended.how in ("refused", "no answer", "cut"):
                await asyncio.sleep(chance.uniform(0.05, 0.3))

    async def call(self, ask: Ask, *, over_tls: bool = False) -> Ended:
        self.sent += 1
        ended = Ended(ask.kind.name, ask.kind.is_streamed, ask.key.id, ask.tier, ask.tokens, time.monotonic())
        ended.over_tls = over_tls and self.tls is not None
        try:
            async with asyncio.timeout(self.give_up_s):
                await (self._over_socket if ask.kind.is_socket else self._over_http)(ask, ended)
        except TimeoutError:  # an OSError too
            ended.how = "hangs"
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            ended.words = ended.words or repr(error)[:200]
        ended.ended_s = time.monotonic()
        return ended

    async def _connect(self, ended: Ended) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if ended.over_tls and self.tls is not None:
            port, context = self.tls
            return await asyncio.open_connection("127.0.0.1", port, ssl=context)
        return await asyncio.open_connection("127.0.0.1", self.port)

    def _began(self, ended: Ended) -> None:
        ended.how = "cut"
        ended.first_s = time.monotonic()
        self.started += ended.is_streamed

    async def _over_http(self, ask: Ask, ended: Ended) -> None:
        kind = ask.kind
        head = (
            f"POST {kind.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: {ask.key.secret}\r\n"
            "content-type: application/json\r\nanthropic-version: 2023-06-01\r\n"
            f"headway-fallback: {'standard' if ask.falls_back else 'none'}\r\ncontent-length: {len(ask.body)}\r\n\r\n"
        )
        reader, writer = await self._connect(ended)
        try:
            writer.write(head.encode() + ask.body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status, headers = read_head(answer)
            ended.call_id, ended.relay = headers.get("x-request-id", ""), headers.get("x-relay", "")
            if status == 200:
                self._began(ended)
            tail, events, tokens = b"", 0, 0
            while data := await reader.read(65_536):
                if kind.token:
                    tokens += (tail[1 - len(kind.token) :] + data).count(kind.token)
                    ended.saw(tokens, time.monotonic())
                if ask.leaves_after is not None:
                    events += data.count(b"data: ")
                    if events > ask.leaves_after:
                        ended.how = "left"
                        return
                tail = (tail + data)[-TAIL_BYTES:]
            _conclude(ended, ask, status, headers, tail)
        finally:
            writer.transport.abort()

    async def _over_socket(self, ask: Ask, ended: Ended) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        head = (
            f"GET {ask.kind.path} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\nauthorization: Bearer {ask.key.secret}\r\n\r\n"
        )
        reader, writer = await self._connect(ended)
        try:
            writer.write(head.encode())
            status, headers = read_head(await reader.readuntil(b"\r\n\r\n"))
            ended.relay = headers.get("x-relay", "")
            if status != 101:
                # The connection stays open for another request.
                _conclude(ended, ask, status, headers, await reader.readexactly(int(headers.get("content-length", 0))))
                return
            writer.write(_frame(ask.body))
            tail, events = b"", 0
            while data := await reader.read(65_536):
                tail = (tail + data)[-2 * TAIL_BYTES :]
                if not ended.call_id and (found := RESPONSE_ID.search(tail)):
                    ended.call_id = found[1].decode()
                    self._began(ended)
                events += data.count(b'"type":"response.')
                if ask.leaves_after is not None and events > ask.leaves_after and ended.call_id:
                    ended.how = "left"
                    return
                if not ended.call_id and (refused := SOCKET_STATUS.search(tail)):
                    told = {"retry-after": ""} if b'"retry-after"' in tail else {}  # among the error's own headers
                    _conclude(ended, ask, int(refused[1]), told, tail)
                    return
                if any(end in tail for end in (ask.kind.ends, LIMITED, FAILED)):
                    break
            if ended.call_id:
                _conclude(ended, ask, 200, headers, tail)
        finally:
            writer.transport.abort()


def _conclude(ended: Ended, ask: Ask, status: int, headers: dict[str, str], tail: bytes) -> None:
    """How the call has ended, from the last bytes of its answer."""
    if status == 200:
        if any(event in tail for event in ERROR_EVENTS):
            ended.how = "failed"
        elif not ask.kind.is_streamed or ask.kind.ends in tail or LIMITED in tail:
            ended.how = "complete"
        if ended.how == "complete":
            if found := PROOF.search(tail):
                ended.proof = _read_proof(found[1])
        else:
            ended.words = tail[-300:].decode(errors="replace")
        return
    code = CODE.findall(tail)
    if code and status != 500:
        ended.how = "refused"
        ended.words = f"{status} {code[-1].decode()}"
        ended.retry_after = "retry-after" in headers
    else:
        ended.words = f"status {status}: {tail[-200:].decode(errors='replace')}"


def _frame(message: bytes) -> bytes:
    """A text message of a client, with a mask of zeros."""
    size = len(message)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + message
