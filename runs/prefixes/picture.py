"""Draws what runs/prefix.sh found in simulated caches, for docs/design/0017-what-is-in-the-cache.md."""

from __future__ import annotations

from pathlib import Path

from headway.charts import BLUE, GREY, write_picture

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"


def draw_found(shares: dict[str, float], fullest: dict[str, float]) -> None:
    """Write `prefixes.svg` and `prefixes.png`: by what chooses the replicas, the tokens found, divided by what one
    cache finds, and the streams of the fullest replica, divided by the mean."""
    values = [
        {"who": who, "value": round(value, 3), "text": f"{value:.2f}", "what": what}
        for what, numbers in (
            ("prompt tokens found in caches ÷ by one large cache", shares),
            ("streams of the fullest replica ÷ mean", fullest),
        )
        for who, value in numbers.items()
    ]
    y = {"field": "who", "type": "nominal", "sort": list(shares), "title": None, "axis": {"labelLimit": 260}}
    x = {"field": "value", "type": "quantitative", "title": None, "scale": {"domain": [0, 1.5]}}
    is_ours = {"test": "indexof(datum.who, 'Headway') == 0", "value": BLUE}
    spec = {
        "data": {"values": values},
        "facet": {
            "column": {"field": "what", "title": None, "sort": None, "header": {"labelFontSize": 13, "labelLimit": 400}}
        },
        "spec": {
            "width": 330,
            "height": {"step": 30},
            "layer": [
                {
                    "mark": {"type": "bar", "height": 18},
                    "encoding": {"x": x, "y": y, "color": {"condition": is_ours, "value": GREY}},
                },
                {
                    "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12},
                    "encoding": {"x": x, "y": y, "text": {"field": "text"}},
                },
            ],
        },
    }
    write_picture(spec, {"text": "Mooncake's conversations on 32 simulated replicas"}, FOLDER, "prefixes")
