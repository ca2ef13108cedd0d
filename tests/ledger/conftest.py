"""Stores to test with: an SQLite file, and a PostgreSQL of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.ledger.opening import open_store
from headway.ledger.store import Store
from runs.ledger.own_postgres import OwnPostgres

DROP_TABLES = "DROP TABLE IF EXISTS audits, entries, gateways, keys, responses, slices, migrations"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/books.db"
    server: OwnPostgres = request.getfixturevalue("postgres")
    store = open_store(server.url)
    with store.transaction() as cursor:
        cursor.execute(DROP_TABLES)
    store.close()
    return server.url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    store.migrate()
    yield store
    store.close()
