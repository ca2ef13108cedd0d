"""The report of `headway eval`: one HTML page with a chart, and which target to use for each kind of task and why.

The page needs no network. Presents what verdict.py has decided.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import isinf
from pathlib import Path
from typing import Any

from rich.table import Table

from headway.charts import require_pictures
from headway.evals import picture, wording
from headway.evals.expected import MISTAKES, NO_ANSWER
from headway.evals.inspect_run import MOST_ROUNDS
from headway.evals.verdict import DRAWS, Figures, KindVerdict, Run

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 Helvetica, Arial, sans-serif; color: #222; max-width: 980px; margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.7em; margin-bottom: .1em }} h2 {{ margin-top: 2em }} svg {{ max-width: 100%; height: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid #ddd }}
th {{ font-weight: 600 }} td.use {{ font-weight: 700 }} td.use, td.kind {{ white-space: nowrap }}
td.n {{ text-align: right }}
.bad {{ color: #D55E00 }} small, .sub {{ color: #555 }} summary {{ cursor: pointer; padding: .4rem 0 }}
</style></head><body><h1>{headline}</h1><p class="sub">{about}</p>{bars}
<h2>What to use, and why</h2>{advice}
<h2>How long may a fix take?</h2><p>{fix_text}</p>{lines}
<h2>The numbers</h2>{numbers}
<h2>The mistakes</h2>{mistakes}{problems}
<p><small>{method}</small></p></body></html>
"""
NUMBERS = (
    "", "right", "time to answer", "time to a right answer", "cost of 1,000 right", "saved per task", "more mistakes",
    "p (equally right)", "ahead at fix times",
)  # fmt: skip
IN_TERMINAL = 6  # columns shown in the terminal


@dataclass(frozen=True, slots=True)
class AskedTasks:
    """The settings of the evaluation that the page shows."""

    tasks: str
    baseline: str
    fix_s: float
    at_once: int
    max_tokens: int


def result_table(verdict: KindVerdict) -> Table:
    """The table for the terminal, with fewer columns than the page."""
    table = Table(*NUMBERS[:IN_TERMINAL], title=f"{verdict.kind} ({verdict.tasks})", title_justify="left")
    for one in verdict.figures:
        table.add_row(*_cells(one)[:IN_TERMINAL])
    return table


def write_page(asked: AskedTasks, runs: Sequence[Run], verdicts: list[KindVerdict], folder: Path) -> Path:
    """Write report.html, its first chart as report.svg and .png, and all results as results.json."""
    draw = require_pictures()
    folder.mkdir(parents=True, exist_ok=True)
    bars = draw.vegalite_to_svg(picture.bars(verdicts))
    lines = draw.vegalite_to_svg(picture.lines(verdicts[0], asked.fix_s))
    (folder / "report.svg").write_text(bars, encoding="utf-8")
    (folder / "report.png").write_bytes(draw.svg_to_png(bars, scale=1.5))
    (folder / "results.json").write_text(json.dumps(_results(asked, runs, verdicts), indent=1), encoding="utf-8")
    page = folder / "report.html"
    page.write_text(page_of(asked, runs, verdicts, bars, lines), encoding="utf-8")
    return page


def page_of(asked: AskedTasks, runs: Sequence[Run], verdicts: list[KindVerdict], bars: str, lines: str) -> str:
    return PAGE.format(
        title=f"When to use which: {escape(asked.tasks)}",
        headline=escape(wording.headline(verdicts, asked.baseline)),
        about=escape(_about(asked, verdicts)),
        bars=bars,
        advice=_advice(verdicts, asked.baseline),
        fix_text=escape(_fix_text(verdicts[0], asked)),
        lines=lines,
        numbers=_table(NUMBERS, map(_cells, verdicts[0].figures)) + "".join(_numbers(one) for one in verdicts[1:]),
        mistakes=_mistakes(verdicts[0]),
        problems=_problems(runs),
        method=escape(_method(asked, verdicts[0])),
    )


def _about(asked: AskedTasks, verdicts: list[KindVerdict]) -> str:
    fix = wording.seconds(asked.fix_s)
    return (
        f"{verdicts[0].tasks} tasks of {asked.tasks}, each sent to {len(verdicts[0].figures)} targets. The chart "
        f"shows the time to a right answer if finding and fixing a wrong one takes {fix}. Shorter is better. "
        "Thin lines are 95 % intervals."
    )


