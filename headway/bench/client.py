"""One streamed call, stamped where it is read: the load generator's hands.

Knows: the OpenAI chat dialect, and prompts that no cache has seen. HTTP is http1.py's.
Does not know: when calls are made, how many at once, or what their times mean.
Invariant: the clock is read first thing when a piece of the body comes from the socket, before anything is read out of
it; and a token has come when the server's own count of them rises, whatever the number of pieces.
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


class _TokenCounter:
    """Reads one answer: when tokens came, and how many. `feed` is called straight from the socket."""

    def __init__(self, call: LoadCall, response: Response, on_tokens: Callable[[float, int], None]) -> None:
        self._call = call
        self._response = response
        self._on_tokens = on_tokens
        self.rest = b""  # of an event that has not ended; or what an error says

    def feed(self, data: bytes) -> None:
        read_at = time.perf_counter()
        data = self.rest + data
        if self._response.status != 200:
            self.rest = data[:MAX_KEPT_ERROR_BYTES]
            return
        # Only whole events: a count may be cut in two.
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self.rest = data
            return
        self.rest = data[end:]
        counted = data.rfind(TOKENS, 0, end)
        if counted < 0:
            return
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
    """Makes calls to one model behind one URL, over as many connections as there are calls at once."""

    def __init__(self, url: str, model: str, key: str | None = None, seed: int = 0) -> None:
        self.model = model
        self.prompts = Prompts(seed)
        self._pool = ConnectionPool(url)
        self._headers: Headers = ((b"authorization", f"Bearer {key}".encode()),) if key else ()

    def request(self, prompt_tokens: int, max_tokens: int) -> bytes:
        """A request's body, made before its time has come."""
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
        """Send now, return when the answer has ended; `on_tokens` hears when tokens come, and how many."""
        call.status, call.error = 0, ""
        call.sent_at = time.perf_counter()  # what comes now, a connection included, is not the client's delay
        try:
            response = await self._pool.send(b"POST", PATH, request, self._headers)
            counter = _TokenCounter(call, response, on_tokens)
            try:
                await response.pipe(counter.feed)
            finally:
                call.status = response.status
                response.close()
        except (ConnectionFailed, ValueError) as error:  # gone, or a count that is no number
            call.error = str(error)
            return
        if response.status != 200:
            call.error = f"status {response.status}: {counter.rest.decode(errors='replace')[:300]}"
        elif call.tokens < call.max_tokens:
            call.error = f"{call.tokens} tokens of {call.max_tokens}: the server ends answers early"
        elif call.first_tokens == call.tokens > 1:
            call.error = (
                "tokens are counted only at the end: the server must accept stream_options.continuous_usage_stats"
            )

    def close(self) -> None:
        self._pool.close()
