"""Draws what the fleets of runs/two-profiles.sh leave for standard calls, by the share of fast demand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from headway.charts import BLUE, GREY, ORANGE, write_picture

if TYPE_CHECKING:
    from runs.two_profiles.compare import Compared, Row

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
KINDS = {"the best single profile": GREY, "two profiles that differ in the drafter only": ORANGE, "two profiles": BLUE}


def draw(cells: Mapping[float, Compared]) -> None:
    bars = []
    for share, compared in cells.items():
        for kind, row in zip(KINDS, (compared.one, compared.drafting, compared.two), strict=True):
            if row is not None:
                bars.append({"share": f"{share:.0%} fast demand", "kind": kind, **_values(row)})
    title = {
        "text": "What fast calls leave for standard calls, on the same chips",
        "subtitle": "Standard tokens per second, mean and range of the seeds; every floor is the same. Simulated.",
    }
    write_picture(_spec(bars), title, FOLDER, "two-profiles")


def _values(row: Row) -> dict[str, float]:
    return {"tps": mean(row.standard_tps), "low": min(row.standard_tps), "high": max(row.standard_tps)}


def _spec(bars: list[dict[str, Any]]) -> dict[str, Any]:
    across = {
        "y": {"field": "kind", "type": "nominal", "sort": list(KINDS), "axis": None},
        "color": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": list(KINDS), "range": list(KINDS.values())},
            "legend": {"title": None, "orient": "top", "labelFontSize": 12, "labelLimit": 400, "columns": 3},
        },
    }
    value = {"type": "quantitative", "title": "standard tok/s", "axis": {"format": ",d"}}
    layers = [
        {"mark": {"type": "bar"}, "encoding": {**across, "x": {"field": "tps", **value}}},
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"y": across["y"], "x": {"field": "low", **value}, "x2": {"field": "high"}},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12},
            "encoding": {
                "y": across["y"],
                "x": {"field": "high", **value},
                "text": {"field": "tps", "format": ",.0f"},
            },
        },
    ]
    return {
        "data": {"values": bars},
        "facet": {"row": {"field": "share", "title": None, "header": {"labelAngle": 0, "labelAlign": "left"}}},
        "spec": {"width": 620, "height": 90, "layer": layers},
    }
