"""Writes a student into headway.toml: as the `-spark` model, as drafter of the full one, as first rung.

Knows the file's form and leaves everything else in it as it is. Whether a student is good enough is said by its card,
not here. Invariant: what is written is a configuration that loads, or the file is untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from headway.errors import SetupError

SPARK = "-spark"
Check = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Spark:
    weights: str
    url: str
    seats: int
    floor_tps: float | None = None
    curve: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class Guessing:
    """What the full model's engine guesses ahead: with a drafter, or without weights from the text itself (n-gram).

    `by_streams` is as vLLM takes it: from, to how many streams, tokens; all 0: it does not pay, and is switched off.
    """

    weights: str | None
    by_streams: Sequence[tuple[int, int, int]]

    @staticmethod
    def up_to(weights: str, tokens: int, streams: int | None, seats: int = 4096) -> Guessing:
        """The same number up to so many streams, none beyond."""
        if streams is None or streams >= seats:
            return Guessing(weights, [(1, seats, tokens)])
        return Guessing(weights, [(1, streams, tokens), (streams + 1, seats, 0)])


@dataclass(frozen=True, slots=True)
class FirstRung:
    """The student answers first for the auto model, as far as its calibration allows."""

    calibration: str
    budget: float


def best_tokens(acceptance: Sequence[float], draft_cost: float, verify_cost: float = 0.0) -> tuple[int, float]:
    """How many tokens to guess, and the gain: from the measured chance that the first, second, .. guess is taken.

    `draft_cost` is a step of the drafter as part of a step of the full model, `verify_cost` what each guess adds to the
    latter. The gain is expected tokens per time; 0 tokens where no number of guesses gains anything.
    """
    best, gain = 0, 1.0
    expected, taken = 1.0, 1.0
    for number, chance in enumerate(acceptance, start=1):
        taken *= chance
        expected += taken
        this = expected / (1 + number * (draft_cost + verify_cost))
        if this > gain:
            best, gain = number, this
    return best, gain


def publish(
    path: Path,
    model: str,
    spark: Spark | None,
    guessing: Guessing | None,
    check: Check,
    first_rung: FirstRung | None = None,
) -> list[str]:
    """Returns what was changed, in words. `check` loads a configuration and raises if it is not one."""
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
    except (OSError, tomlkit.exceptions.ParseError) as error:
        raise SetupError(f"{path} can not be read ({error}).") from error
    table = _model(document, model)
    if table is None:
        raise SetupError(f"{path} has no model {model!r}: name one that is there.")
    changes = []
    if spark is not None:
        changes.append(_write_spark(document, model, spark))
    if guessing is not None:
        changes.append(_write_guessing(table, model, guessing))
    if first_rung is not None:
        table["auto"] = tomlkit.item({"calibration": first_rung.calibration, "budget": first_rung.budget})
        changes.append(f"{model}-auto has {model}{SPARK} answer first, within {first_rung.budget:.1%} excess mistakes")
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.write_text(tomlkit.dumps(document), encoding="utf-8")
    try:
        check(unfinished)
    except SetupError as error:
        unfinished.unlink()
        raise SetupError(error.message.replace(unfinished.name, f"{path.name} (not written)")) from None
    os.replace(unfinished, path)
    return changes


def _model(document: tomlkit.TOMLDocument, name: str) -> Any:
    return next((table for table in document.get("models", []) if table.get("name") == name), None)


def _write_spark(document: tomlkit.TOMLDocument, model: str, spark: Spark) -> str:
    name = model + SPARK
    table = _model(document, name)
    if table is None:
        document["models"].append(tomlkit.item({"name": name}))
        table = _model(document, name)
    replica: dict[str, Any] = {"url": spark.url, "seats": spark.seats}
    if spark.curve:
        replica["curve"] = [[streams, round(tps, 3)] for streams, tps in spark.curve]
    tiers: list[dict[str, Any]] = [{"name": "standard"}]
    if spark.floor_tps is not None:
        tiers.append({"name": "fast", "floor_tps": spark.floor_tps})
    for setting in ("tiers", "replicas", "engine"):
        table.pop(setting, None)
    table["tiers"] = _tables(tiers)
    table["replicas"] = _tables([replica])
    table["engine"] = tomlkit.item({"weights": spark.weights})
    floor = f" with a floor of {spark.floor_tps:g} tok/s" if spark.floor_tps is not None else ""
    return f"{name} is served by {spark.url}{floor}"


def _write_guessing(table: Any, model: str, guessing: Guessing) -> str:
    if "engine" not in table:
        raise SetupError(f"The model {model!r} has no [models.engine]: its engine's profile is where a drafter goes.")
    tokens = max((number for _, _, number in guessing.by_streams), default=0)
    if tokens == 0:
        table["engine"].pop("speculation", None)
        return f"{model} guesses nothing ahead: it would not pay"
    speculation: dict[str, Any] = {"method": "draft_model" if guessing.weights else "ngram", "tokens": tokens}
    if guessing.weights:
        speculation["drafter"] = guessing.weights
    if len(guessing.by_streams) > 1:
        speculation["by_streams"] = [list(one) for one in guessing.by_streams]
    table["engine"]["speculation"] = tomlkit.item(speculation)
    return f"{model} guesses ahead: " + ", ".join(
        f"{number} tokens at {begin} to {end} streams" for begin, end, number in guessing.by_streams
    )


def _tables(rows: list[dict[str, Any]]) -> Any:
    tables = tomlkit.aot()
    for row in rows:
        tables.append(tomlkit.item(row))
    return tables
