"""Chart of one run over time: streams aboard, calls held, and light replicas. Vega-Lite, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.charts import BLUE, GREEN, GREY, ORANGE, write_picture
from headway.sim.scenario import Moment

WIDE = 860


def draw(moments: list[Moment], title: str, out: Path) -> None:
    """Write `simulation.svg` and `simulation.png`."""
    streams = [("aboard", BLUE, [4, 0]), ("held, waiting for a seat", ORANGE, [4, 2])]
    replicas = [("open", GREY, [4, 0]), ("light", GREEN, [4, 2])]
    rows = {
        "aboard": [(one.at_s, one.aboard) for one in moments],
        "held, waiting for a seat": [(one.at_s, one.held) for one in moments],
        "open": [(one.at_s, one.open) for one in moments],
        "light": [(one.at_s, one.light) for one in moments],
    }
    spec = {
        "vconcat": [_strip("calls", streams, rows, 220), _strip("replicas", replicas, rows, 120)],
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}},
    }
    write_picture(spec, {"text": title}, out, "simulation")


def _strip(
    what: str, lines: list[tuple[str, str, list[int]]], rows: dict[str, list[tuple[float, int]]], height: int
) -> dict[str, Any]:
    names = [name for name, _, _ in lines]
    legend = {"title": None, "orient": "top", "direction": "horizontal", "labelFontSize": 12, "symbolSize": 300}
    values = [{"at": at / 3600, "n": number, "what": name} for name in names for at, number in rows[name]]
    colours = {"domain": names, "range": [colour for _, colour, _ in lines]}
    dashes = {"domain": names, "range": [dash for _, _, dash in lines]}
    return {
        "width": WIDE,
        "height": height,
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.8, "interpolate": "step-after"},
        "encoding": {
            "x": {"field": "at", "type": "quantitative", "title": "hours", "axis": {"grid": False}},
            "y": {"field": "n", "type": "quantitative", "title": what},
            "color": {"field": "what", "type": "nominal", "scale": colours, "legend": legend},
            "strokeDash": {"field": "what", "type": "nominal", "scale": dashes, "legend": legend},
        },
    }