def _advice(verdicts: list[KindVerdict], baseline: str) -> str:
    rows = [
        f'<tr><td class="kind">{escape(one.kind)}</td><td class="n">{one.tasks}</td>'
        f'<td class="use">{escape(wording.use_of(one))}</td>'
        f"<td>{escape(wording.reason(one, baseline))}</td></tr>"
        for one in verdicts
    ]
    return f"<table><tr><th>kind of task</th><th>tasks</th><th>use</th><th>why</th></tr>{''.join(rows)}</table>"


def _fix_text(verdict: KindVerdict, asked: AskedTasks) -> str:
    said = [
        f"{one.name} is ahead of {asked.baseline} if a fix takes {wording.break_even(one.versus.break_even)}"
        for one in verdict.figures
        if one.versus is not None and one.versus.break_even.wins in ("below", "above")
    ]
    said += [
        f"{one.name} is {'ahead of' if one.versus.break_even.wins == 'always' else 'behind'} {asked.baseline} however "
        f"long a fix takes"
        for one in verdict.figures
        if one.versus is not None and one.versus.break_even.wins in ("always", "never")
    ]
    return "; ".join(said) + "." if said else "There is only one target."


def _numbers(verdict: KindVerdict) -> str:
    table = _table(NUMBERS, map(_cells, verdict.figures))
    return f"<details><summary>{escape(verdict.kind)} ({verdict.tasks})</summary>{table}</details>"


def _cells(one: Figures) -> tuple[str, ...]:
    cells = (
        one.name + ("" if one.is_proven else "*"),
        wording.share(one.right),
        wording.seconds(one.answer_s.value),
        f"{wording.seconds(one.time_to_right_s.value)} ({wording.between(one.time_to_right_s)})",
        wording.cost(one.cost_per_right_micro),
    )
    if one.versus is None:
        return (*cells, "", "", "", "")
    excess = one.versus.excess
    return (
        *cells,
        f"{wording.seconds(one.versus.saved_s.value)} ({wording.between(one.versus.saved_s)})",
        f"{excess.value:+.0%} ({excess.low:+.0%} .. {excess.high:+.0%})",
        f"{one.versus.p_value:.2g}",
        wording.break_even(one.versus.break_even),
    )


def _mistakes(verdict: KindVerdict) -> str:
    kinds = [kind for kind in MISTAKES if any(one.mistakes.get(kind) for one in verdict.figures)]
    if not kinds:
        return "<p>No target made a mistake.</p>"
    rows = [(one.name, *(str(one.mistakes.get(kind, 0)) for kind in kinds)) for one in verdict.figures]
    return _table(("", *kinds), rows)


def _problems(runs: Sequence[Run]) -> str:
    """The most common reasons for missing answers. A target that refuses is not a model that is wrong."""
    parts = []
    for run in runs:
        whys = Counter(one.why for one in run.attempts if one.verdict == NO_ANSWER and one.why)
        for why, count in whys.most_common(3):
            parts.append(f'<p class="bad">{escape(run.name)}, no answer ({count}): {escape(why[:300])}</p>')
    return "".join(parts)


def _method(asked: AskedTasks, verdict: KindVerdict) -> str:
    clocks = {True: "Times are from Headway's proof in each answer."}
    clocks[False] = "Times of targets with a star (*) were measured by this client: their answers carry no proof."
    said = [clocks[proven] for proven in (True, False) if any(one.is_proven is proven for one in verdict.figures)]
    return " ".join(
        [
            f"Every target got the same tasks once, {asked.at_once} at a time, with up to {asked.max_tokens:,} tokens "
            f"per answer, in up to {MOST_ROUNDS} rounds with a part of the tasks each. {asked.baseline} came last in "
            "each round, so that prefix caches favour it and not the others.",
            *said,
            "A target that refused, failed or was too slow gave no answer, which counts as a mistake. Shares have "
            f"Wilson's 95 % interval. Other intervals are bootstrapped with {DRAWS:,} draws of the tasks and two "
            "hypothetical tasks, because a few tasks without a mistake do not prove that there are none. Mistakes of "
            "one model at two speeds are pooled, unless the exact McNemar test (`p (equally right)` below 0.05) finds "
            "a difference. The recommended target has the shortest time to a right answer, if the interval of its lead "
            "over the full model excludes zero.",
        ]
    )


def _results(asked: AskedTasks, runs: Sequence[Run], verdicts: list[KindVerdict]) -> dict[str, Any]:
    found = {"runs": [asdict(one) for one in runs], "verdicts": [asdict(one) for one in verdicts]}
    return {"asked": asdict(asked), **_finite(found)}


def _finite(value: Any) -> Any:
    """Replace infinity, which JSON does not have, with None."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and isinf(value) else value


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"
