"""Settings of headway.toml that are arrays of rows, as types: a curve, and draft tokens by number of streams."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator


def _must_look_like(example: str) -> WrapValidator:
    """One message for everything that can be wrong with an array of rows."""

    def check(rows: object, validate: ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(rows)
        except ValidationError:
            raise ValueError(f"must look like {example}") from None

    return WrapValidator(check)


def _in_order(row: tuple[int, int, int]) -> tuple[int, int, int]:
    if row[0] > row[1]:
        raise ValueError("from must not be greater than to")
    return row


def _has_short(rows: list[CurveRow]) -> list[CurveRow]:
    if all(len(row) == 3 for row in rows):
        raise ValueError("a curve needs points without context")
    return rows


Count = Annotated[int, Field(ge=1)]
Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Not strict: TOML has arrays and no tuples. Their elements are strict.
CurveRow = (
    Annotated[tuple[Count, Speed], Field(strict=False)] | Annotated[tuple[Count, Speed, Count], Field(strict=False)]
)
Curve = Annotated[
    list[CurveRow],
    Field(min_length=1, max_length=64),
    AfterValidator(_has_short),
    _must_look_like(
        "[[1, 120.0], [16, 80.0], [64, 37.0], [16, 71.0, 4000]]: streams, tokens per second of each, and in points "
        "with long contexts the tokens of context of each"
    ),
]
DraftsByStreams = Annotated[
    list[
        Annotated[
            tuple[Count, Count, Annotated[int, Field(ge=0, le=16)]], Field(strict=False), AfterValidator(_in_order)
        ]
    ],
    Field(min_length=1, max_length=16),
    _must_look_like("[[1, 8, 4], [9, 64, 0]]: from streams, to streams, draft tokens"),
]
