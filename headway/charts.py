"""Pictures: their colours, and a Vega-Lite description written as SVG and PNG. What is drawn is not known here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import SetupError

# Okabe and Ito: told apart by everyone.
BLUE, ORANGE, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
INK, GREY = "#333333", "#8A8A8A"
FONT = "Helvetica, Arial, sans-serif"
VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"


def require_pictures() -> Any:
    """vl-convert, or the words that say how to get it."""
    try:
        import vl_convert
    except ImportError:
        raise SetupError("Pictures need what draws them: pip install 'headway[pictures]'") from None
    return vl_convert


def write_picture(spec: dict[str, Any], title: dict[str, Any], out: Path, name: str) -> None:
    """As `name`.svg and .png in the folder."""
    draw = require_pictures()
    whole = {
        "$schema": VEGA_LITE,
        "title": {"anchor": "start", "fontSize": 16, **title},
        "config": {"font": FONT, "view": {"stroke": None}},
        **spec,
    }
    out.mkdir(parents=True, exist_ok=True)
    svg = draw.vegalite_to_svg(whole)
    (out / f"{name}.svg").write_text(svg, encoding="utf-8")
    (out / f"{name}.png").write_bytes(draw.svg_to_png(svg, scale=1.5))
