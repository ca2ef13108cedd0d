"""A store to test with, with tables: an SQLite file, or the PostgreSQL that the tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.ledger.opening import open_store
from headway.ledger.store import Store


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    store.migrate()
    yield store
    store.close()
