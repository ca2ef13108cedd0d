"""Draws the pictures of docs/explanation/internet-scale.md from the results of runs/internet-scale.sh.

Check the pictures after a change of the run.
"""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from headway.charts import BLUE, INK, ORANGE
from headway.sim.scenario import Moment, Outcome
from runs.express.pictures import Rows, save

ALONE, SHARED = "alone: a cell of its own", "gateways that hand on, 1,000 replicas in all"


def draw_failure(moments: list[Moment], dies_at_s: float, lease_s: float) -> None:
    """Streams, held calls and open replicas around the death of a gateway."""
    near = [one for one in moments if dies_at_s - 60 <= one.at_s <= dies_at_s + 170]
    strips = []
    lines: list[tuple[str, str, Callable[[Moment], int]]] = [
        ("streams aboard", "streams", lambda one: one.aboard),
        ("calls held, waiting for a seat", "calls", lambda one: one.held),
        ("replicas with an owner", "replicas", lambda one: one.open),
    ]
    for title, unit, take in lines:
        rows: Rows = [{"at": one.at_s - dies_at_s, "n": take(one)} for one in near]
        line = (
            alt.Chart(alt.InlineData(values=rows))
            .mark_line(color=BLUE, strokeWidth=2, interpolate="step-after")
            .encode(
                x=alt.X("at:Q", title="seconds after a gateway died"),
                y=alt.Y("n:Q", title=unit, scale=alt.Scale(zero=title.startswith("calls"))),
            )
        )
        marks = alt.Chart(alt.InlineData(values=[{"at": 0.0}, {"at": lease_s}])).mark_rule(
            color=ORANGE, strokeDash=[4, 3]
        )
        strips.append((line + marks.encode(x="at:Q")).properties(width=800, height=110, title=title))
    save(alt.vconcat(*strips), "scale-failure")


def light_share(outcome: Outcome) -> float:
    """The share of open replicas that are light, in the second half of the time."""
    late = outcome.moments[len(outcome.moments) // 2 :]
    return sum(one.light for one in late) / sum(one.open for one in late)


def draw_groups(light: dict[int, tuple[float, float]]) -> None:
    """The light share of the fleet, by the number of replicas that keep their own reserve of light seats."""
    rows: Rows = [
        {"size": size, "who": who, "light": share}
        for size, pair in light.items()
        for who, share in zip((ALONE, SHARED), pair, strict=True)
    ]
    colours = alt.Scale(domain=[ALONE, SHARED], range=[ORANGE, BLUE])
    dashes = alt.Scale(domain=[ALONE, SHARED], range=[[6, 3], [1, 0]])
    legend = alt.Legend(title=None, orient="top", labelFontSize=12, labelLimit=400, labelColor=INK, symbolSize=300)
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point={"size": 45}, strokeWidth=2)
        .encode(
            x=alt.X(
                "size:Q",
                title="replicas of one gateway",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=list(light), grid=False),
            ),
            y=alt.Y("light:Q", title="replicas that are light", axis=alt.Axis(format=".0%")),
            color=alt.Color("who:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("who:N", scale=dashes, legend=legend),
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
