"""Open the store that `[ledger] store` names."""

from __future__ import annotations

from pathlib import Path

from headway.errors import SetupError
from headway.ledger.postgres import PostgresStore
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.store import Store


def open_store(url: str) -> Store:
    """Raises StoreUnavailable if the database cannot be reached."""
    if url.startswith(("postgresql://", "postgres://")):
        return PostgresStore(url)
    if url.startswith("sqlite:///"):
        return SQLiteStore(Path(url.removeprefix("sqlite:///")).expanduser())
    raise SetupError(
        f"store = {url.partition(':')[0]!r}: must look like sqlite:///books.db or postgresql://user@host/name"
    )
