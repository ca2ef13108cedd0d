"""Report a sweep: one HTML page that needs no network, the same chart as SVG and PNG, and a table for the terminal.

Knows how results are drawn and described, not how they were measured. Charts are Vega-Lite, rendered here with the
extra `pictures`, which is loaded only when needed. Colours are Okabe and Ito's, which colour-blind readers can
distinguish; shapes and dashes differ too.
"""

from __future__ import annotations

import statistics
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from headway.bench.load import Load
from headway.bench.sweep import FrontierFit, Point, Sweep
from headway.charts import BLUE, GREEN, GREY, INK, ORANGE, require_pictures

WIDE, HALF = 860, 385  # pixels
LAB_SPEED, LAB_PRICES = 2.5, (2, 6)  # the speed-up of the labs' fast modes, and their price multiples
DOT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
APART = {"scale": dict.fromkeys(("color", "shape", "strokeDash"), "independent")}
Spec = dict[str, Any]
Rows = list[dict[str, Any]]

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 960px; margin: 2em auto; padding: 0 1em }}
svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .25rem .8rem; border-bottom: 1px solid #ddd }} th {{ font-weight: 600 }}
pre {{ background: #f4f4f4; padding: .8rem; overflow-x: auto }} .bad {{ color: #D55E00 }} small {{ color: #555 }}
</style></head><body><h1>{title}</h1><p>{summary}</p>{svg}
<h2>Points</h2>{table}{problems}
<h2>For headway.toml</h2><pre>{lines}</pre>
<p><small>{method}</small></p></body></html>
"""
METHOD = (
    "Closed loop: every stream calls again as soon as it has its answer, each time with a new prompt of about "
    "{prompt} tokens that no cache holds, for {output} output tokens. The first answer of each stream is not counted, "
    "and all counted calls were made while all streams were busy. Tokens are the server's own count. Times are "
    "recorded when the socket is read and count from when a call was due. Each point has {repeats} repeats, in "
    "alternating order; bars show their extremes. Repeats in which the client was late to read are listed and not used."
)


def describe_run(run: Load) -> str:
    calls = run.complete
    speed_tps = 1 / statistics.median(call.tpot_s for call in calls)
    first_s = statistics.median(call.ttft_s for call in calls)
    problems = "".join(f"; invalid: {why}" for why in run.problems())
    return f"{run.output_tps:,.0f} tok/s in total, {speed_tps:.1f} each, first token after {first_s:.2f} s{problems}"


HEAD = (
    "streams",
    "tok/s in total",
    "spread of valid repeats",
    "tok/s each",
    "9 in 10 reach",
    "first token p50, p99",
    "relative cost",
    "error of curve",
)


def table_rows(found: Sweep) -> list[tuple[str, ...]]:
    fit, best_tps = found.fit(), _cheapest(found).output_tps
    rows: list[tuple[str, ...]] = []
    for point, row in zip(found.points, found.rows(), strict=True):
        off = "fitted" if point.streams in fit.through else ""
        if point.streams in fit.held_out:
            off = f"{fit.held_out[point.streams]:+.1%}"
        by_run = row["output_tput_by_repeat"]
        rows.append(
            (
                str(point.streams) + ("" if row["valid"] else " (invalid)"),
                f"{point.output_tps:,.1f}",
                f"± {(max(by_run) - min(by_run)) / 2 / point.output_tps:.1%} of {row['valid_repeats']}",
                f"{point.speed_tps:,.1f}",
                f"{row['nine_in_ten_intvty']:,.1f}",
                f"{row['median_ttft']:.2f}, {row['p99_ttft']:.2f} s",
                f"{best_tps / point.output_tps:.2f}",
                off,
            )
        )
    return rows


def frontier_table(found: Sweep) -> Table:
    table = Table(*HEAD)
    for row in table_rows(found):
        table.add_row(*row)
    return table


def write_report(found: Sweep, folder: Path) -> None:
    """Write report.html, report.svg and report.png."""
    draw = require_pictures()
    folder.mkdir(parents=True, exist_ok=True)
    spec = picture(found)
    svg = draw.vegalite_to_svg(spec)
    (folder / "report.svg").write_text(svg, encoding="utf-8")
    (folder / "report.png").write_bytes(draw.vegalite_to_png(spec, scale=2))
    (folder / "report.html").write_text(page(found, svg), encoding="utf-8")


def page(found: Sweep, svg: str) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table_rows(found))
    problems = "".join(
        f'<p class="bad">{point.streams} streams, {escape(why)}</p>'
        for point in found.points
        for why in point.problems()
    )
    plan = found.plan
    return PAGE.format(
        title=f"The frontier of {escape(found.model)}",
        summary=escape(summary(found)),
        svg=svg,
        table=f"<table><tr>{head}</tr>{body}</table>",
        problems=problems,
        lines=escape(found.config_lines()),
        method=METHOD.format(prompt=plan.prompt_tokens, output=plan.output_tokens, repeats=plan.repeats),
    )


def summary(found: Sweep) -> str:
    cheap, fast = _cheapest(found), max(found.points, key=lambda point: point.speed_tps)
    speed, cost = fast.speed_tps / cheap.speed_tps, cheap.output_tps / fast.output_tps
    return (
        f"Cheapest at {cheap.streams} streams: {cheap.output_tps:,.0f} tok/s in total, {cheap.speed_tps:.1f} each. "
        f"Fastest at {fast.streams}: {fast.speed_tps:.1f} tok/s each, {speed:.1f} times as fast, "
        f"and a token costs {cost:.1f} times as much. {_describe_fit(found.fit())}"
    )


def _describe_fit(fit: FrontierFit) -> str:
    through = ", ".join(map(str, fit.through))
    if fit.mape is None:
        return f"The curve is fitted to {through} streams; no other point was measured to check it."
    return f"The curve fitted to {through} streams predicts the other points with a mean error of {fit.mape:.1%}."


def _cheapest(found: Sweep) -> Point:
    """Return the point with the highest throughput within the seats; past them calls only wait longer."""
    return max(found.within_seats(), key=lambda point: point.output_tps)


def picture(found: Sweep) -> Spec:
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "padding": 14,
        "config": {
            "font": "Helvetica, Arial, sans-serif",
            "view": {"stroke": None},
            "axis": {**text, "gridColor": "#E6E6E6", "domainColor": "#BBBBBB", "tickColor": "#BBBBBB"},
            "legend": {**text, "symbolSize": 80},
            "title": {
                "anchor": "start",
                "frame": "group",
                "fontSize": 15,
                "subtitleFontSize": 12,
                "subtitleColor": INK,
            },
        },
        "spacing": 34,
        "resolve": APART,
        "vconcat": [
            _frontier(found),
            {
                "spacing": 90,
                "bounds": "flush",
                "resolve": APART,
                "hconcat": [_first_tokens(found), _price_of_speed(found)],
            },
        ],
    }


def _frontier(found: Sweep) -> Spec:
    fit, seats = found.fit(), found.plan.seats
    points: Rows = []
    for point in reversed(found.points):  # so that the more important points are drawn on top
        speeds, totals = point.speeds_by_run(), [run.output_tps for run in point.runs]
        kind = "fitted" if point.streams in fit.through else "past the seats" if point.streams > seats else "held out"
        label = _streams(point.streams) + ("" if point.valid else " (invalid)")
        points.append(
            {"each": point.speed_tps, "all": point.output_tps, "kind": kind, "label": label}
            | {"slow": min(speeds), "quick": max(speeds), "least": min(totals), "most": max(totals)}
        )
    line = [
        {"each": fit.curve.speed_tps(batch), "all": fit.output_tps(batch, found.plan.output_tokens), "batch": batch}
        for batch in range(1, max(fit.through) + 1)
    ]
    most_each, most_all = max(point["quick"] for point in points), max(point["most"] for point in points)
    x = _axis("each", "tok/s of each stream, median", scale={"domain": [0, 1.12 * most_each], "nice": False})
    y = _axis("all", "tok/s of all streams together", scale={"domain": [0, 1.12 * most_all], "nice": False})
    x["axis"] = y["axis"] = {"format": ",~f", "tickCount": 8}
    kinds = {"field": "kind", "type": "nominal", "legend": {"title": None, "orient": "top-right", "offset": 4}}
    names = ["fitted", "held out", "past the seats"]
    colours = kinds | {"scale": {"domain": names, "range": [BLUE, ORANGE, GREY]}}
    shapes = kinds | {"scale": {"domain": names, "range": ["circle", "diamond", "square"]}}
    bar, words = {"type": "rule", "color": INK}, {"type": "text", "align": "left", "fontSize": 12, "color": INK}
    # The point past the seats is close to that of all seats: its label goes below.
    below = [point for point in points if point["kind"] == "past the seats"]
    above = [point for point in points if point["kind"] != "past the seats"]
    title = f"The frontier of {found.model}: speed of each stream and throughput of all"
    return {
        "title": {"text": title, "subtitle": _describe_fit(fit)},
        "width": WIDE,
        "height": 360,
        "layer": [
            _layer(line, {"type": "line", "color": BLUE, "strokeWidth": 2}, x=x, y=y, order={"field": "batch"}),
            _layer(points, bar, x=x, y={**y, "field": "least"}, y2={"field": "most"}),
            _layer(points, bar, x={**x, "field": "slow"}, x2={"field": "quick"}, y=y),
            _layer(points, DOT, x=x, y=y, color=colours, shape=shapes),
            _layer(above, {**words, "dx": 11, "dy": -10}, x=x, y=y, text={"field": "label"}),
            _layer(below, {**words, "dx": -9, "dy": 14, "align": "right"}, x=x, y=y, text={"field": "label"}),
        ],
    }


def _first_tokens(found: Sweep) -> Spec:
    names = {"median": "half the calls", "p90": "9 in 10", "p99": "99 in 100"}
    rows = [
        {"streams": point.streams, "share": words, "seconds": row[f"{name}_ttft"]}
        for point, row in zip(found.points, found.rows(), strict=True)
        for name, words in names.items()
    ]
    counts = [point.streams for point in found.points]
    x = _axis("streams", "streams", scale={"type": "log", "base": 2, "domain": [0.85, 1.2 * max(counts)]})
    x["axis"] = {"values": counts, "grid": False}
    y = _logarithmic("seconds", "seconds, at most", [row["seconds"] for row in rows])
    order = list(names.values())
    kinds = {"field": "share", "type": "nominal", "legend": {"title": None, "orient": "top-left", "offset": 4}}
    colours = kinds | {"scale": {"domain": order, "range": [BLUE, ORANGE, GREEN]}}
    dashes = kinds | {"scale": {"domain": order, "range": [[1, 0], [7, 4], [2, 3]]}}
    title = {"text": "Time to first token", "subtitle": "From when a call was due, by streams"}
    line = {"type": "line", "strokeWidth": 2}
    layers = [
        _layer(rows, line, x=x, y=y, color=colours, strokeDash=dashes),
        _layer(rows, {**DOT, "size": 45}, x=x, y=y, color=colours | {"legend": None}),
    ]
    return {"title": title, "width": HALF, "height": 280, "layer": layers}


def _price_of_speed(found: Sweep) -> Spec:
    cheap = _cheapest(found)
    rows: Rows = [
        {"speed": point.speed_tps / cheap.speed_tps, "cost": cheap.output_tps / point.output_tps}
        | {"label": str(point.streams)}
        for point in sorted(found.points, key=lambda point: point.speed_tps)
        if point.speed_tps >= cheap.speed_tps and point.streams <= found.plan.seats
    ]
    # The line leaves out points that are slower and not cheaper than another.
    best = [row for row in rows if not any(o["speed"] > row["speed"] and o["cost"] <= row["cost"] for o in rows)]
    labs: Rows = [{"from": 1, "speed": LAB_SPEED, "cost": cost, "label": f"labs charge {cost}x"} for cost in LAB_PRICES]
    most = max([LAB_SPEED * 1.25, *(row["speed"] for row in rows)])
    x = _axis(
        "speed", f"speed relative to {_streams(cheap.streams)}", scale={"domain": [0.75, 1.1 * most], "nice": False}
    )
    x["axis"] = {"tickCount": 6}
    y = _logarithmic("cost", "relative cost of a token", [row["cost"] for row in [*rows, *labs]])
    subtitle = f"By streams; dashed: what labs charge for up to {LAB_SPEED}x"
    words = {"type": "text", "fontSize": 12}
    over = {"align": "left", "dy": -8, "color": ORANGE}
    dashed = {"type": "rule", "color": ORANGE, "strokeDash": [6, 4], "strokeWidth": 2}
    return {
        "title": {"text": "The price of speed", "subtitle": subtitle},
        "width": HALF,
        "height": 280,
        "layer": [
            _layer(labs, dashed, x={**x, "field": "from"}, x2={"field": "speed"}, y=y),
            _layer(labs, {**words, **over}, x={**x, "field": "from"}, y=y, text={"field": "label"}),
            _layer(best, {"type": "line", "color": BLUE, "strokeWidth": 2}, x=x, y=y, order={"field": "speed"}),
            _layer(rows, {**DOT, "color": BLUE}, x=x, y=y),
            _layer(rows, {**words, "align": "right", "dx": -8, "dy": -9}, x=x, y=y, text={"field": "label"}),
        ],
    }


def _streams(count: int) -> str:
    return f"{count} stream{'' if count == 1 else 's'}"


def _axis(field: str, title: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _logarithmic(field: str, title: str, values: list[float]) -> Spec:
    """Return an axis with grid lines at 1, 2, 5, 10, ..., a little wider than the values."""
    low, high = 0.85 * min(values), 1.3 * max(values)
    lines = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axis = {"values": [line for line in lines if low <= line <= high], "format": ",~f"}
    return _axis(field, title, scale={"type": "log", "domain": [low, high], "nice": False}, axis=axis)


def _layer(rows: Rows, mark: Spec, **encoding: Spec) -> Spec:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}
