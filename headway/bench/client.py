"""One streamed call, stamped where it is read: the load generator's hands.

Knows: the OpenAI chat dialect, HTTP/1.1 over connections that are kept, and prompts that no cache has seen.
Does not know: when calls are made, how many at once, or what their times mean.
Invariant: the clock is read first thing when a socket is, before anything is parsed; and a token has come when the
server's own count of them rises, whatever the number of pieces.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

CONNECT_TIMEOUT_S = 10.0
IDLE_REUSE_S = 2.0  # uvicorn closes what is idle for 5 s
MAX_KEPT_ERROR_BYTES = 2000
TOKENS, PROMPT_TOKENS = b'"completion_tokens":', b'"prompt_tokens":'
# Common words, which most tokenizers know as one token each.
_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education
"""
WORDS = _TEXT.split()


@dataclass(slots=True)
class Call:
    """One call and its times, in seconds of this process' clock."""

    scheduled_at: float  # when it was to be made: what its caller waits from
    max_tokens: int
    sent_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    first_tokens: int = 0  # how many came with the first piece: more than one where the engine speculates
    refusals: int = 0  # before it was taken
    status: int = 0
    error: str = ""  # why it has no complete answer

    @property
    def ttft_s(self) -> float:
        return self.first_at - self.scheduled_at

    @property
    def latency_s(self) -> float:
        return self.last_at - self.scheduled_at

    @property
    def tpot_s(self) -> float:
        """Seconds per token after the first piece."""
        return (self.last_at - self.first_at) / max(1, self.tokens - self.first_tokens)


class Prompts:
    """Texts of about so many tokens, told apart from their first word on."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._number = count(self._random.randrange(10**6))

    def text(self, tokens: int) -> str:
        # The number alone would do for a cache of whole prompts; blocks of tokens need words that differ too.
        return " ".join([str(next(self._number)), *self._random.choices(WORDS, k=max(1, tokens - 2))])


class _Connection(asyncio.Protocol):
    """One TCP connection with at most one call under way; its `on_*` methods are httptools' callbacks."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.transport: asyncio.Transport
        self._call: Call | None = None
        self._done: asyncio.Future[bool]
        self._on_tokens: Callable[[float, int], None]
        self._read_at = 0.0
        self._rest = b""
        self._parser: httptools.HttpResponseParser
        self._status, self._keep_alive = 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read_at = time.perf_counter()
        if self._call is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"the answer is no HTTP: {error}")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"the connection was closed{f': {exc}' if exc else ''}")

    def start(self, call: Call, request: list[bytes], on_tokens: Callable[[float, int], None]) -> asyncio.Future[bool]:
        """Send; the future's result says whether the connection may carry another call."""
        self._call, self._rest, self._status, self._on_tokens = call, b"", 0, on_tokens
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self.transport.writelines(request)
        if self.transport.is_closing():
            self._finish("the connection was closed")
        return self._done

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        call = self._call
        if call is None:
            return
        data = self._rest + data
        if self._status != 200:
            self._rest = data[:MAX_KEPT_ERROR_BYTES]
            return
        # Only whole events: a count may be cut in two.
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self._rest = data
            return
        self._rest = data[end:]
        counted = data.rfind(TOKENS, 0, end)
        if counted < 0:
            return
        tokens = _number_at(data, counted + len(TOKENS))
        if tokens > call.tokens:
            if call.tokens == 0:
                call.first_at, call.first_tokens = self._read_at, tokens
                call.prompt_tokens = _number_at(data, data.rfind(PROMPT_TOKENS, 0, end) + len(PROMPT_TOKENS))
            call.last_at = self._read_at
            self._on_tokens(self._read_at, tokens - call.tokens)
            call.tokens = tokens

    def on_message_complete(self) -> None:
        said = "" if self._status == 200 else f"status {self._status}: {self._rest.decode(errors='replace')[:300]}"
        self._finish(said, reusable=self._keep_alive)

    def _finish(self, error: str, *, reusable: bool = False) -> None:
        if self._call is not None:
            self._call.status, self._call.error = self._status, error
            self._call = None
            if not self._done.done():
                self._done.set_result(reusable)


def _number_at(data: bytes, start: int) -> int:
    return int(data[start : start + 16].split(b",")[0].split(b"}")[0])


class Client:
    """Makes calls to one model behind one URL, over as many connections as there are calls at once."""

    def __init__(self, url: str, model: str, key: str | None = None, seed: int = 0) -> None:
        parts = urlsplit(url)
        self.model = model
        self.prompts = Prompts(seed)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        authority = f"[{self._host}]" if ":" in self._host else self._host
        identity = f"authorization: Bearer {key}\r\n" if key else ""
        self._head = (
            f"POST {parts.path.rstrip('/')}/v1/chat/completions HTTP/1.1\r\nhost: {authority}:{self._port}\r\n"
            f"{identity}content-type: application/json\r\ncontent-length: "
        ).encode()
        self._idle: list[_Connection] = []

    def request(self, prompt_tokens: int, max_tokens: int) -> list[bytes]:
        """A request's bytes, made before its time has come."""
        body = msgspec.json.encode(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": self.prompts.text(prompt_tokens)}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        )
        return [self._head, b"%d\r\n\r\n" % len(body), body]

    async def make(self, call: Call, request: list[bytes], on_tokens: Callable[[float, int], None]) -> None:
        """Send now, return when the answer has ended; `on_tokens` hears when tokens come, and how many."""
        call.status = 0
        call.sent_at = time.perf_counter()  # what comes now, a connection included, is not the client's delay
        connection = self._take_idle()
        try:
            if connection is None:
                connection = await self._connect()
        except (OSError, TimeoutError) as error:
            call.error = f"cannot connect: {error or 'timed out'}"
            return
        reusable = False
        try:
            reusable = await connection.start(call, request, on_tokens)
        finally:
            if reusable and not connection.transport.is_closing():
                connection.idle_since = time.perf_counter()
                self._idle.append(connection)
            else:
                connection.transport.abort()
        if not call.error and call.tokens < call.max_tokens:
            call.error = f"{call.tokens} tokens of {call.max_tokens}: the server ends answers early"
        elif not call.error and call.first_tokens == call.tokens > 1:
            call.error = (
                "tokens are counted only at the end: the server must accept stream_options.continuous_usage_stats"
            )

    def close(self) -> None:
        while self._idle:
            self._idle.pop().transport.abort()

    def _take_idle(self) -> _Connection | None:
        now = time.perf_counter()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now - connection.idle_since < IDLE_REUSE_S:
                return connection
            connection.transport.abort()
        return None

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, self._host, self._port, ssl=True if self._tls else None
            )
        return connection
