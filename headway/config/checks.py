"""Read a TOML file into its tables, and report each problem with its line and a fix.

Pydantic finds the problems; this module adds where they are and what to do about them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headway.config.lines import line_of
from headway.config.tables import Config
from headway.errors import SetupError

CREDENTIALS = re.compile(r"://[^'\"\s]*@")  # of a URL

Location = tuple[int | str, ...]
Root = TypeVar("Root", bound=BaseModel)


def load(path: Path) -> Config:
    """Read and check headway.toml. Raises SetupError with one line per problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise SetupError(f"{path}: {reason}. Create the file, or choose another with --config.") from error
    return checked(path, text, Config)


def parse(text: str, source: str) -> Config:
    """Check the text of a headway.toml that comes from elsewhere. Raises SetupError with one line per problem."""
    return checked(Path(source), text, Config)


def as_text(config: Config) -> str:
    """The configuration for other processes: `from_text` reads it."""
    return config.model_dump_json()


def from_text(text: str) -> Config:
    """Raises SetupError if this version of Headway does not know such a configuration."""
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise SetupError(f"The configuration from another process cannot be read: {error}") from error


def checked(path: Path, text: str, root: type[Root]) -> Root:
    """Parse the text of a TOML file into `root`. Raises SetupError with one line per problem."""
    try:
        return root.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{path}: not valid TOML: {error}") from error
    except ValidationError as error:
        problems = [f"{path}:{line_of(text, e['loc'])}: {explain(dict(e), root)}" for e in error.errors()]
        raise SetupError("\n".join(problems)) from error


def explain(error: dict[str, Any], root: type[BaseModel]) -> str:
    """Describe one problem: which setting, what is wrong, how to fix it."""
    location: Location = error["loc"]
    setting = ".".join(str(part) for part in location if not isinstance(part, int))
    if error["type"] == "extra_forbidden":
        known = list(_table_at(location[:-1], root).model_fields)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        fix = f"did you mean `{near[0]}`?" if near else f"known settings: {', '.join(known)}"
        return f"unknown setting `{setting}`: {fix}"
    if error["type"] == "missing":
        return f"`{setting}` is missing: {_help(location, root)}"
    what = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{setting + ': ' if setting else ''}{what}"
    return f"{setting} = {_shown(error['input'], location, root)}: {what}. {_help(location, root)}"


def _table_at(location: Location, root: type[BaseModel]) -> type[BaseModel]:
    table = root
    for part in location:
        if isinstance(part, str):
            annotation: Any = table.model_fields[part].annotation
            inner = getattr(annotation, "__args__", (annotation,))[0]
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                break
            table = inner
    return table


def _help(location: Location, root: type[BaseModel]) -> str:
    field = _field(location, root)
    return field.description or "" if field else ""


def _field(location: Location, root: type[BaseModel]) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    return _table_at(tuple(names[:-1]), root).model_fields.get(names[-1]) if names else None


def _shown(value: object, location: Location, root: type[BaseModel]) -> str:
    """Return the value as it is written, without passwords."""
    field = _field(location, root)
    if field is not None and not field.repr:
        return "(not shown)"
    return CREDENTIALS.sub("://***@", repr(value))
