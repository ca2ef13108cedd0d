"""The table `[ledger]` of headway.toml: keys, budgets and bills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from headway.config.table import Table


class LedgerTable(Table):
    """Keys, budgets and billing entries. Without this table nothing is billed."""

    store: Annotated[str, StringConstraints(pattern=r"^(sqlite:///.+|postgres(ql)?://.+)$")] = Field(
        repr=False,  # it may have a password
        description="Database for entries and keys: `sqlite:///books.db` for one gateway, "
        "`postgresql://user@host/name` for several.",
    )
    spool: str = Field(
        "spool",
        description="Directory on a local disk, one per gateway. Entries are written here before an answer ends and "
        "stay until the store has them.",
    )
    spool_bytes: int = Field(
        2**30,
        ge=64 * 2**10,
        le=2**40,
        description="Maximum size of the spool while the store is unavailable. When it is full, new calls are refused "
        "with 503.",
    )
    key_cache_s: float = Field(
        3600.0, ge=1, le=7 * 86_400, description="How long cached keys stay valid while the store is unavailable."
    )
    secret: str | None = Field(
        None,
        description="File with the secret that signs the local copy of the keys, encrypts the calls that wait for an "
        "audit and separates tenants in the engines' prefix caches, at least 32 bytes. All gateways of an engine must "
        "share it. If not set, it is created next to the spool.",
    )

    @property
    def secret_file(self) -> Path:
        return Path(self.secret) if self.secret else Path(self.spool) / "secret"
