"""Reads of the store for whoever looks at figures: a client at its usage, an operator at the console.

    a page ──► StoreReader ──► one thread of its own ──► Store

Reads never wait for the thread that ships entries and leases budgets, and that thread never waits for them. What was
read is kept for a few seconds, and for longer if reading took long, so that whoever polls costs the store little. A
figure lags behind the calls by that time, and by the time that entries wait in the spool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from headway.errors import Refused, SetupError
from headway.ledger.store import Store, StoreRefused, StoreUnavailable

log = logging.getLogger("headway.ledger")

KEPT_S = 5.0
FAILURE_KEPT_S = 1.0
MAX_SHARE = 0.05  # of the time may go into one read
ANSWER_S = 5.0  # how long a client waits for the store
MAX_READING = 64  # reads that wait for the thread
MAX_KEPT = 4_096  # reads
RETRY_AFTER_S = 5

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class _Found:
    value: Any
    is_read: bool  # False if the store failed
    took_s: float


class StoreReader:
    def __init__(self, open_store: Callable[[], Store], is_unavailable: Callable[[], bool]) -> None:
        self._open_store = open_store
        self._is_unavailable = is_unavailable
        self._store: Store | None = None  # used in the thread only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._kept: OrderedDict[str, tuple[float, _Found]] = OrderedDict()  # by name: until when, and what
        self._reading: dict[str, asyncio.Future[_Found]] = {}

    async def read(self, name: str, read: Callable[[Store], Read]) -> Read:
        """What `read` returns, or returned a few seconds ago under this name. Raises Refused if the store does not
        answer in time."""
        until, found = self._kept.get(name, (0.0, None))
        if found is None or time.monotonic() >= until:
            found = await self._answer(name, read)
        if not found.is_read:
            raise Refused("books_away", RETRY_AFTER_S)
        return cast(Read, found.value)

    async def _answer(self, name: str, read: Callable[[Store], Any]) -> _Found:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._begin_reading(name, read))  # others may wait for the same
        except TimeoutError:
            raise Refused("books_away", RETRY_AFTER_S) from None

    def _begin_reading(self, name: str, read: Callable[[Store], Any]) -> asyncio.Future[_Found]:
        if (reading := self._reading.get(name)) is not None:
            return reading
        if self._is_unavailable() or len(self._reading) >= MAX_READING:
            raise Refused("books_away", RETRY_AFTER_S)
        reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read, read)
        self._reading[name] = reading
        reading.add_done_callback(partial(self._end_reading, name))
        return reading

    def _end_reading(self, name: str, reading: asyncio.Future[_Found]) -> None:
        del self._reading[name]
        if reading.cancelled():
            return
        found = reading.result()
        kept_s = KEPT_S if found.is_read else FAILURE_KEPT_S
        self._kept[name] = (time.monotonic() + max(kept_s, found.took_s / MAX_SHARE), found)
        self._kept.move_to_end(name)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def stop(self) -> None:
        for reading in self._reading.values():
            reading.cancel()
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    # --- in the thread ---

    def _read(self, read: Callable[[Store], Any]) -> _Found:
        began = time.monotonic()
        try:
            self._store = self._store or self._open_store()
            return _Found(read(self._store), is_read=True, took_s=time.monotonic() - began)
        except (StoreUnavailable, StoreRefused, SetupError) as error:
            log.warning("cannot read figures from the store: %s", str(error).strip())
            self._close()
        return _Found(None, is_read=False, took_s=time.monotonic() - began)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = None
