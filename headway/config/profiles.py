"""Gives engines what their profile has: a replica of a known profile has a curve before it was measured itself."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from headway.config.engine_table import ProfileName, ProfileTable
from headway.config.measured_table import MeasuredTable
from headway.config.replica_table import EngineSettings
from headway.errors import SetupError

NAME: Final = TypeAdapter(ProfileName)
MEASURED: Final = tuple(MeasuredTable.model_fields)
Settings = TypeVar("Settings", bound=EngineSettings)


def valid_name(name: str | None) -> str | None:
    """Raises SetupError if no profile can have this name."""
    try:
        return None if name is None else NAME.validate_python(name)
    except ValidationError:
        raise SetupError(
            f"--profile {name}: a name has up to 64 letters, digits, dots, hyphens and underscores."
        ) from None


def in_profile(
    engine: Settings, profiles: Sequence[ProfileTable] | None, place: tuple[int | str, ...] = ()
) -> Settings:
    """The engine with the settings of its profile, where it has none of its own. `profiles` is None if they are not
    valid. Raises ValidationError, for `place`, if there is no such profile."""
    if engine.profile is None or profiles is None:
        return engine
    profile = next((one for one in profiles if one.name == engine.profile), None)
    if profile is None:
        raise _unknown(engine.profile, [one.name for one in profiles], place)
    return engine.model_copy(
        update={name: getattr(profile, name) for name in MEASURED if name not in engine.model_fields_set}
    )


def _unknown(name: str, known: list[str], place: tuple[int | str, ...]) -> ValidationError:
    near = difflib.get_close_matches(name, known, n=1)
    fix = (
        f"did you mean {near[0]!r}?"
        if near
        else f"known profiles: {', '.join(known)}"
        if known
        else ("add it as [[models.profiles]], or remove `profile`")
    )
    error = PydanticCustomError("value_error", f"{name!r} is no profile of the model: {fix}")
    found = InitErrorDetails(type=error, loc=(*place, "profile"), input=name)
    return ValidationError.from_exception_data("profile", [found])
