"""A client for runs that need the arrival time of every token, counted by the server's usage.

Each event carries the count so far, because a speculative engine sends several tokens in one event.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from headway.local.engine_env import MODEL_NAME

CALL_TIMEOUT_S = 120.0


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
    parts = urlsplit(url)
    async with asyncio.timeout(CALL_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            stream.sent_at = time.perf_counter()
            writer.write(_request(max_tokens, asked))
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{status.decode().strip()} {(await reader.read()).decode(errors='replace')}")
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    _take(stream, time.perf_counter(), line)
                elif line.startswith(b"data: [DONE]"):
                    stream.complete = True
                    break
        finally:
            writer.close()
    if not stream.complete or not stream.arrivals:
        raise RuntimeError("A stream ended early: this turn cannot be counted.")
    return stream


def _take(stream: TimedStream, now: float, line: bytes) -> None:
    event = msgspec.json.decode(line[6:])
    count = (event.get("usage") or {}).get("completion_tokens", 0)
    if count > (stream.tokens if stream.arrivals else 0):
        stream.arrivals.append((now, count))
    for choice in event["choices"]:
        stream.text += choice.get("text") or choice.get("delta", {}).get("content") or ""


def _request(max_tokens: int, asked: dict[str, object]) -> bytes:
    body = msgspec.json.encode(
        {
            "model": MODEL_NAME,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **asked,
        }
    )
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    # HTTP/1.0, so that the answer is not chunked.
    head = f"POST {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chat(content: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}
