"""Render charts: the shared colours, and writing a Vega-Lite spec as SVG and PNG. Does not know what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import SetupError

# Okabe and Ito's palette, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
INK, GREY = "#333333", "#8A8A8A"
FONT = "Helvetica, Arial, sans-serif"
VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"


def require_pictures() -> Any:
    """Return vl-convert. Raises SetupError if it is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise SetupError("Charts need an extra: pip install 'headway[pictures]'") from None
    return vl_convert


def write_picture(spec: dict[str, Any], title: dict[str, Any], out: Path, name: str) -> None:
    """Write `name`.svg and `name`.png in `out`."""
    draw = require_pictures()
    full_spec = {
        "$schema": VEGA_LITE,
        "title": {"anchor": "start", "fontSize": 16, **title},
        "config": {"font": FONT, "view": {"stroke": None}},
        **spec,
    }
    out.mkdir(parents=True, exist_ok=True)
    svg = draw.vegalite_to_svg(full_spec)
    (out / f"{name}.svg").write_text(svg, encoding="utf-8")
    (out / f"{name}.png").write_bytes(draw.svg_to_png(svg, scale=1.5))
