"""Values that fit a schema, and values that do not."""

from __future__ import annotations

from typing import Any

import pytest

from headway.auto.schema import fits

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ({"x": 1}, POINT, True),
        ({"x": 1.5, "y": 2}, POINT, True),
        ({"y": 2}, POINT, False),
        ({"x": "1"}, POINT, False),
        ({"x": 1, "z": 2}, POINT, False),  # stricter than JSON schema: an invented argument is a mistake
        ({"x": 1, "z": 2}, {**POINT, "additionalProperties": True}, True),
        ({"x": 1, "z": 2}, {**POINT, "additionalProperties": {"type": "string"}}, False),
        (True, {"type": "integer"}, False),
        (1, {"type": "boolean"}, False),
        (2.0, {"type": "integer"}, True),
        (2.5, {"type": "integer"}, False),
        (None, {"type": ["string", "null"]}, True),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}, False),
        ("b", {"enum": ["a", "b"]}, True),
        ("c", {"enum": ["a", "b"]}, False),
        ("c", {"const": "d"}, False),
        (3, {"minimum": 4}, False),
        (9, {"maximum": 4}, False),
        (1, {"anyOf": [{"type": "string"}, {"type": "integer"}]}, True),
        (1.5, {"oneOf": [{"type": "string"}, {"type": "integer"}]}, False),
        ("anything", {}, True),
        ("anything", True, True),
        ("anything", False, False),
        ("x", {"type": "tuple"}, True),  # a type that nobody knows
    ],
)
def test_fits(value: Any, schema: Any, expected: bool) -> None:
    assert fits(value, schema) is expected


def test_depth_is_bounded() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = 1
    for _ in range(100):
        schema, value = {"type": "array", "items": schema}, [value]
    assert not fits(value, schema)
