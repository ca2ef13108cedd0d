"""The names by which clients ask for models, and the rows of `/v1/models`.

A name is looked up in this order: a model or an alias of exactly this name; one of these with the suffix of a tier,
such as `my-model-fast`; the longest wildcard that matches. A name that only a wildcard matches has no suffix: other
vendors' models have names that end in `-fast`, and who asks for one does not ask for a faster tier here.

This module knows the configuration and what a key may use. It knows nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headway.api.openai import CHAT, COMPLETIONS
from headway.config import ModelTable
from headway.core.types import TIERS, Tier
from headway.core.watch import CONFIDENCE
from headway.errors import InvalidRequest
from headway.ledger.keys import Key

MAX_NAME_CHARS = 256
PLAIN_PATHS = (CHAT, COMPLETIONS)  # what servers of the kind `openai` have
ModelRow = dict[str, Any]
# What the engines report, by the name of the model whose replicas they are.
MaxModelLens = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class FoundModel:
    """What a name stands for."""

    name: str  # as the engines know it, or of an auto model
    tiers: tuple[Tier, ...]  # at which it is offered
    tier: Tier | None = None  # that the name asks for


class Models:
    """The configured models. `by_name` has the auto models too, each with the table of its full model."""

    def __init__(self, models: Sequence[ModelTable], max_model_lens: MaxModelLens = dict) -> None:
        self._max_model_lens = max_model_lens
        self.autos = {model.auto_name: model for model in models if model.auto is not None}
        self.by_name = {model.name: model for model in models} | self.autos
        self._exact = {name: name for name in self.by_name}
        aliases = [(alias, model.name) for model in models for alias in model.aliases]
        self._exact |= {alias: model for alias, model in aliases if not alias.endswith("*")}
        wildcards = [(alias.removesuffix("*"), model) for alias, model in aliases if alias.endswith("*")]
        self._wildcards = sorted(wildcards, key=lambda one: -len(one[0]))  # the longest first
        created = int(time.time())
        self._rows = {name: _row(name, table, created) for name, table in self.by_name.items()}
        for name in filter(self._is_plain, self._rows):
            self._rows[name] |= {"endpoints": list(PLAIN_PATHS), "exact_token_counts": False}
        for name, model in self.autos.items():
            if model.auto is not None:
                budget = {"share": model.auto.budget, "confidence": CONFIDENCE, "student": model.student_name}
                self._rows[name]["mistake_budget"] = budget

    def find(self, name: str) -> FoundModel | None:
        if len(name) > MAX_NAME_CHARS:
            return None
        if (model := self._exact.get(name)) is not None:
            return self._found(model)
        start, _, suffix = name.rpartition("-")
        tier = next((tier for tier in TIERS if tier == suffix), None)
        if tier is not None and (model := self._exact.get(start)) is not None:
            return self._found(model, tier)
        return next((self._found(model) for start, model in self._wildcards if name.startswith(start)), None)

    def _found(self, model: str, tier: Tier | None = None) -> FoundModel:
        return FoundModel(model, tuple(one.name for one in self.by_name[model].tiers), tier)

    def names_for(self, key: Key | None) -> list[str]:
        """The models that the key may use, without their aliases."""
        return [name for name in self.by_name if may_use(key, name)]

    def check_use(self, name: str, key: Key | None, path: str, *, embeds: bool) -> None:
        """Raises InvalidRequest if the model does not do what the endpoint is for."""
        if self._is_plain(name) and path not in PLAIN_PATHS:
            raise InvalidRequest(f"The servers of this model have {' and '.join(PLAIN_PATHS)} only.", "model")
        if embeds == self.by_name[name].embeddings:
            return
        if not embeds:
            raise InvalidRequest("This is an embedding model: send its input to `/v1/embeddings`.", "model")
        others = [other for other in self.names_for(key) if self.by_name[other].embeddings]
        advice = f"Embedding models: {', '.join(others)}." if others else "No embedding model is offered here."
        raise InvalidRequest(f"This model generates text and has no embeddings. {advice}", "model")

    def _is_plain(self, name: str) -> bool:
        table = self.by_name[name]
        return self.by_name[table.replicas_of or table.name].is_plain

    def check_images(self, name: str, key: Key | None) -> None:
        """Raises InvalidRequest if the model takes no images."""
        if self.by_name[name].images:
            return
        others = [other for other in self.names_for(key) if self.by_name[other].images]
        advice = f"Models that take images: {', '.join(others)}." if others else "No model here takes images."
        raise InvalidRequest(f"The content for this model is text only: describe the image in text. {advice}", "model")

    def rows_for(self, key: Key | None) -> list[ModelRow]:
        """The models that the key may use and their aliases, with the tiers that it may use."""
        reported = self._max_model_lens()
        return [self._named(name, model, key, reported) for name, model in self._exact.items() if may_use(key, model)]

    def row_of(self, name: str, key: Key | None) -> ModelRow | None:
        """The row of any name that a call could use."""
        found = self.find(name)
        if found is None or not may_use(key, found.name):
            return None
        row = self._named(name, found.name, key, self._max_model_lens())
        is_offered = found.tier is None or found.tier in [tier["name"] for tier in row["service_tiers"]]
        return row if is_offered else None

    def _named(self, name: str, model: str, key: Key | None, reported: Mapping[str, int]) -> ModelRow:
        """The row of a name. The context is the smallest of what the owner and the engines say."""
        row, table = self._rows[model] | {"id": name, "display_name": name}, self.by_name[model]
        said = (table.max_model_len, reported.get(table.replicas_of or table.name))
        if known := [tokens for tokens in said if tokens is not None]:
            row["max_model_len"] = min(known)
        if key is not None and key.tiers is not None:
            row["service_tiers"] = [tier for tier in row["service_tiers"] if tier["name"] in key.tiers]
        return row


def may_use(key: Key | None, model: str) -> bool:
    return key is None or key.models is None or model in key.models


def _row(name: str, model: ModelTable, created: int) -> ModelRow:
    """One entry of `/v1/models`, for both dialects: each SDK reads its own keys and ignores the other's.

    `service_tiers` lists a model's tiers, with the floor and the price multiple of each. `mistake_budget` is the share
    of calls in which an auto model may make an excess mistake. `embeddings` is there for embedding models only,
    `images` for models that take images. `root` is the model that an alias stands for. `endpoints` is there if only
    some serve the model; `overflow` if calls may be sent to somebody else's server."""
    row: ModelRow = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "headway",
        "root": name,
        "type": "model",
        "display_name": name,
        "service_tiers": [
            {"name": tier.name, "floor_tokens_per_second": tier.floor_tps, "price_multiple": tier.price_multiple}
            for tier in model.tiers
        ],
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if model.embeddings:
        row["embeddings"] = True
    if model.images:
        row["images"] = True
    if (hosted := model.hosted) is not None:
        prices = {"input": hosted.price.input, "output": hosted.price.output}
        row["overflow"] = {"served_by": hosted.host, "tiers": hosted.tiers, "price": prices}
    return row
