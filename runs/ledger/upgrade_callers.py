"""The clients of runs/ledger/upgrade.py: streams and whole answers at all tiers, some of which are left, with keys that
were made by version 0.1. Each keeps what it was told."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CALLERS = 16
TIMEOUT_S = 30.0
PIECE = b'"delta":{"content"'
PROOF = re.compile(rb'"headway":(\{[^}]*\})')
USAGE = re.compile(rb'"(prompt_tokens|completion_tokens)":\s*(\d+)')


@dataclass
class Told:
    """One call, as its client saw it."""

    call_id: str
    by: str  # the version that served it
    streamed: bool
    pieces: int = 0  # of text that arrived, one token each
    is_complete: bool = False
    usage: dict[str, int] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)


@dataclass
class Clients:
    keys: Sequence[str]
    chance: random.Random
    told: list[Told] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    _stopping: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, gateways: Sequence[tuple[str, int]]) -> None:
        """Call these gateways, (version, port), until `stop`."""
        self._stopping = False
        chances = [random.Random(self.chance.getrandbits(32)) for _ in range(CALLERS * len(gateways))]
        self._tasks = [
            asyncio.create_task(self._caller(*gateways[number % len(gateways)], chance))
            for number, chance in enumerate(chances)
        ]

    async def until(self, more: int) -> None:
        """Wait until `more` further calls were answered."""
        wanted = len(self.told) + more
        async with asyncio.timeout(120):
            while len(self.told) < wanted:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _caller(self, by: str, port: int, chance: random.Random) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    status = await self._call(by, port, chance)
            except (OSError, EOFError):
                status = "no answer"
            self.statuses[status] += 1
            if status not in ("complete", "left"):
                await asyncio.sleep(0.05)

    async def _call(self, by: str, port: int, chance: random.Random) -> str:
        slow = chance.random() < 0.15
        tokens = chance.randint(18, 24) if slow else chance.randint(2, 60)
        streamed = chance.random() < 0.75
        body: dict[str, Any] = {
            "model": "slow" if slow else "quick",
            "messages": [{"role": "user", "content": "word " * chance.randint(1, 200)}],
            "max_tokens": tokens,
            "service_tier": chance.choice(("standard", "standard", "fast", "flex")),
            "stream": streamed,
        }
        if streamed:
            body["stream_options"] = {"include_usage": True}
        leaves = chance.random() < 0.2
        after_s = chance.uniform(0.0, tokens * (0.025 if slow else 0.006)) if leaves else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request(body, chance.choice(self.keys)))
            return await self._answer(reader, Told("", by, streamed), after_s)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, told: Told, leave_after_s: float | None) -> str:
        loop = asyncio.get_running_loop()
        head, body = b"", b""
        leave_at = loop.time() + leave_after_s if leave_after_s is not None else None
        try:
            async with asyncio.timeout_at(leave_at):
                head = await reader.readuntil(b"\r\n\r\n")
                status = head[9:12].decode()
                if status != "200":
                    return status
                told.call_id = head.lower().partition(b"x-request-id: ")[2].partition(b"\r")[0].decode()
                self.told.append(told)
                while data := await reader.read(65_536):
                    body += data
        except TimeoutError:
            if leave_at is None or loop.time() < leave_at:
                raise
            return "left"
        finally:
            told.pieces = body.count(PIECE)
        text = without_chunks(body)
        if not (b"data: [DONE]" in text if told.streamed else text.endswith(b"}")):
            return "cut"
        told.is_complete = True
        told.usage = {name.decode(): int(number) for name, number in USAGE.findall(text)}
        if (proof := PROOF.search(text)) is not None:
            told.proof = json.loads(proof[1])
        return "complete"


def request(body: dict[str, Any], key: str) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-api-key: {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text


def without_chunks(body: bytes) -> bytes:
    """The content of a body in chunked transfer coding, as far as it is there; any other body as it is."""
    if not re.match(rb"[0-9a-fA-F]+\r\n", body):
        return body
    content, at = b"", 0
    while (end := body.find(b"\r\n", at)) >= 0 and (length := int(body[at:end], 16)):
        content += body[end + 2 : end + 2 + length]
        at = end + 2 + length + 2
    return content


async def status_of(port: int, key: str, tier: str) -> int:
    """Make one short call and return the status of its answer. A gateway is ready with the first replica of any model,
    so a 503 of its first seconds is asked again."""
    body = {"model": "quick", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "service_tier": tier}
    for _ in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request(body, key))
            status = int((await reader.read())[9:12])
        finally:
            writer.close()
        if status != 503:
            break
        await asyncio.sleep(0.25)
    return status
