"""The HTTP client of the load generator: sends one streamed call and records when its tokens arrive.

Knows: the OpenAI chat API, and how to make prompts that no cache holds. http1.py does HTTP.
Does not know: when calls are made, how many at once, or what their times mean.
Invariant: the clock is read as soon as a chunk of the body arrives from the socket, before it is parsed; and tokens are
counted by the server's own usage, not by the number of chunks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import msgspec

from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool, Headers, Response

PATH = "/v1/chat/completions"
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
class LoadCall:
    """One call and its times, in seconds of this process's clock."""

    scheduled_at: float  # when it was due; latencies count from here
    max_tokens: int
    sent_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    first_tokens: int = 0  # tokens in the first chunk: more than one with speculative decoding
    refusals: int = 0  # before it was accepted
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
        """Seconds per token after the first chunk."""
        return (self.last_at - self.first_at) / max(1, self.tokens - self.first_tokens)


class Prompts:
    """Prompts of about a given number of tokens. Each differs from all others from its first word on."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._number = count(self._random.randrange(10**6))

    def text(self, tokens: int) -> str:
        # A number alone would do against a cache of whole prompts; a cache of blocks needs different words too.
        return " ".join([str(next(self._number)), *self._random.choices(WORDS, k=max(1, tokens - 2))])


class _TokenCounter:
    """Counts the tokens of one answer and when they arrived. `feed` is called directly from the socket."""

    def __init__(self, call: LoadCall, response: Response, on_tokens: Callable[[float, int], None]) -> None:
        self._call = call
        self._response = response
        self._on_tokens = on_tokens
        self.rest = b""  # the start of an incomplete event, or the body of an error
        self._first_count: int | None = None  # in the answer's first event that has one

    @property
    def is_counted_at_end(self) -> bool:
        """Whether the answer's first count was that of all its tokens. Several events can arrive in one piece."""
        return self._first_count == self._call.tokens > 1

    def feed(self, data: bytes) -> None:
        read_at = time.perf_counter()
        data = self.rest + data
        if self._response.status != 200:
            self.rest = data[:MAX_KEPT_ERROR_BYTES]
            return
        # Only complete events: a count may be split between chunks.
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self.rest = data
            return
        self.rest = data[end:]
        counted = data.rfind(TOKENS, 0, end)
        if counted < 0:
            return
        if self._first_count is None:
            self._first_count = _number_at(data, data.find(TOKENS) + len(TOKENS))
        call, tokens = self._call, _number_at(data, counted + len(TOKENS))
        if tokens > call.tokens:
            if call.tokens == 0:
                call.first_at, call.first_tokens = read_at, tokens
                call.prompt_tokens = _number_at(data, data.rfind(PROMPT_TOKENS, 0, end) + len(PROMPT_TOKENS))
            call.last_at = read_at
            self._on_tokens(read_at, tokens - call.tokens)
            call.tokens = tokens


def _number_at(data: bytes, start: int) -> int:
    return int(data[start : start + 16].split(b",")[0].split(b"}")[0])


class LoadClient:
    """Makes calls to one model at one URL, with one connection per concurrent call."""

    def __init__(self, url: str, model: str, key: str | None = None, seed: int = 0) -> None:
        self.model = model
        self.prompts = Prompts(seed)
        self._pool = ConnectionPool(url)
        self._headers: Headers = ((b"authorization", f"Bearer {key}".encode()),) if key else ()

    def request(self, prompt_tokens: int, max_tokens: int) -> bytes:
        """Return a request body, built before the call is due."""
        return msgspec.json.encode(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": self.prompts.text(prompt_tokens)}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        )

    async def make(self, call: LoadCall, request: bytes, on_tokens: Callable[[float, int], None]) -> None:
        """Send a call and return when its answer has ended. `on_tokens` gets the time and number of new tokens."""
        call.status, call.error = 0, ""
        call.sent_at = time.perf_counter()  # from here on, connecting included, time counts as the server's
        try:
            response = await self._pool.send(b"POST", PATH, request, self._headers)
            counter = _TokenCounter(call, response, on_tokens)
            try:
                await response.pipe(counter.feed)
            finally:
                call.status = response.status
                response.close()
        except (ConnectionFailed, ValueError) as error:  # connection lost, or a count that is not a number
            call.error = str(error)
            return
        if response.status != 200:
            call.error = f"status {response.status}: {counter.rest.decode(errors='replace')[:300]}"
        elif call.tokens < call.max_tokens:
            call.error = f"{call.tokens} of {call.max_tokens} tokens: the server ends answers early"
        elif counter.is_counted_at_end:
            call.error = (
                "tokens are counted only at the end: the server must support stream_options.continuous_usage_stats"
            )

    def close(self) -> None:
        self._pool.close()
