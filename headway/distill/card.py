"""The card of a student: what it is, its speed, and its mistakes compared with its teacher's.

Written from `card.json` only, which runs and `headway distill` write. If a figure is not among the results, the card
says that it was not measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from typing import Any

from headway.errors import SetupError
from headway.evals.shares import Z_95, Share
from headway.evals.tool_calls import MISTAKES

NOT_MEASURED = "not measured"


def tally(verdicts: Iterable[str]) -> dict[str, int]:
    """The count of each verdict, "right" first."""
    counts = Counter(verdicts)
    return {name: counts[name] for name in ("right", *MISTAKES) if counts[name]}


def ratio_interval(part: Share, whole: Share) -> tuple[float, float, float]:
    """part ÷ whole with its 95 % interval, for two independent shares, on the log scale."""
    if part.count == 0 or whole.count == 0:
        return 0.0, 0.0, float("inf")
    ratio = part.value / whole.value
    spread = Z_95 * sqrt((1 - part.value) / part.count + (1 - whole.value) / whole.count)
    factor = exp(spread)
    return ratio, ratio / factor, ratio * factor


def read_results(path: Path) -> dict[str, Any]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read ({error}).") from error
    if not isinstance(results, dict) or "name" not in results:
        raise SetupError(f"{path} is not a student's results: it has no `name`.")
    return results


def card_page(results: Mapping[str, Any]) -> str:
    """The card as Markdown. `results` has a name and may have: teacher, bytes, layers, mistakes, speeds, acceptance,
    trained_on."""
    parts = [
        f"# {results['name']}\n\nWritten by `headway distill card` from measured results.\n",
        _what_it_is(results),
        _mistakes(results.get("mistakes") or {}),
        _speeds(results.get("speeds") or []),
        _acceptance(results.get("acceptance") or {}),
        _trained_on(results.get("trained_on") or {}),
        _bad_at(results.get("mistakes") or {}, str(results["name"])),
    ]
    return "\n".join(parts)


def _what_it_is(results: Mapping[str, Any]) -> str:
    def said(name: str, spec: str = "") -> str:
        value = results.get(name)
        return NOT_MEASURED if value is None else format(value, spec)

    rows = [
        ("distilled from", said("teacher")),
        ("parameters", f"{said('params', ',d')}, the teacher {said('teacher_params', ',d')}"),
        ("bytes", f"{said('bytes', ',d')}, the teacher {said('teacher_bytes', ',d')}"),
        ("layers of the teacher kept", said("layers")),
        ("weights", said("precision")),
    ]
    return _table(("", ""), rows)


def _mistakes(sets: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """`sets` has the count of each verdict by task set and model."""
    if not sets:
        return f"## Mistakes\n\n{NOT_MEASURED}\n"
    parts = ["## Mistakes\n\nOn tasks held out from training, with greedy decoding; 95 % intervals in parentheses.\n"]
    for name, models in sets.items():
        kinds = [kind for kind in MISTAKES if any(counts.get(kind) for counts in models.values())]
        rows = []
        for model, counts in models.items():
            of = sum(counts.values())
            rows.append(
                (model, str(of), str(Share(counts.get("right", 0), of)), *[str(counts.get(k, 0)) for k in kinds])
            )
        parts.append(f"### {name}\n\n" + _table(("model", "tasks", "right", *kinds), rows))
    return "\n".join(parts)


def _speeds(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return f"## Speed\n\n{NOT_MEASURED}\n"
    lines = [(str(r["model"]), str(r["streams"]), f"{r['stream_tps']:.1f}", str(r.get("note", ""))) for r in rows]
    return "## Speed\n\n" + _table(("model", "streams", "tok/s each", ""), lines)


def _acceptance(tasks: Mapping[str, Mapping[str, float]]) -> str:
    if not tasks:
        return f"## As drafter\n\n{NOT_MEASURED}\n"
    rows = [
        (name, f"{one['tokens']:g}", f"{one['acceptance']:.1%}", f"{one['speedup']:.2f}") for name, one in tasks.items()
    ]
    return "## As drafter\n\n" + _table(("tasks", "draft tokens", "accepted", "speed-up"), rows)


def _trained_on(said: Mapping[str, Any]) -> str:
    if not said:
        return f"## Trained on\n\n{NOT_MEASURED}\n"
    return "## Trained on\n\n" + _table(("what", ""), [(name, str(value)) for name, value in said.items()])


def _bad_at(sets: Mapping[str, Mapping[str, Mapping[str, int]]], name: str) -> str:
    """The sets on which it is clearly less often right than its teacher, with its most common mistake."""
    lines = []
    for task_set, models in sets.items():
        own, teacher = models.get("student") or models.get(name), models.get("teacher")
        if not own or not teacher:
            continue
        mine, theirs = (Share(c.get("right", 0), sum(c.values())) for c in (own, teacher))
        mistakes = {kind: own.get(kind, 0) for kind in MISTAKES}
        worst = max(MISTAKES, key=lambda kind: mistakes[kind])
        if mine.interval[1] < theirs.interval[0]:
            lines.append(
                f"- **{task_set}**: right on {mine.value:.1%} of the tasks, its teacher on {theirs.value:.1%}; "
                f"most common mistake: {worst} ({mistakes[worst]} of {mine.of})."
            )
    none = "These sets show no clear weakness. Nothing else was measured.\n"
    return "## What it is bad at\n\n" + ("\n".join(lines) + "\n" if lines else none)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
