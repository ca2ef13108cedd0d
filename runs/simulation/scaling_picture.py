"""Draws the day of runs/scaling.sh for docs/design/0013-scaling.md."""

from __future__ import annotations

from pathlib import Path

from headway.charts import BLUE, GREY, INK, ORANGE, write_picture
from headway.sim.elastic import FleetMoment

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
EVERY = 36  # moments, of which one is drawn: about three minutes


def draw_day(moments: list[FleetMoment], fixed: int, seed: int) -> None:
    """Write `scaling.svg` and `scaling.png`."""
    lines = {
        "needed": (GREY, [4, 0], [_mean(part) for part in _parts(moments)]),
        "wanted": (BLUE, [4, 0], [float(part[0].wanted) for part in _parts(moments)]),
        "takes calls": (INK, [2, 2], [float(part[0].open) for part in _parts(moments)]),
        "smallest fixed fleet": (ORANGE, [7, 4], [float(fixed) for _ in _parts(moments)]),
    }
    at = [part[0].at_s / 3600 for part in _parts(moments)]
    values = [
        {"at": hour, "replicas": round(number, 2), "what": name}
        for name, (_, _, numbers) in lines.items()
        for hour, number in zip(at, numbers, strict=True)
    ]
    names = list(lines)
    colours = {"domain": names, "range": [colour for colour, _, _ in lines.values()]}
    dashes = {"domain": names, "range": [dash for _, dash, _ in lines.values()]}
    legend = {"title": None, "orient": "top", "labelFontSize": 12, "symbolSize": 300}
    spec = {
        "width": 860,
        "height": 300,
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.8, "interpolate": "step-after"},
        "encoding": {
            "x": {"field": "at", "type": "quantitative", "title": "hour of the day", "scale": {"domain": [0, 24]}},
            "y": {"field": "replicas", "type": "quantitative", "title": "replicas"},
            "color": {"field": "what", "type": "nominal", "scale": colours, "legend": legend},
            "strokeDash": {"field": "what", "type": "nominal", "scale": dashes, "legend": legend},
        },
    }
    title = {"text": f"A fleet that follows a day with the shape of Azure's trace, seed {seed}"}
    write_picture(spec, title, FOLDER, "scaling")


def _parts(moments: list[FleetMoment]) -> list[list[FleetMoment]]:
    return [moments[first : first + EVERY] for first in range(0, len(moments), EVERY)]


def _mean(moments: list[FleetMoment]) -> float:
    return sum(one.needed for one in moments) / len(moments)
