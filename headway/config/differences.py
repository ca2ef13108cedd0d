"""What differs between two configurations, and what a running gateway takes over without a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from headway.config.checks import CREDENTIALS
from headway.config.profiles import MEASURED
from headway.config.replica_table import EngineSettings
from headway.config.tables import Config, ModelTable
from headway.errors import SetupError

LIVE_GATEWAY: Final = frozenset({"key_hashes", "admin_key_hashes", "unknown_fields", "cors_origins"})
RESTARTED_MODEL: Final = frozenset({"auto", "keep_prompts"})
NAMED_BY: Final = ("name", "url")  # what tells the tables of a list apart
HIDDEN: Final = frozenset({"key_hashes", "admin_key_hashes", "secret"})


@dataclass(frozen=True, slots=True)
class Difference:
    """`before` or `after` is None if the setting or table is only in the other one."""

    setting: str
    before: str | None
    after: str | None
    needs_restart: bool

    def __str__(self) -> str:
        if self.before is None:
            what = f"{self.setting} added" + (f": {self.after}" if self.after else "")
        elif self.after is None:
            what = f"{self.setting} removed"
        else:
            what = f"{self.setting}: {self.before} -> {self.after}"
        return f"{what} (takes effect after a restart)" if self.needs_restart else what


def differences(before: Config, after: Config) -> list[Difference]:
    told_with_profile = _of_profiles(before) & _of_profiles(after)
    found = _between(before.model_dump(), after.model_dump(), ())
    return [one for one in found if one.setting not in told_with_profile]


def without_restart(before: Config, after: Config) -> Config:
    """The configuration that a gateway serves which runs with `before` and takes over what it can of `after`. Raises
    SetupError if that does not fit together."""
    kept_models = {model.name: model for model in before.models}
    for model in before.models:
        if model.auto is not None and model.name not in {one.name for one in after.models}:
            raise SetupError(f"Model {model.name!r} has [models.auto] and cannot be removed without a restart.")
    gateway = {name: value for name, value in after.gateway.model_dump().items() if name in LIVE_GATEWAY}
    served = before.model_copy(
        update={
            "gateway": before.gateway.model_copy(update=gateway),
            "models": [_without_restart(kept_models.get(model.name), model) for model in after.models],
        }
    )
    try:
        return Config.model_validate(served.model_dump())
    except ValidationError as error:
        problems = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
        raise SetupError(f"This takes effect only after a restart: {problems}") from error


def _without_restart(before: ModelTable | None, after: ModelTable) -> ModelTable:
    return after.model_copy(update={name: getattr(before, name, None) for name in RESTARTED_MODEL})


def _of_profiles(config: Config) -> set[str]:
    """The settings that engines have from their profiles. A change of a profile is one difference, not one of each
    replica."""
    found = set()
    for model in config.models:
        profiles = {profile.name: profile for profile in model.profiles}
        engines: dict[str, EngineSettings] = {f"replicas.{replica.url}": replica for replica in model.replicas}
        if model.discover is not None:
            engines["discover"] = model.discover
        for place, engine in engines.items():
            profile = profiles.get(engine.profile or "")
            same = [name for name in MEASURED if profile and getattr(engine, name) == getattr(profile, name)]
            found |= {f"models.{model.name}.{place}.{name}" for name in same}
    return found


def _between(before: Any, after: Any, place: tuple[str, ...]) -> Iterator[Difference]:
    if before == after:
        return
    old, new = _parts(before), _parts(after)
    if old is None or new is None:
        old_text, new_text = (None if one is None else _shown(one, place) for one in (before, after))
        yield Difference(".".join(place), old_text, new_text, _needs_restart(place))
        return
    for name in {**old, **new}:
        yield from _between(old.get(name), new.get(name), (*place, name))


def _parts(value: Any) -> Mapping[str, Any] | None:
    """The settings of a table, or the tables of a list by their names; None if it is neither."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for key in NAMED_BY:
            if all(key in one for one in value):
                return {str(one[key]): one for one in value}
    return None


def _shown(value: Any, place: tuple[str, ...]) -> str:
    if place[-1] in HIDDEN:
        return "(not shown)"
    if isinstance(value, dict):
        return ""
    return CREDENTIALS.sub("://***@", repr(value))


def _needs_restart(place: tuple[str, ...]) -> bool:
    if place[0] == "gateway":
        return place[1] not in LIVE_GATEWAY
    return place[0] != "models" or bool(RESTARTED_MODEL & set(place[2:3]))
