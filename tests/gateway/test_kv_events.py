"""KV events over a real socket: what a scripted publisher says an engine has evicted is not expected there any more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from headway.config import Config
from headway.core.types import Replica, ReplicaCacheLost
from headway.dispatch.fleet import Member
from headway.engines import kv_subscriber
from headway.engines.kv_subscriber import MAX_MESSAGE_BYTES, KvRoom, KvSubscriber
from headway.engines.scripted import Script, running
from headway.errors import SetupError
from tests.engines.test_kv_events import ALL_LOST, Engine, read, removed, stored, tokens
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))


class Publisher(Engine):
    """Publishes as vLLM does, and sends again what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        context = zmq.asyncio.Context.instance()
        self.socket, self.replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.address, self.replay_at = (
            f"tcp://127.0.0.1:{one.bind_to_random_port('tcp://127.0.0.1')}" for one in (self.socket, self.replay)
        )
        self.kept: list[list[bytes]] = []
        self.asked_for: list[int] = []
        self.replaying = asyncio.create_task(self._replay())

    async def send(self, *events: dict[str, Any], is_lost: bool = False) -> None:
        frames = self.message(*events)
        self.kept.append(frames)
        if not is_lost:
            await self.socket.send_multipart(frames)

    async def until(self, is_so: Callable[[], bool], *events: dict[str, Any]) -> None:
        """Send until it is so: a subscriber that has just connected misses messages."""
        async with asyncio.timeout(20):
            while not is_so():
                if events:
                    await self.send(*events)
                await asyncio.sleep(0.02)

    async def _replay(self) -> None:
        while True:
            client, _, start = await self.replay.recv_multipart()
            self.asked_for.append(int.from_bytes(start))
            for frames in self.kept:
                if frames[1] >= start:
                    await self.replay.send_multipart([client, b"", *frames])
            await self.replay.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self.replaying.cancel()
        self.socket.close(0)
        self.replay.close(0)


@asynccontextmanager
async def publishing() -> AsyncIterator[Publisher]:
    publisher = Publisher()
    try:
        yield publisher
    finally:
        publisher.close()


class Subscribed:
    def __init__(self, publisher: Publisher, subscriber: KvSubscriber, told: list[ReplicaCacheLost]) -> None:
        self.publisher, self.subscriber, self.told = publisher, subscriber, told

    async def has(self, ids: list[int], *keys: int) -> None:
        """The engine has this prompt, and the subscriber knows it."""
        events = self.subscriber._events
        assert events is not None
        await self.publisher.send(stored(ids))
        await self.publisher.until(lambda: events._next == self.publisher.number)
        self.subscriber.read(read(ids, *keys))

    async def is_told(self, *expected: ReplicaCacheLost) -> None:
        await self.publisher.until(lambda: len(self.told) >= len(expected))
        assert self.told == list(expected)
        self.told.clear()


@asynccontextmanager
async def subscribed(*, replays: bool = False, room: KvRoom | None = None) -> AsyncIterator[Subscribed]:
    async with publishing() as publisher:
        told = list[ReplicaCacheLost]()
        replay_at = publisher.replay_at if replays else ""
        subscriber = KvSubscriber("r0", publisher.address, replay_at, room or KvRoom(), told.append)
        task = asyncio.create_task(subscriber.run())
        try:
            is_connected = lambda: bool(subscriber._events and subscriber._events._next)  # noqa: E731
            await publisher.until(is_connected, stored(tokens(4, 9000)))
            yield Subscribed(publisher, subscriber, told)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def is_bound(publisher: Publisher, address: str) -> bool:
    """libzmq closes the sockets that had the address in a thread of its own."""
    try:
        publisher.socket.bind(address)
    except zmq.ZMQError:
        return False
    return True


