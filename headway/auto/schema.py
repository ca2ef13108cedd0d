"""Checks a value against the simple part of JSON schema that tools use: types, required and listed values, bounds.

Ignores patterns, because clients write them and matching one can take forever, and the keywords that combine schemas,
except `anyOf` and `oneOf`, of which at least one must fit. So `fits` can accept a wrong value; the gate checks more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
MAX_DEPTH = 24


def fits(value: Any, schema: Any, depth: int = 0) -> bool:
    if not isinstance(schema, Mapping):
        return schema is not False  # `true`, or anything that is not a schema, allows every value
    if depth > MAX_DEPTH or not _is_of_type(value, schema.get("type")):
        return False
    if isinstance(listed := schema.get("enum"), list) and value not in listed:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword)
        if isinstance(choices, list) and not any(fits(value, one, depth + 1) for one in choices):
            return False
    if isinstance(value, int | float) and not isinstance(value, bool) and not _is_within(value, schema):
        return False
    if isinstance(value, dict):
        return _fits_object(value, schema, depth)
    if isinstance(value, list):
        return all(fits(one, schema.get("items", True), depth + 1) for one in value)
    return True


def _is_of_type(value: Any, kind: Any) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    known = [TYPES[one] for one in kinds if isinstance(one, str) and one in TYPES]
    if not known:
        return True
    if isinstance(value, bool):  # in Python a bool is also an int
        return (bool,) in known
    if isinstance(value, float) and value.is_integer() and (int,) in known:
        return True
    return any(isinstance(value, types) for types in known)


def _is_within(value: float, schema: Mapping[str, Any]) -> bool:
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(low, int | float) and value < low:
        return False
    return not (isinstance(high, int | float) and value > high)


def _fits_object(value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> bool:
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and any(name not in value for name in required):
        return False
    if not isinstance(properties, Mapping):
        return True
    # A name that is not in `properties` is an invented argument, unless the schema explicitly allows others.
    others = schema.get("additionalProperties", False)
    return all(fits(one, properties.get(name, others), depth + 1) for name, one in value.items())
