"""A student out of a teacher: cut.py measures and writes where torch is, layers.py decides what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.distill.layers import choose_layers
from headway.distill.training_env import script


@dataclass(frozen=True, slots=True)
class StudentCut:
    layers: list[int]  # of the teacher's, those kept
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
    """`measured` is told the influences of the layers that are left, each time they have been measured."""
    settings = {"model": str(teacher.resolve()), "rows": str(rows.resolve()), "count": count, "threads": threads}
    with script(python, "cut", settings) as running:
        said = running.lines()
        whole = next(said)

        def measure(kept: Sequence[int]) -> list[float]:
            running.tell({"measure": list(kept)})
            influences: list[float] = next(said)["influences"]
            measured(influences)
            return influences

        kept = choose_layers(measure, whole["layers"], keep, at_once)
        running.tell({"write": kept, "to": str(out.resolve()), "template": template})
        return StudentCut(kept, next(said)["params"], whole["params"])
