"""The table `[models.hosted]` of headway.toml: a server of somebody else, for calls that find no seat here."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator

from headway.config.price_table import TokenPrices
from headway.config.table import Table
from headway.config.urls import http_url


class HostedTable(Table):
    """A server of somebody else with OpenAI's API. Calls to `/v1/chat/completions` and `/v1/completions` that find no
    seat here are sent to it, with their prompts. Their answers have the header `headway-served-by`, and are billed at
    its price. It keeps no floor."""

    url: str = Field(description="Base URL without `/v1`, such as `https://api.example.com/openai`.")
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = Field(
        None, description="Name of the model there, if it is another one."
    )
    key_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] = Field(
        description="Environment variable that has the key of the server."
    )
    tiers: list[Literal["standard", "flex"]] = Field(
        ["standard"], min_length=1, max_length=2, description="Tiers whose calls may go there. None with a floor may."
    )
    after_s: float = Field(
        2.0,
        ge=0,
        le=3600,
        description="How long a call waits for a seat here first. One that would be refused for lack of seats goes "
        "there at once.",
    )
    seats: int = Field(16, ge=1, le=4096, description="Maximum number of concurrent streams there.")
    budget_day: float = Field(
        gt=0,
        le=1e9,
        description="What calls may cost there on a day (UTC), all gateways together. A call that may cost more than "
        "what is left is not sent there.",
    )
    max_output_tokens: int = Field(
        4096, ge=1, le=2**20, description="Output limit there of calls that set none: what they may cost must be known."
    )
    price: TokenPrices = Field(description="Price of the server, and of the calls that it serves.")

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return http_url(url)

    @property
    def host(self) -> str:
        """Who serves, as answers name it."""
        return urlsplit(self.url).hostname or ""
