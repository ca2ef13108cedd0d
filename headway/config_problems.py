"""What is wrong with a TOML file, said in one line with its mend: pydantic knows the fault, not what to do."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headway.errors import SetupError
from headway.toml_lines import line_of

Location = tuple[int | str, ...]
Root = TypeVar("Root", bound=BaseModel)


def checked(path: Path, text: str, root: type[Root]) -> Root:
    """What the text of this file says; SetupError with one line per problem, each with its place and its mend."""
    try:
        return root.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{path}: this is not TOML: {error}") from error
    except ValidationError as error:
        problems = [f"{path}:{line_of(text, e['loc'])}: {explain(dict(e), root)}" for e in error.errors()]
        raise SetupError("\n".join(problems)) from error


def explain(error: dict[str, Any], root: type[BaseModel]) -> str:
    """One problem and its mend: which setting, what is wrong, what would be right."""
    location: Location = error["loc"]
    setting = ".".join(str(part) for part in location if not isinstance(part, int))
    if error["type"] == "extra_forbidden":
        known = list(_table_at(location[:-1], root).model_fields)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        mend = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting `{setting}`: {mend}"
    if error["type"] == "missing":
        return f"`{setting}` is missing: {_help(location, root)}"
    what = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{setting + ': ' if setting else ''}{what}"
    return f"{setting} = {error['input']!r}: {what}. {_help(location, root)}"


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
    names = [part for part in location if isinstance(part, str)]
    field = _table_at(tuple(names[:-1]), root).model_fields.get(names[-1]) if names else None
    return field.description or "" if field else ""
