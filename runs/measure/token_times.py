"""A client for runs that need the arrival time of every token, counted by the server's usage.

Each event carries the count so far, because a speculative engine sends several tokens in one event.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

import msgspec

from headway.http1 import ConnectionPool
from headway.local.engine_env import MODEL_NAME
from runs.measure.streams import CALL_TIMEOUT_S, CHAT_PATH, CLOSE


@dataclass
class TimedStream:
    """One streamed call. `arrivals` has the time and the token count so far of each event with tokens."""

    sent_at: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    complete: bool = False
    text: str = ""

    @property
    def tokens(self) -> int:
        return self.arrivals[-1][1]

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.sent_at

    @property
    def duration_s(self) -> float:
        """From the first token to the last, as in the definition of a floor."""
        return self.arrivals[-1][0] - self.arrivals[0][0]

    @property
    def speed_tps(self) -> float:
        # The clock starts with the first event, so its tokens do not count.
        return (self.tokens - self.arrivals[0][1]) / max(1e-9, self.duration_s)

    @property
    def tokens_per_event(self) -> float:
        """Mean tokens per event after the first: those of one step, unless delayed events were merged."""
        return (self.tokens - self.arrivals[0][1]) / max(1, len(self.arrivals) - 1)

    @property
    def gaps_s(self) -> list[float]:
        times = [at for at, _ in self.arrivals]
        return [after - before for before, after in itertools.pairwise(times)]


async def timed_call(
    url: str, max_tokens: int, asked: dict[str, object], stream: TimedStream | None = None
) -> TimedStream:
    """Make one call. `asked` has `messages` (chat) or `prompt`. Pass a `stream` to observe it during the call."""
    stream = stream or TimedStream()
    path = CHAT_PATH if "messages" in asked else "/v1/completions"
    body = {
        "model": MODEL_NAME,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **asked,
    }
    async with asyncio.timeout(CALL_TIMEOUT_S):
        response = await ConnectionPool(url).send(b"POST", path, msgspec.json.encode(body), CLOSE)
        stream.sent_at = time.perf_counter()
        try:
            events = _Events(stream)
            await response.pipe(events.feed)
        finally:
            response.close()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {events.rest.decode(errors='replace')}")
    if not stream.complete or not stream.arrivals:
        raise RuntimeError("A stream ended early: this turn cannot be counted.")
    return stream


class _Events:
    """Splits one stream into events; `feed` is called straight from the socket."""

    def __init__(self, stream: TimedStream) -> None:
        self._stream = stream
        self.rest = b""  # the start of an event, or the body of an error

    def feed(self, data: bytes) -> None:
        now = time.perf_counter()
        *events, self.rest = (self.rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                _take(self._stream, now, event)
            elif event == b"data: [DONE]":
                self._stream.complete = True


def _take(stream: TimedStream, now: float, line: bytes) -> None:
    event = msgspec.json.decode(line[6:])
    count = (event.get("usage") or {}).get("completion_tokens", 0)
    if count > (stream.tokens if stream.arrivals else 0):
        stream.arrivals.append((now, count))
    for choice in event["choices"]:
        stream.text += choice.get("text") or choice.get("delta", {}).get("content") or ""


def chat(content: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}
