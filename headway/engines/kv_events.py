"""The KV events of one engine, as vLLM numbers them, and what its cache has lost by them.

Knows nothing of sockets: kv_subscriber.py brings the messages. They only remove. What a replica has is what core
expects after it has sent calls there; an event says that a part of it is gone. If messages are missing, or the numbers
go back because the engine was started again, all is taken as gone. A message that cannot be read is left out, and so is
what it may have removed: vLLM of another version must not empty a cache that it keeps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from headway.core.types import ReplicaCacheLost
from headway.engines.kv_blocks import AllBlocksCleared, BlockRemoved, BlockStored, CachedBlocks, ReadPrompt

log = logging.getLogger("headway.kv-events")

MAX_PROMPT_BYTES: Final = 2**23  # of prompts that wait until their blocks are looked up
PROMPT_BYTES: Final = 2048  # of a prompt beside its token ids: about 32 keys and shares
TRIES: Final = 3  # to find the blocks of a prompt: the message that stores them may still be on its way
MAX_LOST: Final = 2048  # keys that are told one by one; more at a time are told as all
MAX_KEYS: Final = 256  # in one event for core


class EventBatch(Struct, array_like=True):
    """One message of vLLM."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_read_batch = msgspec.msgpack.Decoder(EventBatch).decode
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


class CacheEvents:
    def __init__(self, name: str, share: Callable[[], int]) -> None:
        """`share` is how many blocks may be kept at the moment."""
        self._name = name
        self._blocks = CachedBlocks(share)
        self._prompts: deque[tuple[ReadPrompt, int]] = deque()  # each with how often it was tried
        self._prompt_bytes = 0
        self._next: int | None = None  # the number of the next message; None before the first one
        self._is_all_lost = False
        self._said: set[str] = set()  # warnings that were logged

    def read(self, prompt: ReadPrompt) -> None:
        """The engine has read a prompt. Its blocks are looked up before any are removed."""
        self._wait(prompt, 0)
        while self._prompt_bytes > MAX_PROMPT_BYTES:
            self._take_prompt()

    def _wait(self, prompt: ReadPrompt, tries: int) -> None:
        self._prompts.append((prompt, tries))
        self._prompt_bytes += len(prompt.ids) + PROMPT_BYTES

    def _take_prompt(self) -> tuple[ReadPrompt, int]:
        prompt, tries = self._prompts.popleft()
        self._prompt_bytes -= len(prompt.ids) + PROMPT_BYTES
        return prompt, tries

    def missing(self, frames: Sequence[bytes]) -> range:
        """The numbers of the messages that should have come before this one."""
        number = number_of(frames)
        return range(self._next, number) if self._next is not None and number is not None else range(0)

    def receive(self, frames: Sequence[bytes]) -> Iterator[None]:
        """Take a message, in steps. Never raises."""
        if (number := number_of(frames)) is None:
            self._say("has no number")
            return
        if self._next is not None and number != self._next:
            self._say("does not follow the last one, so the engine is taken to have lost its cache")
            self._lose_all()
        self._next = number + 1
        try:
            batch = _read_batch(frames[2])
        except UNREADABLE as error:
            self._say(f"cannot be read ({str(error)[:200]}), so it removes nothing")
            return
        has_looked = False
        for event in batch.events:
            if isinstance(event, BlockStored):
                yield from self._blocks.stored(event)
            elif isinstance(event, BlockRemoved):
                if not has_looked:
                    yield from self._look_up()
                    has_looked = True
                yield from self._blocks.removed(event)
            else:
                self._lose_all()
            yield
        if len(self._blocks.lost) > MAX_LOST:
            self._lose_all()

    def _look_up(self) -> Iterator[None]:
        for _ in range(len(self._prompts)):
            prompt, tries = self._take_prompt()
            with suppress(*UNREADABLE):
                if not (yield from self._blocks.read(prompt)) and tries + 1 < TRIES:
                    self._wait(prompt, tries + 1)

    def losses(self) -> list[ReplicaCacheLost]:
        """What core should be told, once."""
        keys, is_all_lost = list(self._blocks.lost), self._is_all_lost
        self._blocks.lost, self._is_all_lost = {}, False
        parts = [keys[first : first + MAX_KEYS] for first in range(0, len(keys), MAX_KEYS)]
        return [ReplicaCacheLost(self._name) for _ in range(is_all_lost)] + [
            ReplicaCacheLost(self._name, part) for part in parts
        ]

    @property
    def has_lost(self) -> bool:
        return bool(self._is_all_lost or self._blocks.lost)

    def check(self) -> None:
        self._blocks.check()

    def _lose_all(self) -> None:
        self._blocks.clear()
        self._blocks.lost, self._is_all_lost = {}, True

    def _say(self, problem: str) -> None:
        """Once: an engine may send it a thousand times a second."""
        kind = problem.split("(")[0]
        if kind not in self._said:
            self._said.add(kind)
            log.warning("a KV event message of replica %s %s", self._name, problem)


def number_of(frames: Sequence[bytes]) -> int | None:
    """None if this is no message of vLLM: a topic, a number of eight bytes, and a batch."""
    return int.from_bytes(frames[1]) if len(frames) == 3 and len(frames[1]) == 8 else None
