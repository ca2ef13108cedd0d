"""The tables of headway.toml: every setting with its default, its bounds and its description.

docs/reference/configuration.md is generated from these fields (`make docs`), and error messages quote their
descriptions. Rules that concern several settings are the validators below.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from headway.config.auto_table import AutoTable
from headway.config.cell_table import CellTable
from headway.config.engine_table import EngineTable, ProfileTable
from headway.config.gateway_table import GatewayTable
from headway.config.hosted_table import HostedTable
from headway.config.ledger_table import LedgerTable
from headway.config.price_table import PriceTable
from headway.config.profiles import in_profile
from headway.config.replica_table import DiscoverTable, EngineSettings, ReplicaTable
from headway.config.responses_table import ResponsesTable
from headway.config.table import Table
from headway.core.types import EXPRESS, TIERS, Tier


class TierTable(Table):
    """A speed at which a model is offered."""

    name: Tier = Field(
        description="`fast` and `ultrafast` serve the same weights with a guaranteed minimum speed, the floor. "
        "`standard` has no guarantee. `flex` is served last, on seats that no other tier needs."
    )
    floor_tps: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Minimum output tokens per second of every stream after its first token. Required for `fast` and "
        "`ultrafast`, not allowed for other tiers.",
    )
    target_tps: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="Usual output tokens per second of a stream, above its floor. Without it, a replica with streams "
        "of this tier takes others until all are near the floor; with it, only as many as leave this speed by its "
        "curve. It is not guaranteed: missing it is not refunded. Price the tier as a floor of this speed "
        "(`headway fares`). A call with more choices than this speed allows is refused.",
    )
    price_multiple: float | None = Field(
        None, gt=0, le=1000, description="Price as a multiple of standard, shown in `/v1/models`. 1 if not set."
    )
    input_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Prompt tokens per minute and key in this tier. No limit if not set."
    )
    output_tokens_per_minute: int | None = Field(
        None, ge=1, le=10**12, description="Output tokens per minute and key in this tier. No limit if not set."
    )
    max_hold_s: float = Field(30.0, ge=0, le=3600, description="Maximum time that a call waits for a seat.")
    max_held: int = Field(
        1000,
        ge=0,
        le=1_000_000,
        description="Maximum number of waiting calls. Further calls are refused immediately, but those of a key with "
        "less than an equal share of these places, so that no key takes them all.",
    )

    @model_validator(mode="after")
    def _floor_where_promised(self) -> TierTable:
        if self.name in EXPRESS and self.floor_tps is None:
            raise ValueError(f"tier {self.name!r} needs a floor: set one, for example floor_tps = 40.0")
        if self.name not in EXPRESS and self.floor_tps is not None:
            raise ValueError(f"tier {self.name!r} cannot have a floor: remove floor_tps")
        if self.target_tps is not None and (self.floor_tps is None or self.target_tps < self.floor_tps):
            raise ValueError(f"target_tps = {self.target_tps:g} needs a floor that is not above it")
        return self


class KeepPromptsTable(Table):
    """Keep the prompts of clients, to distill a student. Tell your users. Without this table nothing is kept."""

    file: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        description="File of JSON lines for `headway distill collect`, readable only by the user who runs Headway. "
        "With several relays each has its own, on its machine: `prompts.jsonl.relay-1` if this is `prompts.jsonl`."
    )
    share: float = Field(1.0, gt=0, le=1, description="Random share of the completed calls to keep.")
    max_mb: int = Field(100, ge=1, le=100_000, description="Maximum size of the file, or of each relay's.")
    keys: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="Keep only calls of these key ids. If empty, keep the calls of all keys.",
    )


class ModelTable(Table):
    """A model that clients can request by name."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=256)] = Field(
        description="Name that clients request and engines serve (`--served-model-name`)."
    )
    aliases: list[Annotated[str, StringConstraints(max_length=256, pattern=r"^([^*\s]+\*?|\*)$")]] = Field(
        default_factory=list,
        max_length=64,
        description="Other names that clients can use for the model. A name that ends in `*` is a wildcard, such as "
        '`"claude-*"`; it is used for names that are nothing else, and of several that match, the longest. Aliases '
        "without `*` are listed in `/v1/models`.",
    )
    max_model_len: int | None = Field(
        None,
        ge=1,
        le=2**30,
        description="Longest context in tokens that clients are told in `/v1/models`. If the engines report a shorter "
        "one (`--max-model-len`), or none is set here, clients are told theirs.",
    )
    embeddings: bool = Field(
        default=False,
        description="It is an embedding model (vLLM's `--runner pooling`): served on `/v1/embeddings` and no other "
        "endpoint, at the tier standard, and billed at the price of `input`.",
    )
    images: bool = Field(
        default=False,
        description="It takes images in chat, messages and responses, as data and not as URLs. Set it for engines that "
        "serve a vision model only.",
    )
    image_tokens: int = Field(
        16_384,
        ge=1,
        le=2**20,
        description="Prompt tokens that an image has at most. Until an engine has counted them, an image counts one "
        "for each 784 pixels (28 by 28), and not more than this; a key's budget must have room for this many.",
    )
    tiers: list[TierTable] = Field(
        default_factory=lambda: [TierTable(name="standard")],
        min_length=1,
        description="Speeds at which the model is offered.",
    )
    standard_share: float = Field(
        0.5, ge=0, le=1, description="Share of the replicas that always accepts standard calls."
    )
    kept_target: float = Field(
        0.995,
        ge=0.5,
        le=0.9999,
        description="Share of the streams with a floor that should keep it. A higher target lets fewer streams aboard "
        "where the speed of the engines varies.",
    )
    moves_streams: bool = Field(
        default=False,
        description="A waiting call with a floor gets a seat at once: streams without one that can go on at another "
        "replica are moved off the replica that is light soonest. They pause for a moment. Off by default: seats are "
        "kept ready ahead of demand, and streams are left where they are.",
    )
    profiles: list[ProfileTable] = Field(
        default_factory=list, max_length=64, description="Ways to start engines of the same weights."
    )
    replicas: list[ReplicaTable] = Field(default_factory=list, description="Engines that serve the model.")
    discover: DiscoverTable | None = Field(None, description="Engines that come and go, found by DNS or registered.")
    replicas_of: str | None = Field(
        None,
        description="Name of another model whose replicas serve this one too, such as the base of a LoRA adapter. The "
        "models share its seats.",
    )
    hosted: HostedTable | None = Field(
        None, description="A server of somebody else that takes calls for which there is no seat here. Off by default."
    )
    price: PriceTable | None = Field(None, description="Price of the model. Free if not set.")
    max_output_tokens: int = Field(
        4096,
        ge=1,
        le=2**20,
        description="Output limit of calls that set none and whose key has a budget: the maximum cost of a call must "
        "be known before it is served.",
    )
    chat_template_kwargs: list[Annotated[str, StringConstraints(min_length=1, max_length=64)]] = Field(
        ["enable_thinking"],
        max_length=16,
        description="Names that a request may set in `chat_template_kwargs`, each to a text, a number, true or false. "
        "The model's chat template reads them.",
    )
    engine: EngineTable | None = Field(None, description="How the engines are started, for `headway engine`.")
    keep_prompts: KeepPromptsTable | None = Field(None, description="Keep prompts for distillation. Off by default.")
    auto: AutoTable | None = Field(
        None, description="Answer with a student first, within a budget of mistakes. Off by default."
    )

    @field_validator("profiles")
    @classmethod
    def _profiles_have_names(cls, profiles: list[ProfileTable]) -> list[ProfileTable]:
        _all_different([profile.name for profile in profiles], "profile")
        return profiles

    @field_validator("replicas")
    @classmethod
    def _replicas_have_their_profiles(cls, replicas: list[ReplicaTable], info: ValidationInfo) -> list[ReplicaTable]:
        return [in_profile(one, info.data.get("profiles"), (number,)) for number, one in enumerate(replicas)]

    @field_validator("discover")
    @classmethod
    def _found_have_their_profile(cls, discover: DiscoverTable | None, info: ValidationInfo) -> DiscoverTable | None:
        return in_profile(discover, info.data.get("profiles")) if discover is not None else None

    @property
    def has_replicas(self) -> bool:
        """Of its own, listed or found."""
        return bool(self.replicas) or self.discover is not None

    @property
    def has_curve(self) -> bool:
        return any(one.curve for one in self._engines)

    @property
    def _engines(self) -> list[EngineSettings]:
        return [*self.replicas, *([self.discover] if self.discover is not None else [])]

    @property
    def is_plain(self) -> bool:
        """Whether some of its servers have OpenAI's chat and completions and nothing else, and may not count tokens."""
        return any(one.kind == "openai" for one in self._engines)

    @property
    def auto_name(self) -> str:
        return f"{self.name}-auto"

    @property
    def student_name(self) -> str:
        return (self.auto.student if self.auto is not None else None) or f"{self.name}-spark"

    @model_validator(mode="after")
    def _embeddings_are_only_embeddings(self) -> ModelTable:
        if not self.embeddings:
            return self
        if len(self.tiers) > 1:
            raise ValueError(
                f"model {self.name!r} has embeddings, which are served at the tier standard only: remove other tiers"
            )
        if self.images:
            raise ValueError(f"model {self.name!r} has embeddings, which are made of text: remove `images`")
        for setting in ("auto", "keep_prompts"):
            if getattr(self, setting) is not None:
                raise ValueError(f"model {self.name!r} has embeddings and generates no text: remove [models.{setting}]")
        return self

    @model_validator(mode="after")
    def _overflow_tiers_are_offered(self) -> ModelTable:
        if self.hosted is None:
            return self
        if self.embeddings:
            raise ValueError(f"model {self.name!r} has embeddings, which do not overflow: remove [models.hosted]")
        for tier in self.hosted.tiers:
            if tier not in [one.name for one in self.tiers]:
                raise ValueError(
                    f"[models.hosted] of {self.name!r} has the tier {tier!r}, which the model does not offer: remove it"
                )
        return self

    @model_validator(mode="after")
    def _tiers_can_be_served(self) -> ModelTable:
        names = [tier.name for tier in self.tiers]
        _all_different(names, "tier")
        if "standard" not in names:
            raise ValueError(
                f"model {self.name!r} needs the tier standard: other tiers are priced and measured against it"
            )
        if self.profiles and self.replicas_of is not None:
            raise ValueError(
                f"model {self.name!r} uses the replicas of {self.replicas_of!r}: move its profiles to that model"
            )
        if self.has_replicas == (self.replicas_of is not None):
            raise ValueError(
                f"model {self.name!r} needs either [[models.replicas]] or [models.discover], or else replicas_of"
            )
        return self


