"""What a client is told of a body that cannot be read: msgspec's error message, with the name of the field."""

from __future__ import annotations

from headway.errors import InvalidRequest

MISSING = "Object missing required field `"
UNKNOWN = "Object contains unknown field `"


def unreadable(error: Exception) -> InvalidRequest:
    text = str(error)
    if isinstance(error, RecursionError):
        return InvalidRequest("The request is nested too deeply.")
    if text.startswith(UNKNOWN):
        name, _, at = text.removeprefix(UNKNOWN).partition("`")
        return InvalidRequest(f"Unknown field `{name}`{_in_parent(at)}.", name)
    if text.startswith(MISSING):
        name, _, at = text.removeprefix(MISSING).partition("`")
        return InvalidRequest(f"Missing field `{name}`{_in_parent(at)}.", name)
    what, _, at = text.partition(" - at `$")
    param = at.strip("`").lstrip(".") or None
    return InvalidRequest(f"{what}{f' (in `{param}`)' if param else ''}.", param)


def _in_parent(at: str) -> str:
    path = at.partition("`$")[2].strip("`").lstrip(".")
    return f" in `{path}`" if path else ""
