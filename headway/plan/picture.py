"""Draw the frontier: the cost of a million tokens at each speed of a stream, with the error band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.charts import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, write_picture
from headway.plan.answers import Band, PricedFloor

COLOURS = (BLUE, ORANGE, GREEN, PINK, GREY, YELLOW)
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3])
WIDE, HIGH = 760, 380


def frontier(offers: list[PricedFloor]) -> list[PricedFloor]:
    """Return the offers that no other beats in both speed and cost, slowest first."""
    best: list[PricedFloor] = []
    for offer in sorted(offers, key=lambda one: -one.stream_tps):
        if not best or offer.cost_s < best[-1].cost_s:
            best.append(offer)
    return best[::-1]


def draw(kinds: list[tuple[str, list[PricedFloor], float, Band]], title: str, out: Path) -> None:
    """Write `plan.svg` and `plan.png`. Each kind is a name, its offers, the hourly price of a chip and its band."""
    rows = []
    for name, offers, price_hour, band in kinds:
        off = band.nine_in_ten or 0.0
        for one in frontier(offers):
            row = {"kind": name, "tps": one.stream_tps, "cost": one.per_mtok(price_hour)}
            # If steps are slower by the band, both speed and hourly output are lower by it.
            rows.append(row | {"slow": one.stream_tps * (1 - off), "fast": one.stream_tps * (1 + off)})
    words = {"text": title, "subtitle": "shaded: range of nine in ten predictions"}
    write_picture(_spec(rows, [name for name, *_ in kinds]), words, out, "plan")


def _spec(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    legend = {
        "title": None,
        "orient": "top",
        "labelFontSize": 12,
        "labelLimit": 400,
        "symbolSize": 300,
        "symbolOpacity": 1,
    }
    colour = {
        "field": "kind",
        "type": "nominal",
        "legend": legend,
        "scale": {"domain": names, "range": COLOURS[: len(names)]},
    }
    dash = {
        "field": "kind",
        "type": "nominal",
        "legend": legend,
        "scale": {"domain": names, "range": DASHES[: len(names)]},
    }
    cost = {
        "field": "cost",
        "type": "quantitative",
        "title": "$ per million tokens",
        "scale": {"type": "log", "nice": False},
    }
    speed = {"type": "quantitative", "title": "tok/s of one stream", "axis": {"grid": False}}
    band = {
        "mark": {"type": "area", "orient": "horizontal", "opacity": 0.12},
        "encoding": {"x": {"field": "slow", **speed}, "x2": {"field": "fast"}, "y": cost, "color": colour},
    }
    line = {
        "mark": {"type": "line", "strokeWidth": 2.2},
        "encoding": {"x": {"field": "tps", **speed}, "y": cost, "color": colour, "strokeDash": dash},
    }
    return {
        "width": WIDE,
        "height": HIGH,
        "data": {"values": rows},
        "layer": [band, line],
    }
