from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from headway.ledger.opening import open_store
from runs.ledger.own_postgres import OwnPostgres

DROP_TABLES = "DROP TABLE IF EXISTS audits, entries, gateways, keys, responses, slices, migrations"

# Hypothesis fails an example that takes 200 ms of wall time, which on a busy machine is not the example's fault.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")


def pytest_configure() -> None:
    """Forget the width of the terminal before modules are collected.

    A rich Console keeps the COLUMNS that it is created with, and many are created when a module is imported. Workers of
    pytest-xdist always have COLUMNS=80: pytest imports readline, which exports it to child processes.
    """
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def wide_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print tables without wrapping, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Async tests run on the event loop that serves."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def postgres() -> Iterator[OwnPostgres]:
    server = OwnPostgres()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store without tables. All tests of a process share one PostgreSQL, so what others left is dropped."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/books.db"
    server: OwnPostgres = request.getfixturevalue("postgres")
    store = open_store(server.url)
    with store.transaction() as cursor:
        cursor.execute(DROP_TABLES)
    store.close()
    return server.url
