"""The databases of runs/ledger/upgrade.py: a fresh one for each episode, with tables and keys that version 0.1 made."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any, Protocol

import psycopg

from runs.ledger.own_postgres import OwnPostgres


class Database(Protocol):
    kind: str

    def url(self, name: str) -> str: ...
    def copy(self, template: str, name: str) -> None: ...
    def read(self, name: str, sql: str) -> list[tuple[Any, ...]]: ...
    def go_away(self, name: str) -> None: ...
    def come_back(self) -> None: ...
    def remove(self) -> None: ...


class SQLiteFiles:
    """SQLite is away while another process holds its write lock."""

    kind = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locked: sqlite3.Connection | None = None

    def url(self, name: str) -> str:
        return f"sqlite:///{self._path(name)}"

    def copy(self, template: str, name: str) -> None:
        shutil.copy(self._path(template), self._path(name))

    def read(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        db = sqlite3.connect(self._path(name), timeout=30)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def go_away(self, name: str) -> None:
        self._locked = sqlite3.connect(self._path(name), timeout=30, isolation_level=None, check_same_thread=False)
        self._locked.execute("BEGIN IMMEDIATE")

    def come_back(self) -> None:
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def remove(self) -> None:
        self.come_back()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.db"


class PostgresDatabases:
    """PostgreSQL is away while its server does not run."""

    kind = "PostgreSQL"

    def __init__(self) -> None:
        self._server = OwnPostgres()
        self._server.start()
        self._made: set[str] = set()

    def url(self, name: str) -> str:
        if name not in self._made:
            self._create(f'CREATE DATABASE "{name}"')
            self._made.add(name)
        return self._server.url.removesuffix("/postgres") + f"/{name}"

    def copy(self, template: str, name: str) -> None:
        self._create(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        self._made.add(name)

    def read(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(name)) as db:
            return db.execute(sql.encode()).fetchall()

    def go_away(self, name: str) -> None:
        self._server.kill()

    def come_back(self) -> None:
        self._server.start()

    def remove(self) -> None:
        self._server.remove()

    def _create(self, sql: str) -> None:
        with psycopg.connect(self._server.url, autocommit=True) as db:
            db.execute(sql.encode())
