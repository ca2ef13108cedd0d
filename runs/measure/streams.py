"""A thin load client for the runs: it reads as little of each piece as it can, so that its own cost stays small.

Every call is timestamped when it is sent, at its first token and at its last. Token counts are the server's usage.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool, Headers
from runs.measure.fetch import fetch

CHAT_PATH = "/v1/chat/completions"
CLOSE: Headers = ((b"connection", b"close"),)  # each call has a connection of its own
CALL_TIMEOUT_S = 120.0


@dataclass
class Stream:
    """One streamed call and its times, in seconds on this process' clock."""

    sent_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0  # its terminator
    tokens: int = 0
    pieces: int = 0  # pieces of text: about as many as tokens, also if the call was cut off
    complete: bool = False
    status: int = 0
    proof: dict[str, object] = field(default_factory=dict)  # the gateway's proof

    @property
    def speed_tps(self) -> float:
        return (self.tokens - 1) / max(1e-9, self.last_at - self.first_at)


class _Reader:
    """Reads one stream; `feed` is called straight from the socket."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._tail = b""

    def feed(self, data: bytes) -> None:
        now = time.perf_counter()
        stream = self._stream
        pieces = data.count(b'"delta":{"content"')
        stream.pieces += pieces
        if pieces or b'"role":"assistant"' in data:
            if not stream.first_at:
                stream.first_at = now
            stream.last_at = now
        self._tail = (self._tail + data)[-1200:]
        if b"[DONE]" in self._tail:
            stream.complete = True
            stream.ended_at = now
            usage = self._tail.rfind(b'"completion_tokens":')
            stream.tokens = int(self._tail[usage + 20 :].split(b",")[0].split(b"}")[0])
            proof = self._tail.rfind(b'"headway":{')
            if proof > 0:
                stream.proof = msgspec.json.decode(self._tail[proof + 10 : self._tail.index(b"}", proof) + 1])


@dataclass(frozen=True, slots=True)
class ChatRequest:
    body: bytes
    key: str

    @property
    def headers(self) -> Headers:
        return (*CLOSE, (b"x-api-key", self.key.encode()))


STORY = "Tell me a long story about a bus."


def chat_request(model: str, max_tokens: int, key: str = "none", prompt: str = STORY, **more: object) -> ChatRequest:
    body = {
        **more,
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return ChatRequest(msgspec.json.encode(body), key)


async def call(url: str, request: ChatRequest) -> Stream:
    """Make one call on a connection of its own. A call that is cut off is not complete; see its status."""
    stream = Stream()
    async with asyncio.timeout(CALL_TIMEOUT_S):
        response = await ConnectionPool(url).send(b"POST", CHAT_PATH, request.body, request.headers)
        stream.sent_at = time.perf_counter()
        try:
            await response.pipe(_Reader(stream).feed)
        except ConnectionFailed:
            pass
        finally:
            stream.status = response.status
            response.close()
    return stream


async def at_once(url: str, request: ChatRequest, streams: int) -> tuple[list[Stream], float]:
    """Make `streams` calls at once. Returns them and the time from the first request to the last token."""
    done = await asyncio.gather(*[call(url, request) for _ in range(streams)])
    return done, max(s.last_at for s in done) - min(s.sent_at for s in done)


async def on_schedule(url: str, request: ChatRequest, times_s: list[float]) -> list[Stream]:
    """Make calls at the given times from now, without waiting for earlier ones to end."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def one(at_s: float) -> Stream:
        await asyncio.sleep(start + at_s - loop.time())
        return await call(url, request)

    return await asyncio.gather(*[one(at_s) for at_s in times_s])


def cpu_seconds(pid: int) -> float:
    """CPU time of the process in user and kernel mode, with all threads, ended ones too. Resolution: nanoseconds."""
    return time.clock_gettime((~pid << 3) | 2)  # the process' CPU clock id, as clock_getcpuclockid(3) computes it


def resident_kib(pid: int) -> int:
    """Memory of the process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has ended")  # nobody has waited for it yet


@contextmanager
def scripted(
    port: int, *, model: str, first_token_ms: float, step_ms: str, seats: int, host: str = "127.0.0.1"
) -> Iterator[int]:
    command = [sys.executable, "-m", "headway", "mock-engine", "--host", host, "--port", str(port), "--model", model]
    command += ["--first-token-ms", str(first_token_ms), "--step-ms", step_ms, "--max-num-seqs", str(seats)]
    with process(command, f"http://{host}:{port}/health") as pid:
        yield pid


@contextmanager
def gateway(
    port: int,
    folder: Path,
    *,
    model: str,
    engine_urls: list[str],
    seats: int,
    tiers: str = "",
    curve: str = "",
    timing: str = "",
    ledger: str = "",
    record: Path | None = None,
    relays: int = 1,
) -> Iterator[int]:
    """Run a gateway, of several processes if it has several relays. TOML: `tiers` of the model, `curve` of each
    replica, `timing` of the gateway, `ledger`."""
    replicas = "".join(f'[[models.replicas]]\nurl = "{url}"\nseats = {seats}\n{curve}\n' for url in engine_urls)
    config = folder / f"gateway-{port}.toml"
    books = f"[ledger]\n{ledger}\n" if ledger else ""
    config.write_text(f'[gateway]\nport = {port}\n{timing}\n{books}[[models]]\nname = "{model}"\n{tiers}\n{replicas}')
    command = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
    command += ["--record", str(record)] if record is not None else []
    command += ["--relays", str(relays)] if relays > 1 else []
    with process(command, f"http://127.0.0.1:{port}/ready") as pid:
        yield pid


@contextmanager
def process(command: list[str], ready_url: str, env: Mapping[str, str] = os.environ) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as started:
        try:
            _wait_for(ready_url, started)
            yield started.pid
        finally:
            started.terminate()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            fetch(url, timeout_s=2)
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(process.args)} is not ready") from None  # type: ignore[arg-type]
            time.sleep(0.05)
