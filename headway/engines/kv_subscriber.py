"""Subscribes to the KV events of a replica's engine (ZeroMQ), for its prober.

An engine that reads prompts at full speed publishes every token of them. They are read on the event loop that also
writes streams, so all subscribers of a process work for WORK_SHARE of the time together, and some blocks at a time. One
that falls behind leaves its messages where they are. Then the engine drops some, which it numbers; they are asked for
again if the engine has an endpoint for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headway.core.types import ReplicaCacheLost
from headway.engines.kv_blocks import ReadPrompt
from headway.engines.kv_events import CacheEvents

if TYPE_CHECKING:
    import zmq.asyncio

MAX_BLOCKS: Final = 100_000  # of all replicas that this process probes: some 85 MB
WORK_SHARE: Final = 0.1
WORK_S: Final = 0.001  # of work, after which it pauses
MESSAGE_S: Final = 50e-6  # to receive a message, about
TELL_S: Final = 0.1  # for which losses are collected
MAX_MESSAGE_BYTES: Final = 2**20  # some 150,000 tokens
MAX_WAITING: Final = 32  # messages that are received and not read
MAX_RECONNECT_MS: Final = 5_000
REPLAY_S: Final = 1.0
# After which another connection is made: libzmq does not connect again after a message that is too large.
SILENT_S = 30.0


class KvRoom:
    """What the subscribers of a process share: the memory for blocks, and the time."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.subscribers = 0
        self._max_blocks = max_blocks
        self._turn = asyncio.Lock()
        self._worked_s = 0.0

    def share(self) -> int:
        return self._max_blocks // max(1, self.subscribers)

    async def work(self, steps: Iterator[None]) -> None:
        clock = asyncio.get_running_loop().time
        async with self._turn:
            self._worked_s += MESSAGE_S
            began = clock()
            for _ in steps:
                self._worked_s += clock() - began
                if self._worked_s >= WORK_S:
                    await asyncio.sleep(self._worked_s * (1 / WORK_SHARE - 1))
                    self._worked_s = 0.0
                began = clock()
            self._worked_s += clock() - began


class KvSubscriber:
    def __init__(
        self, name: str, events: str, replay: str, room: KvRoom, tell: Callable[[ReplicaCacheLost], None]
    ) -> None:
        """`events` and `replay` are ZeroMQ addresses; without the second, messages that were missed stay missing."""
        self._name = name
        self._address = events
        self._replay_at = replay
        self._room = room
        self._tell = tell
        self._events: CacheEvents | None = None  # while it runs
        self._telling: asyncio.TimerHandle | None = None

    def read(self, prompt: ReadPrompt) -> None:
        """The engine has read a prompt."""
        if self._events is not None:
            self._events.read(prompt)

    async def run(self) -> None:
        # Only who is told of events waits for this import, and needs the package.
        import zmq

        events = self._events = CacheEvents(self._name, self._room.share)
        self._room.subscribers += 1
        try:
            while True:
                with suppress(TimeoutError), self._socket(zmq.SUB, self._address) as socket:
                    socket.subscribe(b"")
                    await self._receive(socket, events)
        finally:
            self._room.subscribers -= 1
            if self._events is events:
                self._events = None
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None

    async def _receive(self, socket: zmq.asyncio.Socket, events: CacheEvents) -> None:
        """Raises TimeoutError once the engine is silent."""
        while True:
            async with asyncio.timeout(SILENT_S):
                frames = await socket.recv_multipart()
            if missing := events.missing(frames):
                await self._replay(missing, events)
            await self._room.work(events.receive(frames))
            self._tell_later(events)

    def _socket(self, kind: int, address: str) -> zmq.asyncio.Socket:
        import zmq.asyncio

        socket: zmq.asyncio.Socket = zmq.asyncio.Context.instance().socket(kind)
        options: dict[int, Any] = {
            zmq.LINGER: 0,
            zmq.IPV6: 1,
            zmq.RCVHWM: MAX_WAITING,
            zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
            zmq.RECONNECT_IVL_MAX: MAX_RECONNECT_MS,
        }
        for option, value in options.items():
            socket.setsockopt(option, value)
        socket.connect(address)
        return socket

    async def _replay(self, missing: range, events: CacheEvents) -> None:
        """Ask for messages that did not come. If some do not come now either, the next one shows it."""
        import zmq

        if not self._replay_at:
            return
        with suppress(TimeoutError), self._socket(zmq.DEALER, self._replay_at) as socket:
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", missing.start.to_bytes(8)])
                for number in missing:
                    _, *frames = await socket.recv_multipart()
                    if len(frames) != 3 or frames[1] != number.to_bytes(8):
                        return
                    await self._room.work(events.receive(frames))

    def _tell_later(self, events: CacheEvents) -> None:
        if events.has_lost and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_now, events)

    def _tell_now(self, events: CacheEvents) -> None:
        self._telling = None
        for event in events.losses():
            self._tell(event)
