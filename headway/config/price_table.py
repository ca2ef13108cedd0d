"""The table `[models.price]` of headway.toml, and what other prices have in common with it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from headway.config.table import Table


class TokenPrices(Table):
    """Prices of tokens, in your currency."""

    input: Annotated[float, Field(ge=0, le=1_000_000)] = Field(description="Price per million prompt tokens.")
    output: Annotated[float, Field(ge=0, le=1_000_000)] = Field(description="Price per million output tokens.")
    cached_input: Annotated[float, Field(ge=0, le=1_000_000)] | None = Field(
        None,
        description="Price per million prompt tokens that the engine had in its cache; at most `input`. Without it "
        "they cost as much as others. Engines must report them: vLLM's `--enable-prompt-tokens-details`.",
    )

    @model_validator(mode="after")
    def _cached_costs_no_more(self) -> Self:
        if self.cached_input is not None and self.cached_input > self.input:
            raise ValueError(f"cached_input = {self.cached_input:g} is above input = {self.input:g}: lower it")
        return self


class PriceTable(TokenPrices):
    """Price of the standard tier, in your currency. Other tiers cost a multiple of it."""

    replica_hour: Annotated[float, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="Your cost of one replica per hour. If set, `headway bill` shows the margin."
    )
