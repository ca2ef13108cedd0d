"""Draws the pictures of docs/explanation/internet-scale.md from the results of runs/internet-scale.sh.

Check the pictures after a change of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import altair as alt

from headway.charts import BLUE, INK, ORANGE
from headway.sim.scenario import Moment, Outcome
from runs.express.pictures import Rows, save

ALONE, SHARED = "alone", "cells that hand calls on, 200 replicas in all"
REFUSED, HANDED = "without handing on", "handed on once"
LEGEND = alt.Legend(title=None, orient="top", labelFontSize=12, labelLimit=400, labelColor=INK, symbolSize=300)


def draw_death(outcome: Outcome, died_at_s: float, takeover_s: float) -> None:
    """Calls aboard and calls held around the death of a dispatcher."""
    [takeover] = outcome.takeovers
    near = [one for one in outcome.moments if died_at_s - 2 <= one.at_s <= died_at_s + 8]
    lines: list[tuple[str, str, Callable[[Moment], int]]] = [
        ("streams that run", "calls", lambda one: one.aboard),
        ("calls that wait for a seat", "calls", lambda one: one.held),
    ]
    strips: list[Any] = []
    marks: Rows = [{"at": 0.0, "what": "it dies"}, {"at": takeover_s, "what": "its standby leads"}]
    if takeover.settled_at is not None:
        marks.append({"at": takeover.settled_at - died_at_s, "what": "all calls are reported"})
    for title, unit, take in lines:
        rows: Rows = [{"at": one.at_s - died_at_s, "n": take(one)} for one in near]
        line = (
            alt.Chart(alt.InlineData(values=rows))
            .mark_line(color=BLUE, strokeWidth=2, interpolate="step-after")
            .encode(x=alt.X("at:Q", title="seconds after the dispatcher died"), y=alt.Y("n:Q", title=unit))
        )
        rules = alt.Chart(alt.InlineData(values=marks)).mark_rule(color=ORANGE, strokeDash=[4, 3]).encode(x="at:Q")
        layers: list[Any] = [line, rules]
        if not strips:
            # The last two are close to each other.
            sides: list[tuple[Literal["left", "right"], int, Rows]] = [("right", -4, marks[:2]), ("left", 4, marks[2:])]
            for align, dx, some in sides:
                words = alt.Chart(alt.InlineData(values=some)).mark_text(align=align, dx=dx, color=INK, fontSize=12)
                layers.append(words.encode(x="at:Q", y=alt.value(100), text="what:N"))
        strips.append(alt.layer(*layers).properties(width=800, height=110, title=title))
    save(alt.vconcat(*strips), "scale-death")


def draw_rates(waits_ms: dict[float, float]) -> None:
    """The wait for a seat by the calls per second of one dispatcher."""
    rows: Rows = [{"rate": rate, "wait": max(0.1, wait)} for rate, wait in waits_ms.items()]
    line = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point={"size": 45}, strokeWidth=2, color=BLUE)
        .encode(
            x=alt.X("rate:Q", title="calls per second of one dispatcher", axis=alt.Axis(format=",.0f")),
            y=alt.Y("wait:Q", title="wait for a seat, p99, ms", scale=alt.Scale(type="log")),
        )
    )
    words = line.mark_text(dy=-12, color=INK, fontSize=12).encode(text=alt.Text("wait:Q", format=",.1f"))
    save((line + words).properties(width=640, height=230, title="where one dispatcher ends"), "scale-rates")


def draw_skews(refused: dict[float, tuple[float, float]]) -> None:
    """Refused calls by the skew of the demand, without and with handing on."""
    rows: Rows = [
        {"skew": f"+{skew:.0%}", "who": who, "refused": share}
        for skew, pair in refused.items()
        for who, share in zip((REFUSED, HANDED), pair, strict=True)
    ]
    colours = alt.Scale(domain=[REFUSED, HANDED], range=[ORANGE, BLUE])
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=40)
        .encode(
            x=alt.X(
                "skew:N", title="calls of one of five cells beyond its part", sort=None, axis=alt.Axis(labelAngle=0)
            ),
            xOffset=alt.XOffset("who:N", sort=[REFUSED, HANDED]),
            y=alt.Y("refused:Q", title="calls refused", axis=alt.Axis(format=".0%")),
            color=alt.Color("who:N", scale=colours, legend=LEGEND),
        )
    )
    words = bars.mark_text(dy=-8, fontSize=12).encode(text=alt.Text("refused:Q", format=".1%"), color=alt.value(INK))
    save((bars + words).properties(width=520, height=230, title="what handing on saves"), "scale-skew")


def light_share(outcome: Outcome) -> float:
    """The share of open replicas that are light, in the second half of the time."""
    late = outcome.moments[len(outcome.moments) // 2 :]
    return sum(one.light for one in late) / sum(one.open for one in late)


def draw_groups(alone: dict[int, float], in_cells: dict[int, float]) -> None:
    """The light share of the fleet, by the number of replicas that keep one reserve of light seats."""
    rows: Rows = [
        {"size": size, "who": who, "light": share}
        for who, light in ((ALONE, alone), (SHARED, in_cells))
        for size, share in light.items()
    ]
    colours = alt.Scale(domain=[ALONE, SHARED], range=[ORANGE, BLUE])
    dashes = alt.Scale(domain=[ALONE, SHARED], range=[[6, 3], [1, 0]])
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point={"size": 45}, strokeWidth=2)
        .encode(
            x=alt.X(
                "size:Q",
                title="replicas that keep one reserve",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=list(alone), grid=False),
            ),
            y=alt.Y("light:Q", title="replicas that are light", axis=alt.Axis(format=".0%")),
            color=alt.Color("who:N", scale=colours, legend=LEGEND),
            strokeDash=alt.StrokeDash("who:N", scale=dashes, legend=LEGEND),
        )
    )
    save(lines.properties(width=640, height=230, title="what small groups cost"), "scale-groups")


def draw_shares(multiples: dict[float, float]) -> None:
    rows: Rows = [{"share": f"{share:.0%}", "n": multiple} for share, multiple in multiples.items()]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(color=BLUE, size=46)
        .encode(
            x=alt.X("share:N", title="part of the calls that are fast", sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("n:Q", title="replicas, beside a fleet without"),
        )
    )
    words = bars.mark_text(dy=-8, color=INK, fontSize=13).encode(text=alt.Text("n:Q", format=".2f"))
    save((bars + words).properties(width=520, height=230, title="what fast calls cost the fleet"), "scale-shares")
