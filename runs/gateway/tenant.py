"""One tenant for runs/neighbours.sh: honest, or hostile in one of several ways.

The neighbour runs as a process of its own, so that its work does not slow down the clients of the other tenant. It
makes calls until its input ends, and then prints what it did.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache

import msgspec
import uvloop

MODEL, STORY = "m", "Tell me a story."
CONNECTIONS = 32
FIRST_S, STEP_S = 0.02, 0.004
TOKENS = (150, 250)  # of an honest call, evenly distributed
# How long an honest connection takes for a call if four connections share a seat. A hostile one that is refused starts
# no more calls than that: a flood of calls is what rate limits are for.
CYCLE_S = 4 * (FIRST_S + STEP_S * sum(TOKENS) / 2)
CALL_TIMEOUT_S = 60.0
RETRY_S = 0.1
READ_BYTES, TAIL_BYTES = 64 * 1024, 1_200
USAGE = b'"completion_tokens":'

BIG_BYTES = 8_000_000  # of a body; the gateway takes 8 MiB
LONG_TOKENS = 4_000  # of a long prompt
SLOW_TOKENS, SLOW_READ, SLOW_PAUSE_S, SLOW_S = 1_000, 4096, 0.5, 2.0
TOOLS, PATTERNS = 128, 1_000
OVERSIZE_TOKENS = 1_500
VERBOSE_S = 1.5  # until an answer with log-probabilities comes
LOGPROBS: dict[str, object] = {"logprobs": True, "top_logprobs": 20}


@dataclass
class Work:
    """What a tenant did."""

    tokens: int = 0  # of complete answers
    complete: int = 0
    hostile: int = 0  # calls that did what is hostile about them
    ended: dict[str, int] = field(default_factory=dict)  # calls


@dataclass
class Tenant:
    port: int
    secret: str
    chance: random.Random
    work: Work = field(default_factory=Work)

    def request(self, body: bytes) -> bytes:
        head = f"host: 127.0.0.1\r\nconnection: close\r\nx-api-key: {self.secret}\r\ncontent-length: {len(body)}"
        return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + body

    async def read_all(self, body: bytes) -> str:
        """Make a call and read all of its answer, of which only the end is kept. Returns how it ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.request(body))
            await writer.drain()
            status = (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
            tail = b""
            while data := await reader.read(READ_BYTES):
                tail = (tail + data)[-TAIL_BYTES:]
            if status != "200":
                return status
            usage = tail.rfind(USAGE)
            if b'"error":' in tail or usage < 0:
                return "cut"
            self.work.tokens += int(tail[usage + len(USAGE) :].split(b",")[0].split(b"}")[0])
            self.work.complete += 1
            return "complete"
        finally:
            writer.transport.abort()

    def wants_stream(self) -> bool:
        """Whether the next call is streamed; half of them are."""
        return self.chance.random() < 0.5


def ask(tokens: int, *, stream: bool, content: str = STORY, more: dict[str, object] | None = None) -> bytes:
    body: dict[str, object] = {"model": MODEL, "max_tokens": tokens, "stream": stream}
    body["messages"] = [{"role": "user", "content": content}]
    if stream:
        body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body | (more or {}))


# --- what a tenant does ----------------------------------------------------------------------------------------------


async def honest(tenant: Tenant) -> str:
    return await tenant.read_all(ask(tenant.chance.randint(*TOKENS), stream=tenant.wants_stream()))


async def leaving(tenant: Tenant) -> str:
    """Leaves in the middle of its answers, or while it waits for a seat."""
    reader, writer = await asyncio.open_connection("127.0.0.1", tenant.port)
    try:
        writer.write(tenant.request(ask(TOKENS[1], stream=tenant.wants_stream())))
        async with asyncio.timeout(tenant.chance.uniform(0.5, 1.2) * TOKENS[1] * STEP_S):
            while await reader.read(READ_BYTES):
                pass
    except TimeoutError:
        tenant.work.hostile += 1
        return "left"
    finally:
        writer.transport.abort()
    return "complete"


async def many_choices(tenant: Tenant) -> str:
    tenant.work.hostile += 1
    return await tenant.read_all(ask(tenant.chance.randint(*TOKENS), stream=tenant.wants_stream(), more={"n": 8}))


@cache
def long_prompt(*, stream: bool) -> bytes:
    word = "x" * (BIG_BYTES // LONG_TOKENS - 1) + " "
    return ask(TOKENS[1], stream=stream, content=word * LONG_TOKENS)


async def long_prompts(tenant: Tenant) -> str:
    tenant.work.hostile += 1
    return await tenant.read_all(long_prompt(stream=tenant.wants_stream()))


async def slow_reading(tenant: Tenant) -> str:
    """Asks for log-probabilities, which are too large for the buffers on their way, and reads them slowly."""
    loop = asyncio.get_running_loop()
    first_at, is_late = 0.0, False
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READ)  # the smallest window there is
        sock.setblocking(False)  # noqa: FBT003
        await loop.sock_connect(sock, ("127.0.0.1", tenant.port))
        await loop.sock_sendall(sock, tenant.request(ask(SLOW_TOKENS, stream=True, more=LOGPROBS)))
        while await loop.sock_recv(sock, SLOW_READ):
            first_at = first_at or loop.time()
            if not is_late and loop.time() > first_at + SLOW_S:
                is_late = True
                tenant.work.hostile += 1
            await asyncio.sleep(SLOW_PAUSE_S)
    return "read"


@cache
def huge_schema() -> bytes:
    schema = {f"{number:x}": {"pattern": "{1{1" * 8} for number in range(PATTERNS)}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return ask(TOKENS[1], stream=True, more={"tools": [tool] * TOOLS})


async def huge_schemas(tenant: Tenant) -> str:
    tenant.work.hostile += 1
    return await tenant.read_all(huge_schema())


async def oversize_answers(tenant: Tenant) -> str:
    """Asks for log-probabilities, of which runs/gateway/verbose_engine.py gives 9 MB in one event, or 75 MB at once."""
    is_whole = tenant.chance.random() < 0.25
    tenant.work.hostile += 1
    more = LOGPROBS | {"n": 8 if is_whole else 1}
    return await tenant.read_all(ask(OVERSIZE_TOKENS, stream=not is_whole, more=more))


HONEST = "honest"
HOSTILE: dict[str, Callable[[Tenant], Awaitable[str]]] = {
    "leaving": leaving,
    "n = 8": many_choices,
    "long prompts": long_prompts,
    "slow reading": slow_reading,
    "huge schemas": huge_schemas,
    "oversize answers": oversize_answers,
}


async def make_calls(tenant: Tenant, kind: str) -> None:
    """One connection after another, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                how = await HOSTILE.get(kind, honest)(tenant)
        except TimeoutError:
            how = "timeout"
        except (OSError, asyncio.IncompleteReadError):
            how = "no answer"
        tenant.work.ended[how] = tenant.work.ended.get(how, 0) + 1
        if how not in ("complete", "left", "read"):
            await asyncio.sleep(RETRY_S if kind == HONEST else started + CYCLE_S - loop.time())


async def main(kind: str, port: int, secret: str, seed: int) -> None:
    tenant = Tenant(port, secret, random.Random(seed))
    calls = [asyncio.create_task(make_calls(tenant, kind)) for _ in range(CONNECTIONS)]
    await asyncio.to_thread(sys.stdin.read)
    for one in calls:
        one.cancel()
    print(msgspec.json.encode(tenant.work).decode())


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
