"""The lease as a row in PostgreSQL, one for each cell. Its time is measured by the server's clock.

The table is created here if it is missing, not by the ledger's migrations: those run when the books are opened, by
processes that may start after the dispatcher, and they are also for SQLite, which cannot keep a lease for several
machines.

A request that is not answered in time loses its connection, and the next one makes a new one. Connecting goes on
between requests, because to find out which of several hosts is alive can take longer than one request may.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from headway.dispatch.lease import LEASE_S, LeaseUnavailable
from headway.errors import SetupError
from headway.ledger.postgres import NO_DRIVER, NOT_A_URL, check_url

if TYPE_CHECKING:
    import psycopg

CONNECT_S = 2  # for each host; the driver takes no less
NOW_US = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"

CREATE_TABLE = """CREATE TABLE IF NOT EXISTS leaders (
    cell TEXT PRIMARY KEY, epoch BIGINT NOT NULL, holder TEXT NOT NULL, expires_us BIGINT NOT NULL
)"""
CREATE_ROW = "INSERT INTO leaders (cell, epoch, holder, expires_us) VALUES (%(cell)s, 0, '', 0) ON CONFLICT DO NOTHING"
TAKE = f"""UPDATE leaders
    SET epoch = GREATEST(epoch, %(above)s) + 1, holder = %(holder)s, expires_us = {NOW_US} + %(lease_us)s
    WHERE cell = %(cell)s AND (holder = %(holder)s OR expires_us < {NOW_US}) RETURNING epoch"""
RENEW = f"""UPDATE leaders SET expires_us = {NOW_US} + %(lease_us)s
    WHERE cell = %(cell)s AND holder = %(holder)s AND epoch = %(epoch)s RETURNING epoch"""
# Without a holder, a renewal that the server handles late does not revive it.
RELEASE = """UPDATE leaders SET expires_us = 0, holder = ''
    WHERE cell = %(cell)s AND holder = %(holder)s AND epoch = %(epoch)s RETURNING epoch"""


class PostgresLease:
    def __init__(self, url: str, cell: str, lease_s: float = LEASE_S) -> None:
        try:
            import psycopg  # here: dispatchers with another lease do not need it
        except ImportError as error:
            raise SetupError(NO_DRIVER) from error
        check_url(url)
        self.lease_s = lease_s
        self._driver = psycopg
        self._url = url
        self._values = {
            "cell": cell,
            "holder": secrets.token_hex(8),
            "lease_us": round(lease_s * 1_000_000),
        }
        self._connecting: asyncio.Task[psycopg.AsyncConnection[Any]] | None = None
        self._db: psycopg.AsyncConnection[Any] | None = None
        self._has_row = False

    async def take(self, above: int = 0) -> int | None:
        row = await self._update(TAKE, above=above)
        return int(row[0]) if row is not None else None

    async def renew(self, epoch: int) -> bool:
        return await self._update(RENEW, epoch=epoch) is not None

    async def release(self, epoch: int) -> None:
        await self._update(RELEASE, epoch=epoch)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
            if not self._connecting.cancelled() and self._connecting.exception() is None:
                self._db = self._connecting.result()
        if self._db is not None:
            await self._db.close()

    async def _update(self, sql: str, **values: int) -> Any:
        """Run one statement. Returns the row it changed, or None."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.lease_s / 3
        db = await self._connected(until)
        answering = loop.create_task(self._answer(db, sql, values))
        try:
            await asyncio.wait({answering}, timeout=until - loop.time())
        finally:
            if not answering.done():
                self._db = None
                _hang_up(db)
                answering.add_done_callback(_expect_failure)
        if not answering.done():
            raise LeaseUnavailable("PostgreSQL does not answer")
        return answering.result()

    async def _connected(self, until: float) -> psycopg.AsyncConnection[Any]:
        if self._db is not None and not self._db.closed:
            return self._db
        loop = asyncio.get_running_loop()
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())
        await asyncio.wait({self._connecting}, timeout=until - loop.time())
        if not self._connecting.done():
            raise LeaseUnavailable("PostgreSQL does not accept a connection in time")
        connecting, self._connecting = self._connecting, None
        self._has_row = False
        self._db = connecting.result()
        return self._db

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        timeout_ms = round(self.lease_s / 3 * 1000)
        try:
            return await self._driver.AsyncConnection.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_S,
                # An epoch that is given must be on the server's disk. The server, too, gives up a request in time.
                options=f"-c synchronous_commit=on -c statement_timeout={timeout_ms}",
                target_session_attrs="read-write",  # of several hosts: the one that is no standby
            )
        except self._driver.ProgrammingError:
            raise SetupError(NOT_A_URL) from None  # the driver's message has the URL, and so the password
        except self._driver.Error as error:
            raise LeaseUnavailable(str(error)) from error

    async def _answer(self, db: psycopg.AsyncConnection[Any], sql: str, values: dict[str, int]) -> Any:
        try:
            if not self._has_row:
                await self._create_row(db)
                self._has_row = True
            cursor = await db.execute(sql, {**self._values, **values})
            return await cursor.fetchone()
        except self._driver.Error as error:
            # Another host may take writes now, so any error is a reason to connect again.
            await db.close()
            raise LeaseUnavailable(str(error)) from error

    async def _create_row(self, db: psycopg.AsyncConnection[Any]) -> None:
        try:
            await db.execute(CREATE_ROW, self._values)
        except self._driver.errors.UndefinedTable:
            # Only then: creating needs a right that using the table does not.
            await db.execute(CREATE_TABLE)
            await db.execute(CREATE_ROW, self._values)


def _hang_up(db: psycopg.AsyncConnection[Any]) -> None:
    """End the connection under the driver, so that what waits for an answer fails at once.

    To cancel it would not do: the driver then asks the server to cancel the statement and waits for its answer."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(db.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _expect_failure(answering: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log it."""
    if not answering.cancelled():
        answering.exception()
