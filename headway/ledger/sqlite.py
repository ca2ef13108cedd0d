"""The store on SQLite in WAL mode, for one machine. Several processes on it may share the file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headway.ledger.entries import now_us
from headway.ledger.store import Cursor, Store, StoreRefused, StoreUnavailable

BUSY_S = 10.0


class SQLiteStore(Store):
    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _keep_private(path)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # the spool deletes what was committed
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(str(error)) from error

    @contextmanager
    def transaction(self, *, lock: str | None = None) -> Iterator[Cursor]:
        """SQLite has one write lock per file, so the name of the lock does not matter."""
        try:
            with self._db:  # commits, or rolls back on an error
                cursor = self._db.cursor()
                cursor.execute("BEGIN IMMEDIATE" if lock else "BEGIN")
                yield cursor
        except (sqlite3.DataError, sqlite3.IntegrityError) as error:
            raise StoreRefused(str(error)) from error
        except sqlite3.Error as error:
            raise StoreUnavailable(str(error)) from error

    def rows(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        with self.transaction():
            yield from self._db.execute(sql, values)

    def now_us(self) -> int:
        return now_us()  # all who share the file are on one machine

    def close(self) -> None:
        self._db.close()


def _keep_private(path: Path) -> None:
    """Create the database so that only its owner can read it; SQLite gives its other files the same mode."""
    # A file that exists is not opened: to close it again would drop the locks of every other connection that this
    # process has to it. Then another process that closes the database believes to be the last one, and deletes the
    # journal that this one goes on writing to.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        with suppress(FileNotFoundError, PermissionError):  # it may belong to another user
            file.chmod(0o600)
