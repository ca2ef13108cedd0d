"""Stored responses: what `previous_response_id` continues.

A row belongs to a key and is found only with it. It is a response, or an item of one that can be referred to by its id.
`sealed` is the item, or the response and the conversation that led to it, compressed and encrypted (sealing.py) under a
name that has the key and the id, so that a row cannot be read as another key's. Rows are deleted when they are too old,
and the oldest of a key when it has too many bytes.

`ResponseRows` is the SQL. `ResponseStore` runs it in a thread with a connection of its own. Knows nothing of what a
response has in it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from headway.errors import Refused, TooLarge
from headway.ledger.sealing import SealBroken, Sealer
from headway.ledger.store import Store, StoreRefused, StoreUnavailable
from headway.supervise import Supervisor

log = logging.getLogger("headway.ledger")

EXPIRE_INTERVAL_S = 600.0
MAX_WAITING = 256  # jobs for the thread
QUICK_COMPRESSION = 1
ANSWER_S = 5.0  # how long a call waits for the store
RETRY_AFTER_S = 5

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    keep_us: int
    max_response_bytes: int  # of one, before it is compressed
    max_bytes_per_key: int  # of all of a key, as stored


class ResponseRows:
    """Each method is one transaction. All writes are idempotent."""

    def __init__(self, store: Store, limits: ResponseLimits) -> None:
        self._store = store
        self._limits = limits

    def keep(self, tenant: str, sealed: Mapping[str, str]) -> None:
        """Insert rows by id, and delete the oldest rows of the tenant that they leave no room for."""
        now_us = self._store.now_us()
        with self._store.transaction(lock=f"responses {tenant}") as cursor:
            cursor.executemany(
                "INSERT INTO responses (tenant, id, at_us, bytes, sealed) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (tenant, id) DO NOTHING",
                [(tenant, row_id, now_us, len(text), text) for row_id, text in sealed.items()],
            )
            cursor.execute("SELECT COALESCE(SUM(bytes), 0) FROM responses WHERE tenant = ?", (tenant,))
            excess = int(cursor.fetchone()[0]) - self._limits.max_bytes_per_key
            if excess <= 0:
                return
            cursor.execute("SELECT id, bytes FROM responses WHERE tenant = ? ORDER BY at_us, id", (tenant,))
            oldest = []
            for row_id, size in cursor.fetchall():
                if excess <= 0:
                    break
                oldest.append((tenant, row_id))
                excess -= int(size)
            cursor.executemany("DELETE FROM responses WHERE tenant = ? AND id = ?", oldest)

    def sealed(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """The rows that are there, by id."""
        oldest_us = self._store.now_us() - self._limits.keep_us
        with self._store.transaction() as cursor:
            cursor.execute(
                f"SELECT id, sealed FROM responses WHERE tenant = ? AND at_us >= ? AND id IN ({_places(ids)})",
                (tenant, oldest_us, *ids),
            )
            return {str(row_id): str(sealed) for row_id, sealed in cursor.fetchall()}

    def delete(self, tenant: str, ids: Sequence[str]) -> bool:
        """Returns whether there was one of these rows."""
        with self._store.transaction(lock=f"responses {tenant}") as cursor:
            rows = f"FROM responses WHERE tenant = ? AND id IN ({_places(ids)})"
            cursor.execute(f"SELECT 1 {rows}", (tenant, *ids))
            is_there = cursor.fetchone() is not None
            cursor.execute(f"DELETE {rows}", (tenant, *ids))
            return is_there

    def expire(self) -> None:
        oldest_us = self._store.now_us() - self._limits.keep_us
        with self._store.transaction() as cursor:
            cursor.execute("DELETE FROM responses WHERE at_us < ?", (oldest_us,))


class ResponseStore:
    """Implements wire.StoredAnswers."""

    def __init__(self, open_store: Callable[[], Store], secret: bytes, limits: ResponseLimits) -> None:
        self.max_bytes = limits.max_response_bytes
        self._limits = limits
        self._open_store = open_store
        self._sealer = Sealer(secret)
        self._store: Store | None = None  # used in the thread only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._waiting = 0
        self._is_available = True
        self._expiry: asyncio.Task[None] | None = None

    async def keep(self, tenant: str, plain: Mapping[str, bytes]) -> None:
        def job(rows: ResponseRows) -> None:
            packed = {row_id: zlib.compress(one, QUICK_COMPRESSION) for row_id, one in plain.items()}
            rows.keep(tenant, {row_id: self._sealer.seal(one, _name(tenant, row_id)) for row_id, one in packed.items()})

        await self._ask(job)

    async def read(self, tenant: str, response_id: str) -> bytes | None:
        # One row was bounded when it was stored.
        return (await self.read_many(tenant, [response_id], sys.maxsize)).get(response_id)

    async def read_many(self, tenant: str, ids: Sequence[str], max_bytes: int) -> dict[str, bytes]:
        def job(rows: ResponseRows) -> dict[str, bytes]:
            found, room = {}, max_bytes
            for row_id, sealed in rows.sealed(tenant, ids).items():
                with suppress(SealBroken):  # the owner has changed the secret
                    found[row_id] = zlib.decompress(self._sealer.open(sealed, _name(tenant, row_id)))
                    room -= len(found[row_id])
                if room < 0:
                    raise TooLarge(f"What is stored is larger than {max_bytes} bytes.", "input")
            return found

        return await self._ask(job)

    async def delete(self, tenant: str, ids: Sequence[str]) -> bool:
        return await self._ask(lambda rows: rows.delete(tenant, ids))

    def start(self, supervisor: Supervisor) -> None:
        self._expiry = supervisor.start("expiry of responses", self._expire)

    async def stop(self) -> None:
        """Wait for what is under way. Nothing may be asked afterwards."""
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        self._thread.submit(self._disconnect)
        await asyncio.to_thread(self._thread.shutdown)

    async def _expire(self) -> None:
        """Delete old rows for ever, also those of keys that no longer call."""
        while True:
            try:
                await self._run(ResponseRows.expire)
            except (StoreUnavailable, StoreRefused) as error:
                log.warning("old responses cannot be deleted at the moment: %s", error)
            await asyncio.sleep(EXPIRE_INTERVAL_S)

    async def _ask(self, job: Callable[[ResponseRows], Result]) -> Result:
        """Run a job for a call, which does not wait for ever. Raises Refused."""
        try:
            return await asyncio.wait_for(self._run(job), ANSWER_S)
        except (StoreUnavailable, StoreRefused, TimeoutError) as error:
            if self._is_available:
                log.warning("the store of responses failed: %r", error)
            self._is_available = False
            raise Refused("books_away", RETRY_AFTER_S) from None

    async def _run(self, job: Callable[[ResponseRows], Result]) -> Result:
        """Raises StoreUnavailable or StoreRefused."""
        if self._waiting >= MAX_WAITING:
            raise StoreUnavailable("too many responses wait for the store")
        self._waiting += 1
        try:
            done = asyncio.get_running_loop().run_in_executor(self._thread, self._do, job)
        except RuntimeError as error:  # it is closed
            self._waiting -= 1
            raise StoreUnavailable(str(error)) from error
        done.add_done_callback(self._end_wait)
        return await asyncio.shield(done)  # a client that leaves does not undo what it asked for

    def _end_wait(self, done: asyncio.Future[Result]) -> None:
        self._waiting -= 1
        if not done.cancelled():
            done.exception()  # nobody may be left to look at it

    # --- in the thread ---

    def _do(self, job: Callable[[ResponseRows], Result]) -> Result:
        try:
            if self._store is None:
                self._store = self._open_store()
                self._store.migrate()
            done = job(ResponseRows(self._store, self._limits))
        except StoreUnavailable:
            self._disconnect()
            raise
        self._is_available = True
        return done

    def _disconnect(self) -> None:
        if self._store is not None:
            with suppress(StoreUnavailable, OSError):
                self._store.close()
            self._store = None


def _name(tenant: str, row_id: str) -> str:
    return f"response {tenant} {row_id}"


def _places(ids: Sequence[str]) -> str:
    return ", ".join("?" * len(ids))
