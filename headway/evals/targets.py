"""The endpoints that tasks are sent to: the tiers of a Headway gateway, and others that a TOML file describes.

    [[targets]]
    name = "lab-fast"
    url = "https://api.example.com"     # what comes before /v1
    model = "large-model"
    dialect = "anthropic"               # or "openai"
    speed = "fast"                      # or service_tier = "priority"
    key_env = "LAB_KEY"                 # the environment variable with the key
    input_micro = 5_000_000             # price of a million prompt tokens, in millionths of your currency
    output_micro = 25_000_000

Two targets with the same url and model have the same weights and differ only in speed.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.config.checks import checked
from headway.errors import SetupError

Dialect = Literal["openai", "anthropic"]
KEY_ENV = "HEADWAY_KEY"
MAX_TARGETS = 12
PRICE = "Price per million tokens, in millionths of your currency."
MAX_PAGE_BYTES = 1 << 22
PAGE_TIMEOUT_S = 10.0
SPARK, AUTO, STANDARD, FLEX = "spark", "auto", "standard", "flex"


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    url: str
    model: str
    dialect: Dialect = "openai"
    service_tier: str | None = None
    speed: str | None = None
    key_env: str | None = None
    input_micro: int | None = None
    output_micro: int | None = None
    temperature: float | None = None
    body: dict[str, Any] = field(default_factory=dict)  # further fields of the request
    is_headway: bool = False

    @property
    def weights(self) -> str:
        return f"{self.url} {self.model}"

    def price_micro(self, input_tokens: int, output_tokens: int) -> int | None:
        """The price, rounded to the nearest; None if the target has no prices. Cached prompt tokens cost the same."""
        if self.input_micro is None or self.output_micro is None:
            return None
        return (input_tokens * self.input_micro + output_tokens * self.output_micro + 500_000) // 1_000_000

    def as_arguments(self) -> dict[str, Any]:
        """The arguments that Inspect passes to the provider and writes into its log. They never contain a key."""
        return asdict(self)


def offered(url: str, model: str | None, names: Sequence[str], temperature: float) -> list[Target]:
    """The speeds of a gateway's model, from its `/v1/models`. All except flex if `names` is empty."""
    base = base_url(url)
    key_env = KEY_ENV if os.environ.get(KEY_ENV) else None
    listed = {str(row["id"]): row for row in _models_of(base, key_env)}
    full = _full_model(listed, model, base)
    tiers = [str(tier["name"]) for tier in listed[full].get("service_tiers") or [{"name": STANDARD}]]
    found = {
        tier: Target(tier, base, full, service_tier=tier, key_env=key_env, temperature=temperature, is_headway=True)
        for tier in sorted(tiers, key=lambda tier: (tier != STANDARD, tier))
    }
    for rung in (SPARK, AUTO):
        if f"{full}-{rung}" in listed:
            found[rung] = Target(
                rung, base, f"{full}-{rung}", key_env=key_env, temperature=temperature, is_headway=True
            )
    for name in names:
        if name not in found:
            raise SetupError(f"{full} is not offered as {name!r} at {base}. Offered: {', '.join(found)}.")
    return [target for name, target in found.items() if (name in names if names else name != FLEX)]


def _full_model(listed: Mapping[str, Any], model: str | None, base: str) -> str:
    full = [name for name in listed if not name.endswith((f"-{SPARK}", f"-{AUTO}"))]
    if model is not None and model in full:
        return model
    if model is None and len(full) == 1:
        return full[0]
    what = "serves several models" if model is None else f"has no model {model!r}"
    raise SetupError(f"{base} {what}. Name one of these with --model: {', '.join(full) or 'none'}.")


def _models_of(base: str, key_env: str | None) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {os.environ[key_env]}"} if key_env else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{base}/v1/models", headers=headers), timeout=PAGE_TIMEOUT_S
        ) as answer:
            rows = json.loads(answer.read(MAX_PAGE_BYTES))["data"]
    except urllib.error.HTTPError as error:
        fix = f" Set {KEY_ENV} to a key." if error.code in (401, 403) else ""
        raise SetupError(f"{base}/v1/models returned status {error.code}.{fix}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{base}/v1/models cannot be read ({error}). Start a gateway with `headway serve`, or set --url."
        ) from error
    return [row for row in rows if isinstance(row, dict) and "id" in row]


def base_url(url: str) -> str:
    """The URL without /v1, which the dialects add. Raises SetupError if it is not http or https."""
    if not url.startswith(("http://", "https://")):
        raise SetupError(f"{url}: must begin with http:// or https://.")
    return url.rstrip("/").removesuffix("/v1")


class _TargetTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[\w. -]{1,60}$", description="Name on the page.")
    url: str = Field(max_length=2000, description="URL of the endpoint, without /v1.")
    model: str = Field(min_length=1, max_length=256, description="Name of the model at the endpoint.")
    dialect: Dialect = Field("openai", description="API of the endpoint.")
    service_tier: str | None = None
    speed: str | None = None
    key_env: str | None = None
    input_micro: int | None = Field(None, ge=0, le=10**12, description=PRICE)
    output_micro: int | None = Field(None, ge=0, le=10**12, description=PRICE)
    temperature: float | None = Field(None, ge=0, le=2)
    body: dict[str, Any] = {}


class _TargetFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    targets: list[_TargetTable] = Field(min_length=1, max_length=MAX_TARGETS)


def read_targets(path: Path) -> list[Target]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}.") from error
    tables = checked(path, text, _TargetFile).targets
    for table in tables:
        if table.key_env is not None and not os.environ.get(table.key_env):
            raise SetupError(f"{path}: {table.name} needs its key in the variable {table.key_env}, which is not set.")
    return [Target(**{**table.model_dump(), "url": base_url(table.url)}) for table in tables]


def require_different(targets: Sequence[Target]) -> None:
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise SetupError(f"Two targets are called {name!r}: rename one of them.")
    if not 1 <= len(names) <= MAX_TARGETS:
        raise SetupError(f"{len(names)} targets: there must be 1 to {MAX_TARGETS}.")
