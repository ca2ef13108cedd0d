"""The audits of auto models in the store: sampled calls that wait for the full model, and the verdicts of the others.

A row is written before the client gets the answer that it is about, so a gateway that is killed loses none. `sealed`
is the call and the student's answer, encrypted (sealing.py); it is deleted at the verdict, or after 24 hours. Verdicts
stay until the model is calibrated again: from them, in the order of their numbers, a restart rebuilds what the gateway
knew (core/trust.py).

`AuditRows` is the SQL. `AuditStore` runs it in a thread with a connection of its own, which it opens again after a
failure. Knows nothing of prompts, answers or trust.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from headway.ledger.sealing import Sealer
from headway.ledger.store import Store, StoreRefused, StoreUnavailable

KEEP_US = 24 * 3600 * 1_000_000
PAGE = 5000  # rows that are read at once

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AuditRow:
    number: int  # in the order of the sample
    budget: float
    asked_us: int
    verdict: str | None = None  # None while it waits


@dataclass(frozen=True, slots=True)
class AuditSample:
    """Whose calls are numbered together: an auto model, under one calibration, at one gateway or in one cell."""

    gateway: str
    model: str
    calibration: str

    def name_of(self, number: int) -> str:
        return f"audit {self.gateway} {self.model} {self.calibration} {number}"

    @property
    def key(self) -> tuple[str, str, str]:
        return self.gateway, self.model, self.calibration


class AuditRows:
    """Each method is one transaction. All writes are idempotent."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, sample: AuditSample, after: int) -> list[AuditRow]:
        """Return the next PAGE rows of the sample after this number; fewer if there are no more. The first page deletes
        the rows of earlier calibrations."""
        with self._store.transaction(lock="audits") as cursor:
            if after == 0:
                cursor.execute("DELETE FROM audits WHERE gateway = ? AND model = ? AND calibration <> ?", sample.key)
            cursor.execute(
                "SELECT number, budget, asked_us, verdict FROM audits "
                f"WHERE gateway = ? AND model = ? AND calibration = ? AND number > ? ORDER BY number LIMIT {PAGE}",
                (*sample.key, after),
            )
            return [AuditRow(int(row[0]), float(row[1]), int(row[2]), row[3]) for row in cursor.fetchall()]

    def keep(self, sample: AuditSample, row: AuditRow, sealed: str) -> bool:
        """Returns False if another call has this number."""
        with self._store.transaction() as cursor:
            cursor.execute(
                "INSERT INTO audits (gateway, model, calibration, number, budget, asked_us, sealed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (gateway, model, calibration, number) DO NOTHING "
                "RETURNING number",
                (*sample.key, row.number, repr(row.budget), row.asked_us, sealed),
            )
            return cursor.fetchone() is not None

    def withdraw(self, sample: AuditSample, number: int) -> None:
        """Delete a call that waits, because its answer is not delivered."""
        with self._store.transaction() as cursor:
            cursor.execute(
                "DELETE FROM audits WHERE gateway = ? AND model = ? AND calibration = ? AND number = ? "
                "AND verdict IS NULL",
                (*sample.key, number),
            )

    def read(self, sample: AuditSample, number: int) -> tuple[str | None, str | None] | None:
        """Return what is sealed, and the verdict. None if there is no such row."""
        with self._store.transaction() as cursor:
            cursor.execute(
                "SELECT sealed, verdict FROM audits WHERE gateway = ? AND model = ? AND calibration = ? AND number = ?",
                (*sample.key, number),
            )
            row = cursor.fetchone()
            return (row[0], row[1]) if row is not None else None

    def end(self, sample: AuditSample, rows: Sequence[AuditRow]) -> None:
        """Write verdicts, and delete what was sealed. A call that was never kept gets its row now."""
        with self._store.transaction() as cursor:
            cursor.executemany(
                "INSERT INTO audits (gateway, model, calibration, number, budget, asked_us, verdict) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (gateway, model, calibration, number) "
                "DO UPDATE SET verdict = COALESCE(audits.verdict, excluded.verdict), sealed = NULL",
                [(*sample.key, row.number, repr(row.budget), row.asked_us, row.verdict) for row in rows],
            )

    def expire(self) -> None:
        """Delete what has been sealed for longer than 24 hours, of any gateway: one may be gone for good."""
        with self._store.transaction() as cursor:
            cursor.execute(
                "UPDATE audits SET verdict = 'expired', sealed = NULL WHERE verdict IS NULL AND asked_us < ?",
                (self._store.now_us() - KEEP_US,),
            )


class AuditStore:
    def __init__(self, open_store: Callable[[], Store], gateway: str, secret: bytes) -> None:
        self.gateway = gateway
        self.is_available = False
        self._open_store = open_store
        self._sealer = Sealer(secret)
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audits")

    async def page(self, sample: AuditSample, after: int) -> list[AuditRow]:
        return await self._run(lambda rows: rows.page(sample, after))

    async def keep(self, sample: AuditSample, row: AuditRow, plain: bytes) -> bool:
        """Returns False if another call has this number."""
        sealed = self._sealer.seal(plain, sample.name_of(row.number))
        return await self._run(lambda rows: rows.keep(sample, row, sealed))

    async def withdraw(self, sample: AuditSample, number: int) -> None:
        await self._run(lambda rows: rows.withdraw(sample, number))

    async def read(self, sample: AuditSample, number: int) -> bytes | str | None:
        """Return what was kept, or the verdict if the audit has ended. None if there is no such audit. Raises
        SealBroken if the secret has changed."""
        found = await self._run(lambda rows: rows.read(sample, number))
        if found is None:
            return None
        sealed, verdict = found
        return self._sealer.open(sealed, sample.name_of(number)) if sealed is not None else verdict

    async def end(self, sample: AuditSample, ended: Sequence[AuditRow]) -> None:
        await self._run(lambda rows: rows.end(sample, ended))

    async def expire(self) -> None:
        await self._run(AuditRows.expire)

    def close(self) -> None:
        """Wait for what is under way. Nothing may be asked afterwards."""
        self._thread.submit(self._disconnect)
        self._thread.shutdown()

    async def _run(self, job: Callable[[AuditRows], Result]) -> Result:
        """Raises StoreUnavailable or StoreRefused."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, job)

    # --- in the thread ---

    def _do(self, job: Callable[[AuditRows], Result]) -> Result:
        try:
            if self._store is None:
                self._store = self._open_store()
                self._store.migrate()
            done = job(AuditRows(self._store))
        except StoreUnavailable:
            self._disconnect()
            raise
        except StoreRefused:
            self.is_available = False
            raise
        self.is_available = True
        return done

    def _disconnect(self) -> None:
        self.is_available = False
        if self._store is not None:
            with suppress(StoreUnavailable, OSError):
                self._store.close()
            self._store = None
