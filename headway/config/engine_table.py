"""The table [models.engine] of headway.toml: how the engines of a model are started."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from headway.config.rows import DraftsByStreams
from headway.config.table import Table


class SpeculationTable(Table):
    """Speculative decoding: the model itself verifies draft tokens, so its output distribution does not change."""

    method: Literal["ngram", "draft_model"] = Field(
        description="`ngram` drafts tokens from the prompt and the answer so far, `draft_model` with a smaller model."
    )
    tokens: int = Field(4, ge=1, le=16, description="Draft tokens per step.")
    drafter: str | None = Field(
        None, description="Model for `draft_model`: a directory or a name on the Hugging Face Hub."
    )
    by_streams: DraftsByStreams | None = Field(
        None,
        description="Draft tokens by number of concurrent streams, as `[[from, to, tokens], ...]`. 0 turns drafting "
        "off: at large batches rejected tokens cost more than accepted ones save.",
    )

    @model_validator(mode="after")
    def _drafter_where_needed(self) -> SpeculationTable:
        if (self.method == "draft_model") != (self.drafter is not None):
            raise ValueError('method = "draft_model" and `drafter` go together: set both or neither')
        return self


class EngineTable(Table):
    """How the model's engines are started. `headway engine` prints the commands; Headway does not run them."""

    weights: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="Model that vLLM loads: a directory or a name on the Hugging Face Hub."
    )
    prompt_chunk: int | None = Field(
        None,
        ge=64,
        le=1_000_000,
        description="Maximum prompt tokens per step. Lower values give other streams shorter and more frequent pauses "
        "with the same total. If not set, vLLM decides.",
    )
    speculation: SpeculationTable | None = Field(None, description="Speculative decoding. Off by default.")
