"""The table `[cell]` of headway.toml: dispatchers and relays on several machines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from headway.config.table import Table

RELAY_NAME = r"[A-Za-z0-9-]{1,64}"


class CellTable(Table):
    """Relays on several machines and the dispatchers that decide for them. Only `headway dispatch` reads it; relays get
    the whole configuration from the dispatcher."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = Field(
        "headway", description="Name of the cell. Cells that keep their leases in the same store need different names."
    )
    relays: list[Annotated[str, StringConstraints(pattern=f"^{RELAY_NAME}$")]] = Field(
        min_length=1,
        max_length=1024,
        description="Names of all relays (`headway relay --name`). A dispatcher decides once more than half of them "
        "have accepted it.",
    )
    lease: Annotated[str, StringConstraints(pattern=r"^(ledger|etcd|file:.+)$")] = Field(
        "ledger",
        description="What keeps the lease of the dispatcher that leads: `ledger`, a row in the PostgreSQL of "
        "`[ledger]`; `etcd`; or `file:PATH`, if all dispatchers are on one machine.",
    )
    etcd: list[Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+$")]] = Field(
        [], max_length=16, description='Addresses of etcd, such as `"http://10.0.0.5:2379"`, for `lease = "etcd"`.'
    )

    @model_validator(mode="after")
    def _lease_is_somewhere(self) -> CellTable:
        if (self.lease == "etcd") != bool(self.etcd):
            raise ValueError('`lease = "etcd"` and the addresses in `etcd` belong together: set both or none')
        if len(set(self.relays)) < len(self.relays):
            raise ValueError("relays: each name must be there once")
        return self
