"""Cuts a student out of a teacher: layers.py decides which layers to keep, cut.py measures and writes the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.distill.layers import choose_layers
from headway.distill.training_env import script


@dataclass(frozen=True, slots=True)
class StudentCut:
    layers: list[int]  # indices of the teacher's layers that were kept
    params: int
    teacher_params: int


def cut_student(
    python: Path,
    teacher: Path,
    rows: Path,
    keep: int,
    out: Path,
    *,
    count: int,
    at_once: int = 1,
    template: str | None = None,
    threads: int | None = None,
    measured: Callable[[list[float]], None] = lambda _influences: None,
) -> StudentCut:
    """`measured` is called after each measurement with the influences of the remaining layers."""
    settings = {"model": str(teacher.resolve()), "rows": str(rows.resolve()), "count": count, "threads": threads}
    with script(python, "cut", settings) as running:
        said = running.lines()
        whole = next(said)

        def measure(kept: Sequence[int]) -> list[float]:
            running.send({"measure": list(kept)})
            influences: list[float] = next(said)["influences"]
            measured(influences)
            return influences

        kept = choose_layers(measure, whole["layers"], keep, at_once)
        running.send({"write": kept, "to": str(out.resolve()), "template": template})
        return StudentCut(kept, next(said)["params"], whole["params"])