async def test_what_is_evicted_is_told_in_batches() -> None:
    async with subscribed() as one:
        ids = tokens(16)
        await one.has(ids, 1, 2, 3, 4)
        for end in (16, 12):
            await one.publisher.send(removed(ids[:end]))
        await one.is_told(ReplicaCacheLost("r0", [4, 3]))
        await one.publisher.send(removed(ids[:4]))
        await one.is_told(ReplicaCacheLost("r0", [2, 1]))


async def test_messages_that_were_lost_lose_all_if_they_cannot_be_asked_for() -> None:
    async with subscribed() as one:
        await one.has(tokens(8), 1, 2)
        await one.publisher.send(is_lost=True)
        await one.publisher.send()
        await one.is_told(*ALL_LOST)
        await one.has(tokens(8), 1, 2)  # and then it goes on
        await one.publisher.send(removed(tokens(8)))
        await one.is_told(ReplicaCacheLost("r0", [2]))


async def test_messages_that_were_lost_are_asked_for() -> None:
    async with subscribed(replays=True) as one:
        await one.has(tokens(8), 1, 2)
        missed = one.publisher.number
        await one.publisher.send(removed(tokens(8)), is_lost=True)
        await one.publisher.send(stored(tokens(8), after=4), is_lost=True)
        await one.publisher.send()
        await one.is_told(ReplicaCacheLost("r0", [2]))
        assert one.publisher.asked_for == [missed]


async def test_messages_that_the_engine_does_not_have_any_more_lose_all() -> None:
    async with subscribed(replays=True) as one:
        await one.has(tokens(8), 1, 2)
        await one.publisher.send(is_lost=True)
        one.publisher.kept.clear()
        await one.publisher.send()
        await one.is_told(*ALL_LOST)


async def test_messages_in_another_order_lose_all() -> None:
    async with subscribed() as one:
        await one.has(tokens(8), 1, 2)
        first, second = one.publisher.message(), one.publisher.message()
        for frames in (second, first):
            await one.publisher.socket.send_multipart(frames)
        await one.is_told(*ALL_LOST)


async def test_an_engine_that_was_started_again_has_lost_all() -> None:
    async with subscribed() as one:
        await one.has(tokens(8), 1, 2)
        one.publisher.socket.close(0)
        async with publishing() as again:
            await again.until(lambda: is_bound(again, one.publisher.address))
            await again.until(lambda: bool(one.told), stored(tokens(4)))
            assert one.told == ALL_LOST


async def test_a_huge_message_is_not_received_and_all_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_subscriber, "SILENT_S", 0.5)
    async with subscribed() as one:
        await one.has(tokens(8), 1, 2)
        await one.publisher.socket.send_multipart([b"", bytes(8), bytes(MAX_MESSAGE_BYTES + 1)])
        one.publisher.number += 1
        await one.publisher.until(lambda: bool(one.told), stored(tokens(4)))  # once it is connected again
        assert one.told == ALL_LOST


async def test_garbage_is_left_out() -> None:
    async with subscribed() as one:
        await one.has(tokens(8), 1, 2)
        for frames in ([b""], [b"", b"", b"", b""], [b"", one.publisher.number.to_bytes(8), b"\xff\x00"]):
            await one.publisher.socket.send_multipart(frames)
        one.publisher.number += 1
        await one.publisher.send(removed(tokens(8)))
        await one.is_told(ReplicaCacheLost("r0", [2]))


