"""Writes a student into headway.toml: as the `-spark` model, as the full model's drafter, as the first rung of `-auto`.

Leaves everything else in the file as it is. Does not judge whether a student is good enough; its card does.
Invariant: the file is replaced only by a configuration that loads.
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
class Drafting:
    """Speculative decoding of the full model's engine: with a drafter, or with n-grams if `weights` is None.

    `by_streams` is in vLLM's form: (from streams, to streams, draft tokens). It is turned off if all tokens are 0.
    """

    weights: str | None
    by_streams: Sequence[tuple[int, int, int]]

    @staticmethod
    def up_to(weights: str, tokens: int, streams: int | None, seats: int = 4096) -> Drafting:
        """`tokens` draft tokens up to `streams` streams, none beyond."""
        if streams is None or streams >= seats:
            return Drafting(weights, [(1, seats, tokens)])
        return Drafting(weights, [(1, streams, tokens), (streams + 1, seats, 0)])

    @property
    def tokens(self) -> int:
        return max((number for _, _, number in self.by_streams), default=0)

    def settings(self) -> dict[str, Any]:
        """The table `speculation` of an engine or of a profile."""
        settings: dict[str, Any] = {"method": "draft_model" if self.weights else "ngram", "tokens": self.tokens}
        if self.weights:
            settings["drafter"] = self.weights
        if len(self.by_streams) > 1:
            settings["by_streams"] = [list(one) for one in self.by_streams]
        return settings


@dataclass(frozen=True, slots=True)
class FirstRung:
    """The student answers calls of the auto model first, as far as its calibration allows."""

    calibration: str
    budget: float


def best_tokens(acceptance: Sequence[float], draft_cost: float, verify_cost: float = 0.0) -> tuple[int, float]:
    """The best number of draft tokens and its gain in speed, from the acceptance of the first, second, .. draft token.

    `draft_cost` is the time of a drafter's step, `verify_cost` what each draft token adds to a step of the full model,
    both divided by the time of a step of the full model. Returns 0 tokens if no number gains anything.
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


def profile_lines(name: str, drafting: Drafting) -> str:
    """Return a [[models.profiles]] for engines with the drafter, to paste and to measure. Raises SetupError if it does
    not draft."""
    if drafting.tokens == 0:
        raise SetupError("The drafter would not gain speed: a profile with 0 draft tokens is that of plain engines.")
    profile: dict[str, Any] = {"name": name, "speculation": drafting.settings()}
    return tomlkit.dumps({"models": {"profiles": _tables([profile])}})


def publish(
    path: Path,
    model: str,
    spark: Spark | None,
    drafting: Drafting | None,
    check: Check,
    first_rung: FirstRung | None = None,
) -> list[str]:
    """Returns a description of each change. `check` loads a configuration and raises SetupError if it is not valid."""
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
    except (OSError, tomlkit.exceptions.ParseError) as error:
        raise SetupError(f"{path} cannot be read ({error}).") from error
    table = _model(document, model)
    if table is None:
        raise SetupError(f"{path} has no model {model!r}.")
    changes = []
    if spark is not None:
        changes.append(_write_spark(document, model, spark))
    if drafting is not None:
        changes.append(_write_drafting(table, model, drafting))
    if first_rung is not None:
        table["auto"] = tomlkit.item({"calibration": first_rung.calibration, "budget": first_rung.budget})
        changes.append(
            f"{model}-auto asks {model}{SPARK} first, with a budget of {first_rung.budget:.1%} excess mistakes"
        )
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


def _write_drafting(table: Any, model: str, drafting: Drafting) -> str:
    if "engine" not in table:
        raise SetupError(f"The model {model!r} has no [models.engine]: a drafter is a setting of its engine.")
    if drafting.tokens == 0:
        table["engine"].pop("speculation", None)
        return f"{model} drafts no tokens: it would not gain speed"
    table["engine"]["speculation"] = tomlkit.item(drafting.settings())
    return f"{model} drafts " + ", ".join(
        f"{number} tokens at {begin} to {end} streams" for begin, end, number in drafting.by_streams
    )


def _tables(rows: list[dict[str, Any]]) -> Any:
    tables = tomlkit.aot()
    for row in rows:
        tables.append(tomlkit.item(row))
    return tables
