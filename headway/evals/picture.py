"""The two charts of a report: the time to a right answer, and how it depends on the time to fix a mistake."""

from __future__ import annotations

from typing import Any

from headway.charts import BLUE, FONT, GREEN, GREY, INK, ORANGE, PINK, VEGA_LITE, YELLOW
from headway.evals import wording
from headway.evals.verdict import Figures, KindVerdict

WIDE, HIGH, ROW = 780, 300, 30  # pixels
COLOURS = (GREY, BLUE, ORANGE, GREEN, PINK, YELLOW)
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3])
ANSWERING, FIXING = "until the answer", "fixing mistakes, on average"
LABEL_ROOM = 1.45  # width of the chart ÷ longest bar
Spec = dict[str, Any]


def bars(verdicts: list[KindVerdict]) -> Spec:
    """A bar per kind of task and target: the time until the answer plus the mean time to fix mistakes."""
    longest_s = max(one.time_to_right_s.high for verdict in verdicts for one in verdict.figures)
    unit_s, unit = (60.0, "minutes") if longest_s >= 300 else (1.0, "seconds")
    most = LABEL_ROOM * longest_s / unit_s
    legend = {"title": None, "orient": "top", "labelFontSize": 13, "labelColor": INK, "symbolType": "square"}
    legend |= {"columnPadding": 24, "labelLimit": 400}
    parts = [
        _bars_of(verdict, unit_s, most, f"{unit} to a right answer" if verdict is verdicts[-1] else None, legend)
        for verdict in verdicts
    ]
    return _whole({"vconcat": parts, "spacing": 14, "resolve": {"scale": {"color": "shared"}}})


def _bars_of(verdict: KindVerdict, unit_s: float, most: float, title: str | None, legend: Spec) -> Spec:
    parts: list[Spec] = []
    hint = "use" if verdict.recommended.is_clear else "use, for now"
    labels: dict[bool, list[Spec]] = {True: [], False: []}  # by whether the target is recommended
    for one in verdict.figures:
        whole = one.time_to_right_s
        ends = {"target": one.name, "low": whole.low / unit_s, "high": whole.high / unit_s}
        is_chosen = one.name == verdict.recommended.use
        labels[is_chosen].append(ends | {"label": _label(one) + (f"  ◀ {hint}" if is_chosen else "")})
        wait_s = min(one.answer_s.value, whole.value)
        for order, (part, value_s) in enumerate([(ANSWERING, wait_s), (FIXING, whole.value - wait_s)]):
            parts.append({"target": one.name, "part": part, "time": value_s / unit_s, "order": order})
    y: Spec = {"field": "target", "type": "nominal", "title": None, "sort": [one.name for one in verdict.figures]}
    y["axis"] = {"labelFontSize": 13, "labelColor": INK, "ticks": False, "domain": False, "labelLimit": 240}
    x: Spec = {"type": "quantitative", "title": title, "scale": {"domain": [0, most], "nice": False}}
    x["axis"] = {"gridColor": "#EEEEEE", "tickCount": 8, "domain": False}
    colour: Spec = {"field": "part", "type": "nominal", "legend": legend}
    colour["scale"] = {"domain": [ANSWERING, FIXING], "range": [BLUE, ORANGE]}
    text = {"type": "text", "align": "left", "dx": 8, "fontSize": 13, "color": INK}
    layers = [
        _layer(parts, {"type": "bar", "height": 15}, x={**x, "field": "time", "stack": "zero"}, y=y, color=colour,
               order={"field": "order"}),
        _layer(labels[True] + labels[False], {"type": "rule", "color": INK}, x={**x, "field": "low"},
               x2={"field": "high"}, y=y),
        *(_layer(rows, {**text, "fontWeight": "bold" if is_chosen else "normal"}, x={**x, "field": "high"}, y=y,
                 text={"field": "label"}) for is_chosen, rows in labels.items()),
    ]  # fmt: skip
    heading = {"text": f"{verdict.kind} ({verdict.tasks})", "anchor": "start", "fontSize": 14, "frame": "group"}
    return {"title": heading, "width": WIDE, "height": ROW * len(verdict.figures), "layer": layers}


def _label(one: Figures) -> str:
    return f"{wording.seconds(one.time_to_right_s.value)}, {one.right.value:.0%} right"


def lines(verdict: KindVerdict, fix_s: float) -> Spec:
    """The time to a right answer by the time to fix a mistake, up to beyond the points where the lines cross."""
    crossings = [
        one.versus.break_even.fix.value
        for one in verdict.figures
        if one.versus is not None and 0 < one.versus.break_even.fix.value < 10 * fix_s
    ]
    most_s = 1.3 * max([fix_s, *crossings, 1.0])
    unit, unit_s = ("minutes", 60) if most_s >= wording.MAX_SECONDS else ("seconds", 1)
    rows = []
    for one in verdict.figures:
        wrong = (one.time_to_right_s.value - one.answer_s.value) / fix_s if fix_s else 1 - one.right.value
        rows += [
            {"target": one.name, "fix": at / unit_s, "time": one.answer_s.value + at * wrong}
            for at in (most_s * step / 50 for step in range(51))
        ]
    names = [one.name for one in verdict.figures]
    legend = {"title": None, "orient": "right", "labelFontSize": 13, "symbolSize": 300, "labelColor": INK}
    by_target = {"field": "target", "type": "nominal", "legend": legend}
    colour = by_target | {"scale": {"domain": names, "range": [COLOURS[n % len(COLOURS)] for n in range(len(names))]}}
    dash = by_target | {"scale": {"domain": names, "range": [DASHES[n % len(DASHES)] for n in range(len(names))]}}
    x: Spec = {"field": "fix", "type": "quantitative", "title": f"{unit} to fix a mistake", "axis": {"grid": False}}
    x["scale"] = {"domain": [0, most_s / unit_s], "nice": False}
    y: Spec = {"field": "time", "type": "quantitative", "title": "seconds to a right answer"}
    y["axis"] = {"gridColor": "#EEEEEE"}
    here = [{"fix": fix_s / unit_s, "label": f"your setting: {wording.seconds(fix_s)}"}]
    note = {"type": "text", "align": "right", "dx": -6, "dy": 10, "baseline": "top", "color": INK, "fontSize": 12}
    layers = [
        _layer(rows, {"type": "line", "strokeWidth": 2.2}, x=x, y=y, color=colour, strokeDash=dash),
        _layer(here, {"type": "rule", "color": INK, "strokeDash": [3, 3]}, x=x),
        _layer(here, note, x=x, y={"value": 0}, text={"field": "label"}),
    ]
    return _whole({"width": WIDE, "height": HIGH, "layer": layers})


def _whole(spec: Spec) -> Spec:
    axis = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    config = {"font": FONT, "view": {"stroke": None}, "axis": axis}
    return {"$schema": VEGA_LITE, "background": "white", "padding": 10, "config": config, **spec}


def _layer(rows: list[Spec], mark: Spec, **encoding: Spec) -> Spec:
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}
