"""The tables `[models.engine]` and `[[models.profiles]]` of headway.toml: how the engines of a model are started.

All engines of a model have the same weights and the same distribution. Settings that change answers are refused here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from headway.config.measured_table import MeasuredTable
from headway.config.rows import DraftsByStreams
from headway.config.table import Table

WITH_DRAFTER: Final = ("draft_model", "eagle3", "dflash")  # methods that need one; `mtp` may have one
# Settings of vLLM under which an engine answers otherwise than the model does.
CHANGES_ANSWERS: Final = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "synthetic_acceptance_rates",
    "weights",
)
ProfileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class SameAnswers(Table):
    @model_validator(mode="before")
    @classmethod
    def _refuse_other_answers(cls, settings: Any) -> Any:
        for name in CHANGES_ANSWERS if isinstance(settings, dict) else ():
            if name in settings:
                raise ValueError(
                    f"`{name}` can change answers, and all engines of a model answer alike: remove it, or serve such "
                    "engines as another model"
                )
        return settings


class SpeculationTable(SameAnswers):
    """Speculative decoding: the model itself verifies draft tokens, so its output distribution does not change."""

    method: Literal["ngram", "draft_model", "eagle3", "mtp", "dflash"] = Field(
        description="What drafts tokens: `ngram` the prompt and the answer so far, `draft_model` a smaller model with "
        "the same tokenizer, `eagle3` and `dflash` a head that was trained for the model, `mtp` the model's own layers "
        "for several tokens."
    )
    tokens: int = Field(4, ge=1, le=16, description="Draft tokens per step.")
    drafter: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Model that drafts: a directory or a name on the Hugging Face Hub. Required for `draft_model`, "
        "`eagle3` and `dflash`. For `mtp` only if the layers are not part of the model's own weights.",
    )
    by_streams: DraftsByStreams | None = Field(
        None,
        description="Draft tokens by number of concurrent streams, as `[[from, to, tokens], ...]`. 0 turns drafting "
        "off: at large batches rejected tokens cost more than accepted ones save.",
    )

    @model_validator(mode="after")
    def _drafter_where_needed(self) -> SpeculationTable:
        if self.method in WITH_DRAFTER and self.drafter is None:
            raise ValueError(f'method = "{self.method}" drafts with a model: set `drafter` to it')
        if self.method == "ngram" and self.drafter is not None:
            raise ValueError('method = "ngram" drafts without a model: remove `drafter`')
        return self


class EngineFlags(Table):
    """How an engine is started with given weights."""

    tensor_parallel: int = Field(1, ge=1, le=1024, description="Chips that the weights are split over.")
    prompt_chunk: int | None = Field(
        None,
        ge=64,
        le=1_000_000,
        description="Maximum prompt tokens per step. Lower values give other streams shorter and more frequent pauses "
        "with the same total. If not set, vLLM decides.",
    )
    speculation: SpeculationTable | None = Field(None, description="Speculative decoding. Off by default.")


class EngineTable(EngineFlags):
    """How the model's engines are started that have no profile. `headway engine` prints the commands; Headway does not
    run them."""

    weights: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="Model that vLLM loads in all profiles: a directory or a name on the Hugging Face Hub."
    )


class ProfileTable(SameAnswers, EngineFlags, MeasuredTable):
    """Another way to start engines of the same weights, and what was measured of it. A replica with this profile needs
    no curve of its own. Nothing but the weights is taken over from `[models.engine]`."""

    name: ProfileName = Field(description="Name that replicas give as their `profile`.")
