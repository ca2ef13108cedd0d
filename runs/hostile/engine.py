"""A hostile engine: it answers probes honestly and calls by chance, with anything that can come over a socket. See
runs/hostile.sh. `python -m runs.hostile.engine SEED PORT [PORT ...]` serves one on each port."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import uvloop

from runs.hostile import corpus
from runs.hostile.mutate import BYTES, Mutator

PROBE = b'"prompt":"1"'
IDLE_S = 5.0  # as vLLM's server
MAX_SILENCE_S = 1.0
GIANT_BYTES = 9 * 2**20
# How an answer is hostile, and its weight.
KINDS = {
    "honest": 20,
    "hostile body": 45,
    "any status": 8,
    "wrong length": 5,
    "wrong chunks": 5,
    "cut off": 5,
    "wrong head": 4,
    "long head": 1,
    "claims gzip": 2,
    "drips": 2,
    "silent": 1,
    "answers twice": 1,
    "giant": 0.2,
}
TYPES = (b"text/event-stream; charset=utf-8", b"application/json", b"text/html", b"", b"\xff", b"x" * 300)
CORPUS = {
    ("/v1/chat/completions", True): corpus.OPENAI_STREAMS,
    ("/v1/chat/completions", False): corpus.OPENAI_WHOLE,
    ("/v1/messages", True): corpus.ANTHROPIC_STREAMS,
    ("/v1/messages", False): corpus.ANTHROPIC_WHOLE,
}


class HostileEngine:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._mutators = {key: Mutator(inputs, seed) for key, inputs in CORPUS.items()}
        self._answers = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self._answers += 1
                if not await self._answer(head.split(b" ", 2)[1].decode(), body, writer):
                    return
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the connection is kept."""
        if path in ("/health", "/metrics"):
            writer.write(_whole(b"vllm:generation_tokens_total %d\n" % self._answers, b"text/plain"))
            return True
        if PROBE in body:
            writer.write(_whole(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'))
            return True
        key = ("/v1/messages" if path.startswith("/v1/messages") else "/v1/chat/completions", b'"stream":true' in body)
        return await self._be_hostile(key, writer)

    async def _be_hostile(self, key: tuple[str, bool], writer: asyncio.StreamWriter) -> bool:
        chance = self._random
        [kind] = chance.choices(list(KINDS), list(KINDS.values()))
        body = chance.choice(CORPUS[key]) if kind == "honest" else self._mutators[key].next()
        stream = TYPES[0] if key[1] else TYPES[1]
        match kind:
            case "honest" | "hostile body":
                await self._write_slowly(self._framed(body, stream), writer)
                return True
            case "any status":
                status = chance.choice((chance.randint(100, 999), 100, 101, 204, 304, 400, 404, 429, 500, 503))
                error = chance.choice((body, b'{"error":{"message":"no"}}', b'{"error":7}', b"no", b""))
                writer.write(_whole(error, chance.choice(TYPES[:3]), b"%d" % status))
                return chance.random() < 0.5
            case "wrong length":
                wrong = chance.choice((0, 1, len(body) - 1, len(body) + 1, 2**31, 2**63, 2**64, -1))
                writer.write(_head(b"200", stream, b"content-length: %d\r\n" % wrong) + body)
                return chance.random() < 0.5
            case "wrong chunks":
                size = chance.choice((b"%x" % (len(body) + 1), b"-1", b"f" * 17, b"zz", b"", b"0", b"1;" + b"x" * 999))
                head = _head(b"200", stream, b"transfer-encoding: chunked\r\n")
                writer.write(head + size + b"\r\n" + body + b"\r\n0\r\n\r\n")
            case "cut off":
                framed = b"".join(self._framed(body, stream))
                writer.write(framed[: chance.randrange(len(framed))])
                if chance.random() < 0.5:
                    await writer.drain()
                    writer.transport.abort()
            case "wrong head":
                head, rest = b"".join(self._framed(body, stream)).split(b"\r\n\r\n", 1)
                at = chance.randrange(len(head))
                writer.write(head[:at] + chance.choice(BYTES) + head[at + chance.randint(0, 3) :] + b"\r\n\r\n" + rest)
            case "long head":
                many = b"".join(b"x%d: y\r\n" % number for number in range(9_000))
                header = chance.choice((b"x: " + b"y" * 70_000 + b"\r\n", many, b"x: " + b"y" * 2**20))
                writer.write(b"HTTP/1.1 200 OK\r\n" + header)
            case "claims gzip":
                writer.write(_whole(body, stream, b"200", b"content-encoding: gzip\r\n"))
                return True
            case "drips":
                await self._drip(b"".join(self._framed(body, stream)), writer)
                return True
            case "silent":
                await asyncio.sleep(chance.uniform(0, MAX_SILENCE_S))
            case "answers twice":
                writer.write(_whole(body, stream))
                await asyncio.sleep(chance.choice((0, 0.01)))
                writer.write(_whole(body, stream))
                return True
            case "giant":
                await self._giant(stream, writer)
        return False

    def _framed(self, body: bytes, content_type: bytes) -> list[bytes]:
        """The answer in pieces: one for each event, or split anywhere."""
        if self._random.random() < 0.4:
            return [_whole(body, content_type)]
        if self._random.random() < 0.6:
            parts = [event for event in re.split(rb"(?<=\n\n)", body) if event]
        else:
            places = sorted(self._random.randrange(len(body) + 1) for _ in range(self._random.randint(0, 5)))
            parts = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True) if a < b]
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
        return [_head(b"200", content_type, b"transfer-encoding: chunked\r\n"), *chunks, b"0\r\n\r\n"]

    async def _write_slowly(self, parts: list[bytes], writer: asyncio.StreamWriter) -> None:
        pauses = self._random.random() < 0.2
        for part in parts:
            writer.write(part)
            if pauses:
                await writer.drain()
                await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.01)))

    async def _drip(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(min(200, len(data))):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(data[200:])

    async def _giant(self, content_type: bytes, writer: asyncio.StreamWriter) -> None:
        """One event without an end, or with one, in pieces."""
        writer.write(_head(b"200", content_type, b"transfer-encoding: chunked\r\n"))
        size = self._random.choice((2**10, 2**16, 2**18))
        total = self._random.choice((2**20, GIANT_BYTES))
        for _ in range(total // size):
            writer.write(b"%x\r\n%b\r\n" % (size, b"x" * size))
            await writer.drain()
        writer.write(b"2\r\n\n\n\r\n0\r\n\r\n")


def _head(status: bytes, content_type: bytes, headers: bytes) -> bytes:
    return b"HTTP/1.1 %b OK\r\ncontent-type: %b\r\n%b\r\n" % (status, content_type, headers)


def _whole(body: bytes, content_type: bytes = TYPES[1], status: bytes = b"200", headers: bytes = b"") -> bytes:
    return _head(status, content_type, b"content-length: %d\r\n%b" % (len(body), headers)) + body


@asynccontextmanager
async def hostile_engine(seed: int, port: int = 0) -> AsyncIterator[str]:
    """Serve a hostile engine on this event loop. Gives its URL."""
    engine, serving = HostileEngine(seed), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await engine.serve(reader, writer)
        finally:
            serving.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await asyncio.sleep(0)
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving)


async def _main(seed: int, ports: list[int]) -> None:
    async with AsyncExitStack() as stack:
        for number, port in enumerate(ports):
            await stack.enter_async_context(hostile_engine(seed + number, port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    os.nice(5)
    uvloop.run(_main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