async def test_endless_events_leave_the_loop_to_others() -> None:
    async with subscribed(room=KvRoom(max_blocks=5_000)) as one:
        events = one.subscriber._events
        assert events is not None

        async def flood() -> None:
            ids = tokens(8_000)
            for number in range(10**9):
                hashes = list(range(2_000 * number, 2_000 * (number + 1)))
                await one.publisher.send(stored(ids[:4], token_ids=ids, block_hashes=hashes))
                one.publisher.kept.clear()
                await asyncio.sleep(0.001)

        began, flooding, late = events._next or 0, asyncio.create_task(flood()), list[float]()
        loop = asyncio.get_running_loop()
        while (events._next or 0) < began + 20:
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late.append(loop.time() - due)
        flooding.cancel()
        assert sorted(late)[len(late) * 9 // 10] < 0.1
        events.check()


async def test_subscribers_share_the_memory_of_a_process() -> None:
    room = KvRoom(max_blocks=100)
    async with subscribed(room=room):
        assert room.share() == 100
        async with subscribed(room=room):
            assert room.share() == 50
    assert room.subscribers == 0


# --- the whole gateway -----------------------------------------------------------------------------------------------


def config_with(publisher: Publisher, url: str) -> Config:
    replica = {"url": url, "seats": 8, "kv_events": publisher.address, "kv_replay": publisher.replay_at}
    model = {"name": MODEL, "tiers": [{"name": "standard"}], "replicas": [replica]}
    return Config.model_validate({"gateway": {"port": 0, "probe_interval_s": 0.05}, "models": [model]})


async def held(here: Running) -> int:
    """How many prefixes the replica is expected to have."""
    here.gateway.machine.check(asyncio.get_running_loop().time())
    [part] = here.gateway.machine.pools[MODEL].prefixes.parts.values()
    return part.keys


async def until_held(here: Running, is_so: Callable[[int], bool], again: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(20):
        while not is_so(await held(here)):
            await again()
            await asyncio.sleep(0.02)


async def test_a_prompt_whose_blocks_are_evicted_is_not_expected_any_more() -> None:
    async with (
        running(QUICK) as engine,
        publishing() as publisher,
        running_gateway(config_with(publisher, engine.url)) as here,
    ):
        prompt = "where is the bus " * 400
        kv_events: Any = here.gateway.replicas._watched[engine.url].kv_events
        joined: list[Any] = []
        kv_events.read = joined.append
        async for _ in await here.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=3, stream=True):
            pass
        await here.until_empty()
        [prompt_read] = joined
        ids = msgspec.json.decode(b"[" + prompt_read.ids + b"]")
        del kv_events.read
        most = await held(here)
        assert most == len(prompt_read.keys) >= 10
        assert prompt_read.shares[-1] > 0.7  # prefixes grow by 28 %
        await publisher.until(lambda: bool(kv_events._events and kv_events._events._next), stored(tokens(4, 9000)))

        whole, half = len(ids) // 4 * 4, len(ids) // 8 * 4
        await publisher.send(stored(ids[:whole]))
        kv_events.read(prompt_read)
        await publisher.send(removed(ids[:half]))
        await until_held(here, lambda left: 0 < left < most, lambda: publisher.send())
        await until_held(here, lambda left: left == 0, lambda: publisher.send({"type": "AllBlocksCleared"}))
        assert here.gateway.is_ready()


async def test_only_who_probes_a_replica_subscribes() -> None:
    async with (
        running(QUICK) as engine,
        publishing() as publisher,
        running_gateway(config_with(publisher, engine.url)) as here,
    ):
        replicas = here.gateway.replicas
        for probed, subscribers in [({}, 0), ({engine.url: True}, 1), ({}, 0), (None, 1)]:
            replicas.probe_only(probed)
            await publisher.until(lambda wanted=subscribers: replicas._kv_room.subscribers == wanted)  # type: ignore[misc]
        other = replace(member_of(engine.url), kv_events=publisher.address)
        assert not other.is_same_engine(member_of(engine.url))  # so it drains, and begins again with its address


def member_of(url: str) -> Member:
    return Member(Replica(url, MODEL, 8), "vllm")


async def test_without_the_extra_the_gateway_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    async with publishing() as publisher:
        with pytest.raises(SetupError, match=r"pip install 'headway\[kv-events\]'"):
            async with running_gateway(config_with(publisher, "http://127.0.0.1:1")):
                pass


async def test_pyzmq_is_not_imported_by_a_gateway_without_kv_events() -> None:
    code = "import sys, headway.run; assert 'zmq' not in sys.modules"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_calls_whose_prompts_are_not_known_are_not_followed() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        assert here.gateway.replicas._watched[engine.url].kv_events is None
        await here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=3)
