"""The base of all tables of headway.toml: unknown settings are errors, and values keep their types."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
