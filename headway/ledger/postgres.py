"""The store on PostgreSQL, for several gateways. Uses psycopg."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headway.errors import SetupError
from headway.ledger.store import Cursor, Store, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    import psycopg

CONNECT_S = 5
# The spool deletes what was committed, so a commit must be on the server's disk.
OPTIONS = "-c statement_timeout=20000 -c lock_timeout=10000 -c synchronous_commit=on"
NO_DRIVER = "PostgreSQL needs its driver: pip install 'headway[postgres]'"
NOT_A_URL = (
    "The `store` in [ledger] is not a valid PostgreSQL URL. It looks like postgresql://user:password@host/name; write "
    "special characters in the password as in `%40` for `@`."
)


def check_url(url: str) -> None:
    if url.partition("://")[2].partition("/")[0].count("@") > 1:
        raise SetupError(NOT_A_URL)  # the driver would take a part of the password for the host, and show it


class PostgresStore(Store):
    def __init__(self, url: str) -> None:
        try:
            import psycopg  # here: it would make gateways that do not need it start a fifth slower
        except ImportError as error:
            raise SetupError(NO_DRIVER) from error
        check_url(url)
        self._error: type[psycopg.Error] = psycopg.Error
        self._refusals = (psycopg.DataError, psycopg.IntegrityError)
        try:
            self._db = psycopg.connect(
                url,
                connect_timeout=CONNECT_S,
                options=OPTIONS,
                target_session_attrs="read-write",  # of several hosts: the one that is no standby
                # Detect a server that vanished without closing the connection, as in a power loss.
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=15_000,
            )
        except psycopg.ProgrammingError:
            raise SetupError(NOT_A_URL) from None  # the driver's message has the URL, and so the password
        except psycopg.Error as error:
            raise StoreUnavailable(str(error)) from error

    @contextmanager
    def transaction(self, *, lock: str | None = None) -> Iterator[Cursor]:
        try:
            with self._db.transaction(), self._db.cursor() as cursor:
                if lock is not None:
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(lock.encode()),))
                yield _QuestionMarks(cursor)
        except self._refusals as error:
            raise StoreRefused(str(error)) from error
        except self._error as error:
            raise StoreUnavailable(str(error)) from error

    def rows(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        with self.transaction(), self._db.cursor(name="rows") as cursor:
            yield from cursor.execute(_percent_signs(sql), values)

    def now_us(self) -> int:
        with self.transaction() as cursor:
            cursor.execute("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)")
            return int(cursor.fetchone()[0])

    def close(self) -> None:
        self._db.close()


class _QuestionMarks:
    """A cursor for statements with `?` placeholders, as SQLite has them; psycopg uses `%s`."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor
        self.fetchone = cursor.fetchone
        self.fetchall = cursor.fetchall

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> None:
        self._cursor.execute(_percent_signs(sql), values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> None:
        self._cursor.executemany(_percent_signs(sql), rows)


def _percent_signs(sql: str) -> str:
    return sql.replace("?", "%s")