class Config(Table):
    """The configuration file of the gateway."""

    gateway: GatewayTable = Field(default_factory=GatewayTable, description="The HTTP endpoint.")
    ledger: LedgerTable | None = Field(None, description="Keys, budgets and bills. Off by default.")
    responses: ResponsesTable = Field(default_factory=ResponsesTable, description="Responses that are stored.")
    cell: CellTable | None = Field(None, description="Several machines. Off by default.")
    models: list[ModelTable] = Field(min_length=1, description="Models to serve.")

    @model_validator(mode="after")
    def _keys_beyond_loopback(self) -> Config:
        host = self.gateway.host
        if not self.gateway.key_hashes and self.ledger is None and not _is_loopback(host):
            raise ValueError(
                f"gateway.host {host!r} can be reached from other machines and there are no keys: "
                'set host = "127.0.0.1", add key_hashes, or add a [ledger]'
            )
        if not self.gateway.key_hashes and self.ledger is None and "*" in self.gateway.cors_origins:
            raise ValueError(
                'gateway.cors_origins "*" lets every web page call, and there are no keys: list the origins of your '
                "pages, add key_hashes, or add a [ledger]"
            )
        return self

    @model_validator(mode="after")
    def _lease_has_a_store(self) -> Config:
        is_needed = self.cell is not None and self.cell.lease == "ledger"
        if is_needed and (self.ledger is None or not self.ledger.store.startswith("postgres")):
            raise ValueError(
                "[cell] keeps its lease in the PostgreSQL of [ledger], and there is none: add it, or set lease to "
                '"etcd" or "file:PATH"'
            )
        return self

    @model_validator(mode="after")
    def _hosted_budgets_have_a_ledger(self) -> Config:
        hosted = [model.name for model in self.models if model.hosted is not None]
        if hosted and self.ledger is None:
            raise ValueError(f"model {hosted[0]!r} has [models.hosted], whose budget is kept in a [ledger]: add one")
        return self

    @model_validator(mode="after")
    def _students_are_here(self) -> Config:
        names = [model.name for model in self.models if not model.embeddings]
        for model in self.models:
            if model.auto is not None and (model.student_name not in names or model.student_name == model.name):
                raise ValueError(
                    f"model {model.name!r} has [models.auto] but its student {model.student_name!r} is not another "
                    "configured model that generates text: add it with `headway distill publish`, or set `student`"
                )
        return self

    @model_validator(mode="after")
    def _replicas_can_serve(self) -> Config:
        owners = {model.name: model for model in self.models if model.has_replicas}
        embeds = {model.name: model.embeddings for model in self.models}
        for model in self.models:
            owner = owners.get(model.replicas_of or model.name)
            if owner is None:
                raise ValueError(
                    f"model {model.name!r} uses the replicas of {model.replicas_of!r}, which is not a configured model "
                    "with replicas of its own"
                )
            if model.embeddings != embeds[model.replicas_of or model.name]:
                raise ValueError(
                    f"model {model.name!r} uses the replicas of {model.replicas_of!r}: set `embeddings` alike on both, "
                    "an engine has embeddings or generates text"
                )
            express = [tier.name for tier in model.tiers if tier.name in EXPRESS]
            if express and not owner.has_curve:
                raise ValueError(
                    f"model {model.name!r} offers {express[0]!r} but none of its replicas has a curve: "
                    "measure one with `headway calibrate URL` and add the lines it prints"
                )
        return self

    @model_validator(mode="after")
    def _names_and_urls_once(self) -> Config:
        autos = [model.auto_name for model in self.models if model.auto is not None]
        _all_different([*autos, *[model.name for model in self.models]], "model")
        urls = [replica.url for model in self.models for replica in model.replicas]
        _all_different([*urls, *[model.hosted.url for model in self.models if model.hosted is not None]], "replica")
        return self

    @model_validator(mode="after")
    def _aliases_stand_for_one_model(self) -> Config:
        autos = [model.auto_name for model in self.models if model.auto is not None]
        aliases = [alias for model in self.models for alias in model.aliases]
        names = [*autos, *[model.name for model in self.models], *aliases]
        _all_different(names, "model or alias")
        for alias in aliases:
            name, _, tier = alias.rpartition("-")
            if tier in TIERS and name in names:
                raise ValueError(
                    f"alias {alias!r} already stands for the model {name!r} at the tier {tier!r}: choose another alias"
                )
        return self


def _all_different(names: Sequence[str], what: str) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{what} {name!r} is configured {times} times: keep one")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
