"""The callers of runs/overload.sh. They do not wait for each other, and keep their connections as the SDKs do.

Every time is of the machine's monotonic clock. A call is timed from when it was due, so a caller that is late itself
does not make the cell look faster; `sent_s` says how late it was. Retries follow the OpenAI SDK's rules.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import msgspec

from runs.failover.callers import TOKEN, read_head
from runs.torture.overload_cell import FAST_SHARE, MODEL, TENANTS, TOKENS, secret_of

GIVE_UP_S = 60.0
SLOW_BYTES, SLOW_EVERY_S = 180, 0.5  # what a slow reader reads, and how often
SLOW_BUFFER_BYTES = 2_048
FIRST_BACKOFF_S, MAX_BACKOFF_S, MAX_RETRY_AFTER_S = 0.5, 8.0, 120.0  # of the OpenAI SDK


class Made(msgspec.Struct):
    """One attempt of a call, as its client saw it."""

    phase: str
    what: str  # "call", "probe", "slow", "flood", or "sdk": then all its attempts
    tenant: str
    tier: str
    tokens: int  # asked for
    wanted_s: float  # when the first attempt was due
    due_s: float
    attempt: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0  # first token
    last_s: float = 0.0
    ended_s: float = 0.0
    received: int = 0  # tokens
    how: str = "no answer"  # or "complete", "refused", "cut", "hangs"
    words: str = ""
    retry_after: str = ""
    call_id: str = ""


def request_of(made: Made) -> bytes:
    body: dict[str, object] = {"model": MODEL, "max_tokens": made.tokens, "stream": True}
    body |= {"prompt": "Tell me a story.", "stream_options": {"include_usage": True}}
    if made.tier == "fast":
        body["service_tier"] = "fast"
    content = msgspec.json.encode(body)
    # Without a fallback a fast call is served as fast or not at all.
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"x-api-key: {secret_of(made.tenant)}\r\nheadway-fallback: none\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Line(asyncio.Protocol):
    """One connection, with one call at a time."""

    def __init__(self, idle: list[Line]) -> None:
        self._idle = idle  # where it goes when its answer is complete
        self._made: Made | None = None
        self._is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_open = cast(asyncio.Transport, transport), True

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._transport.is_closing()

    def send(self, made: Made) -> asyncio.Future[None]:
        self._made, self._head, self._tail, self._left = made, b"", b"", -1
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request_of(made))
        return self._ended

    def close(self) -> None:
        self._made = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now, made = time.monotonic(), self._made
        if made is None:
            self._transport.abort()  # an answer that nobody asked for
            return
        if self._left == -1:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._read_head(made, head)
        if tokens := (self._tail[1 - len(TOKEN) :] + data).count(TOKEN):
            made.first_s = made.first_s or now
            made.last_s = now
            made.received += tokens
        self._tail = (self._tail + data)[-1_024:]
        if self._is_chunked:
            if self._tail.endswith(b"0\r\n\r\n") and b"[DONE]" in self._tail:
                made.how = "complete"
                self._end(made, now)
            return
        self._left -= len(data)
        if self._left <= 0:
            _explain(made, self._status, self._tail)
            self._end(made, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_open = False
        if (made := self._made) is not None:
            made.words = made.words or f"connection lost: {exc}"
            self._end(made, time.monotonic())

    def _read_head(self, made: Made, head: bytes) -> None:
        self._status, headers = read_head(head + b"\r\n")
        made.call_id, made.retry_after = headers.get("x-request-id", ""), headers.get("retry-after", "")
        self._is_chunked = headers.get("transfer-encoding") == "chunked"
        self._left = int(headers.get("content-length", "0"))
        if self._status == 200:
            made.how = "cut"

    def _end(self, made: Made, now: float) -> None:
        made.ended_s, self._made = now, None
        if self.is_open:
            self._idle.append(self)
        if not self._ended.done():
            self._ended.set_result(None)


def _explain(made: Made, status: int, tail: bytes) -> None:
    code = tail.partition(b'"code":"')[2].partition(b'"')[0].decode()
    made.words = f"{status} {code}"
    if status in (429, 503) and code:
        made.how = "refused"


@dataclass
class Callers:
    port: int
    relay_ports: list[int]
    made: list[Made] = field(default_factory=list)
    slow_now: int = 0
    slow_most: int = 0
    _idle: list[Line] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, made: Made, retries: int = 0) -> None:
        task = asyncio.create_task(self._read_slowly(made) if made.what == "slow" else self.call(made, retries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def all_ended(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks)
        for line in self._idle:
            line.close()

    async def call(self, made: Made, retries: int = 0) -> None:
        while True:
            await self._attempt(made)
            if made.how not in ("refused", "no answer") or made.attempt == retries:
                return
            wait_s = retry_wait_s(made.retry_after, made.attempt, random.random())
            due_s, attempt = made.ended_s + wait_s, made.attempt + 1
            await asyncio.sleep(due_s - time.monotonic())
            made = Made(
                made.phase, made.what, made.tenant, made.tier, made.tokens, made.wanted_s, due_s, attempt=attempt
            )

    async def _attempt(self, made: Made) -> None:
        self.made.append(made)
        made.sent_s = time.monotonic()
        line: Line | None = None
        try:
            async with asyncio.timeout(GIVE_UP_S):
                line = await self._line()
                await line.send(made)
        except OSError as error:
            made.words, made.ended_s = repr(error), time.monotonic()
        except TimeoutError:
            made.how, made.ended_s = "hangs", time.monotonic()
            if line is not None:
                line.close()

    async def _line(self) -> Line:
        while self._idle:
            if (line := self._idle.pop()).is_open:
                return line
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: Line(self._idle), "127.0.0.1", self.port)
        return line

    async def _read_slowly(self, made: Made) -> None:
        """Past the load balancer, whose buffers would take the whole answer."""
        self.made.append(made)
        self.slow_now += 1
        self.slow_most = max(self.slow_most, self.slow_now)
        made.sent_s = time.monotonic()
        with socket.socket() as own:
            own.setblocking(False)  # noqa: FBT003 - it takes no keyword
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    await self._read_all_slowly(own, made)
            except OSError as error:
                made.words = repr(error)
            except TimeoutError:
                made.how = "hangs"
        made.ended_s = time.monotonic()
        self.slow_now -= 1

    async def _read_all_slowly(self, own: socket.socket, made: Made) -> None:
        loop, data = asyncio.get_running_loop(), b""
        await loop.sock_connect(own, ("127.0.0.1", self.relay_ports[len(self.made) % len(self.relay_ports)]))
        await loop.sock_sendall(own, request_of(made))
        while piece := await loop.sock_recv(own, SLOW_BYTES):
            data += piece
            if b"\r\n\r\n" in data and not made.call_id:
                status, headers = read_head(data.partition(b"\r\n\r\n")[0] + b"\r\n")
                made.call_id, made.retry_after = headers.get("x-request-id", ""), headers.get("retry-after", "")
                made.how = "cut" if status == 200 else "refused"
            if made.how == "refused":
                return
            if data.endswith(b"0\r\n\r\n") and b"[DONE]" in data[-1_024:]:
                made.how, made.received = "complete", data.count(TOKEN)
                return
            await asyncio.sleep(SLOW_EVERY_S)


def retry_wait_s(retry_after: str, attempt: int, chance: float) -> float:
    """As the OpenAI SDK waits before a retry."""
    try:
        asked_s = float(retry_after)
    except ValueError:
        asked_s = 0.0
    if 0 < asked_s <= MAX_RETRY_AFTER_S:
        return asked_s
    return min(FIRST_BACKOFF_S * 2.0**attempt, MAX_BACKOFF_S) * (1 - 0.25 * chance)


@dataclass(frozen=True)
class Arrival:
    at_s: float
    tenant: str
    tier: str
    tokens: int


def arrivals(seed: str, per_s: float, for_s: float, cv: float = 1.0, tenant: str = "") -> Iterator[Arrival]:
    """Gaps from a gamma distribution with this coefficient of variation: with 1, Poisson arrivals."""
    chance, at_s = random.Random(seed), 0.0
    shape = cv**-2
    while per_s and (at_s := at_s + chance.gammavariate(shape, 1 / (per_s * shape))) < for_s:
        tier = "fast" if chance.random() < FAST_SHARE else "standard"
        yield Arrival(at_s, tenant or chance.choice(TENANTS), tier, chance.randint(*TOKENS))
