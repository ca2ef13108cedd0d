"""Draws a training's loss by step, as SVG and PNG."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from headway.charts import BLUE, write_picture
from headway.errors import SetupError

PALE = "#BDBDBD"
SMOOTHED_OVER = 10  # losses in the moving average


def read_losses(path: Path) -> list[tuple[int, float]]:
    try:
        with path.open(encoding="utf-8") as file:
            return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{path} cannot be read as losses ({error}).") from error


def draw_losses(path: Path, title: str) -> Path:
    """Draw losses.csv into its own folder. Returns the path of the SVG."""
    losses = read_losses(path)
    smooth = [
        (step, sum(one for _, one in losses[max(0, n - SMOOTHED_OVER + 1) : n + 1]) / min(n + 1, SMOOTHED_OVER))
        for n, (step, _) in enumerate(losses)
    ]
    spec: dict[str, Any] = {
        "width": 720,
        "height": 300,
        "layer": [_line(losses, PALE, 1.2), _line(smooth, BLUE, 2.2)],
    }
    write_picture(spec, {"text": title}, path.parent, path.stem)
    return path.with_suffix(".svg")


def _line(points: list[tuple[int, float]], colour: str, width: float) -> dict[str, Any]:
    return {
        "data": {"values": [{"step": step, "loss": loss} for step, loss in points]},
        "mark": {"type": "line", "color": colour, "strokeWidth": width},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "steps", "axis": {"grid": False}},
            "y": {"field": "loss", "type": "quantitative", "title": "loss"},
        },
    }
