"""The events of vLLM's own block pool, hashes and publisher are followed. No model is loaded for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from headway.core.types import ReplicaCacheLost
from headway.engines.kv_blocks import ReadPrompt
from headway.engines.kv_events import CacheEvents
from headway.engines.kv_subscriber import KvRoom, KvSubscriber
from headway.local.engine_env import ensure_cpu_engine
from headway.local.engine_process import free_port

pytestmark = [pytest.mark.engine, pytest.mark.anyio]
BLOCKS, BLOCK_TOKENS = 60, 32
SCRIPT = Path(__file__).with_name("publish_kv_events.py")


class Pool:
    """vLLM's block pool in another process, and a subscriber to what it publishes."""

    def __init__(self, process: asyncio.subprocess.Process, subscriber: KvSubscriber) -> None:
        self._process, self._subscriber = process, subscriber
        self.published = 0

    @property
    def events(self) -> CacheEvents:
        assert self._subscriber._events is not None
        return self._subscriber._events

    async def do(self, order: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n".encode())
        assert await self._process.stdout.readline() == b"done\n"
        self.published += 1

    async def run(self, first: int, count: int, salt: str = "") -> None:
        await self.do(f"run {first} {count} {salt}")

    def read(self, first: int, count: int, *keys: int, salt: str = "") -> None:
        ids = msgspec.json.encode(list(range(first, first + count)))[1:-1]
        shares = tuple((place + 1) / len(keys) for place in range(len(keys)))
        self._subscriber.read(ReadPrompt(ids, keys, shares, salt=salt))

    async def until_received(self) -> None:
        async with asyncio.timeout(20):
            while self.events._next != self.published:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # until losses are told


@asynccontextmanager
async def followed(told: list[ReplicaCacheLost]) -> AsyncIterator[Pool]:
    events, replay = str(free_port()), str(free_port())
    command = [str(ensure_cpu_engine(print)), str(SCRIPT), events, replay, str(BLOCKS), str(BLOCK_TOKENS)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    addresses = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
    subscriber = KvSubscriber("r0", *addresses, KvRoom(), told.append)
    following = asyncio.create_task(subscriber.run())
    try:
        pool = Pool(process, subscriber)
        async with asyncio.timeout(100):
            while pool.published == 0 or pool.events._next is None:  # messages before it is connected are missed
                await pool.run(1_000_000, 8)  # of no whole block
                await asyncio.sleep(0.1)
        yield pool
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def test_what_vllm_evicts_is_lost_and_nothing_else() -> None:
    told: list[ReplicaCacheLost] = []
    async with followed(told) as pool:
        await pool.run(1, 1000, "ada")  # 31 whole blocks, of 59
        await pool.until_received()
        pool.read(1, 1000, *range(1, 11), salt="ada")
        pool.read(1, 1000, 77, salt="bob")  # another tenant's prompt of the same tokens
        await pool.run(5000, 700)
        await pool.until_received()
        assert told == []
        pool.read(5000, 700, 21, 22)
        await pool.run(7000, 1000)
        await pool.until_received()
        [lost] = told
        kept = 10 - len(lost.keys or ())  # the shortest ones: a prompt is evicted from its end
        assert 0 < kept < 10
        assert lost.keys == list(range(10, kept, -1))

        first = pool.published - 1
        pool.events._next = first  # as if the last message had not come
        await pool.run(9000, 8)
        await pool.until_received()
        assert told == [lost]  # it was sent again, and nothing is missing

        await pool.do("reset")
        await pool.until_received()
        assert told == [lost, ReplicaCacheLost("r0")]
        pool.events.check()
