"""Draws the pictures of docs/explanation/express-rule.md from the results of runs/express-rule.sh.

Uses the colours of Okabe and Ito, which colour-blind readers can tell apart; lines also differ in their dashes. Labels
have fixed positions: check the picture after a change of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from headway.charts import BLUE, INK, ORANGE
from headway.core.curve import DEFAULT_MARGIN, Curve

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
GREY, PALE = "#BDBDBD", "#F2F2F2"
WIDTH = 800
Rows = list[dict[str, Any]]


@dataclass
class Words:
    x: float
    y: float
    text: str
    colour: str = INK
    align: str = "left"


@dataclass
class Panel:
    """One demand: what the fast calls needed at each second, and the light seats that there were."""

    title: str
    subtitle: str
    fast_streams: list[int]
    light_seats: list[int]
    split_seats: int


def save(chart: alt.TopLevelMixin, name: str) -> None:
    """Save as SVG for the page, and as PNG for viewers without SVG."""
    axis = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    whole = (
        chart.configure(background="white", padding=12, font="Helvetica, Arial, sans-serif")
        .configure_axis(**axis, gridColor="#E6E6E6", domainColor="#BBBBBB", tickColor="#BBBBBB")
        .configure_view(stroke=None)
        .configure_title(
            anchor="start", frame="group", color="black", fontSize=14, subtitleColor=INK, subtitleFontSize=12, offset=8
        )
    )
    whole.save(FOLDER / f"{name}.svg")
    whole.save(FOLDER / f"{name}.png")


def write(words: list[Words]) -> list[alt.Chart]:
    return [
        alt.Chart(alt.InlineData(values=[{"x": one.x, "y": one.y, "text": one.text}]))
        .mark_text(color=one.colour, align=one.align, fontSize=13, fontWeight=500)  # type: ignore[arg-type]
        .encode(x="x:Q", y="y:Q", text="text:N")
        for one in words
    ]


def demand_and_seats(panels: list[Panel], warm_up_s: float, seed: int) -> alt.TopLevelMixin:
    """The panels in two columns, with common axes. The warm-up is shaded."""
    until_s = max(len(panel.light_seats) for panel in panels)
    most = max(*(max(panel.light_seats) for panel in panels), *(panel.split_seats for panel in panels))
    time = alt.X(
        "at_s:Q",
        title=None,
        axis=alt.Axis(grid=False, values=list(range(0, until_s + 1, 60))),
        scale=alt.Scale(domain=[0, until_s], nice=False),
    )
    seats = alt.Y(
        "value:Q",
        title=None,
        axis=alt.Axis(format=",d", tickCount=4, domain=False, ticks=False),
        scale=alt.Scale(domain=[0, most]),
    )
    drawn = []
    for panel in panels:
        warm_up = alt.Chart(alt.InlineData(values=[{"from": 0, "to": warm_up_s}]))
        split = alt.Chart(alt.InlineData(values=[{"value": panel.split_seats}]))
        layers = [
            warm_up.mark_rect(color=PALE).encode(x="from:Q", x2="to:Q"),
            _over_time(panel.fast_streams).mark_area(color=GREY, interpolate="step-after").encode(time, seats),
            _over_time(panel.light_seats)
            .mark_line(color=BLUE, strokeWidth=2, interpolate="step-after")
            .encode(time, seats),
            split.mark_rule(color=ORANGE, strokeDash=[7, 4], strokeWidth=2).encode(seats),
        ]
        title = alt.TitleParams(panel.title, subtitle=panel.subtitle, subtitleColor=ORANGE)
        drawn.append(alt.layer(*layers).properties(title=title, width=WIDTH // 2 - 30, height=150))
    rows = [alt.hconcat(*drawn[place : place + 2], spacing=24) for place in range(0, len(drawn), 2)]
    words = [
        "Light seats under the rule (blue), fast streams present (grey), seats of the best static split (orange).",
        f"Seconds of virtual time, seed {seed}; the warm-up is shaded and not counted.",
    ]
    title = alt.TitleParams("Standard throughput beside the best static split, by demand", subtitle=words, offset=16)
    return alt.vconcat(*rows, spacing=18, title=title)


def _over_time(values: list[int]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=[{"at_s": at, "value": value} for at, value in enumerate(values)]))


def light_and_heavy(curve: Curve, floor_tps: float, seats: int) -> alt.TopLevelMixin:
    """The curve with the floor and the largest batch that keeps it, next to the output of the whole replica."""
    light = curve.largest_batch(floor_tps, seats)
    needed_tps, light_tps, heavy_tps = floor_tps * (1 + DEFAULT_MARGIN), curve.speed_tps(light), curve.speed_tps(seats)
    lines = alt.Chart(alt.InlineData(values=[{"floor": floor_tps, "needed": needed_tps}]))
    one_stream = [
        lines.mark_rect(color=ORANGE, opacity=0.18).encode(y="floor:Q", y2="needed:Q"),
        lines.mark_rule(color=ORANGE, strokeWidth=2).encode(y="floor:Q"),
        *_by_batch({batch: curve.speed_tps(batch) for batch in range(1, seats + 1)}, light, "tok/s of one stream"),
        *write(
            [
                Words(seats, floor_tps - 5, f"floor, {floor_tps:g} tok/s", ORANGE, "right"),
                Words(seats, needed_tps + 5, f"with the margin, {needed_tps:.1f}", ORANGE, "right"),
                Words(light + 1.5, light_tps + 14, f"{light} streams: {light_tps:.0f} tok/s each", BLUE),
                Words(seats, heavy_tps - 9, f"{seats} streams: {heavy_tps:.0f} each", INK, "right"),
                Words(light / 2, 6, "light", BLUE, "center"),
                Words((light + seats) / 2, 6, "heavy", INK, "center"),
            ]
        ),
    ]
    whole = {batch: batch * curve.speed_tps(batch) for batch in range(1, seats + 1)}
    replica = [
        *_by_batch(whole, light, "tok/s of the replica"),
        *write(
            [
                Words(light + 2, whole[light] - 70, f"light, {light} streams: {whole[light]:,.0f} tok/s", BLUE),
                Words(seats, whole[seats] * 1.06, f"heavy, {seats} streams: {whole[seats]:,.0f} tok/s", INK, "right"),
            ]
        ),
    ]
    titles = (
        (
            f"The floor decides the batch: at most {light} streams",
            f"Speed of each stream, a replica of {seats} seats",
        ),
        ("What it costs: a light replica gives fewer tokens", "Output of all streams of that replica together"),
    )
    drawn = [
        alt.layer(*layers, title=alt.TitleParams(title, subtitle=subtitle), width=WIDTH // 2 - 45, height=260)
        for layers, (title, subtitle) in zip((one_stream, replica), titles, strict=True)
    ]
    return alt.hconcat(*drawn, spacing=24)


def _by_batch(values: dict[int, float], light: int, unit: str) -> list[alt.Chart]:
    """A line by batch size with the light seats tinted and a dot at the last of them."""
    seats = max(values)
    batch = alt.X(
        "batch:Q",
        title="streams aboard (batch)",
        axis=alt.Axis(grid=False, values=[1, light, *range(32, seats + 1, 16)], titlePadding=8),
        scale=alt.Scale(domain=[0, seats], nice=False),
    )
    axis = alt.Axis(format=",d", tickCount=5, domain=False, ticks=False, minExtent=44)
    value = alt.Y(
        "value:Q", title=unit, axis=axis, scale=alt.Scale(domain=[0, 1.12 * max(values.values())], nice=False)
    )
    line = alt.Chart(alt.InlineData(values=[{"batch": b, "value": round(v, 2)} for b, v in values.items()]))
    dots = alt.Chart(alt.InlineData(values=[{"batch": light, "value": values[light]}]))
    tint = alt.Chart(alt.InlineData(values=[{"from": 0, "to": light}]))
    return [
        tint.mark_rect(color=BLUE, opacity=0.10).encode(x="from:Q", x2="to:Q"),
        line.mark_line(color=INK, strokeWidth=2).encode(batch, value),
        dots.mark_rule(color=BLUE, strokeDash=[3, 3]).encode(batch),
        dots.mark_point(color=BLUE, size=80, filled=True, opacity=1).encode(batch, value),
    ]
