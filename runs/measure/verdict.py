"""The end of a run: its figures against their bars, and one verdict on all of them.

A run measures its figures first and then calls its own pure `verdict(figures)`, so that a test can show that each bar
can fail (tests/runs/test_verdicts.py). A figure that is not a number misses its bar.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """One figure and its limit, both as they are printed."""

    what: str
    measured: str
    limit: str
    holds: bool


def at_most(what: str, measured: float, limit: float, form: str = ",.2f", unit: str = "") -> Bar:
    return Bar(what, f"{measured:{form}}{unit}", f"<= {limit:{form}}{unit}", measured <= limit)


def at_least(what: str, measured: float, limit: float, form: str = ",.2f", unit: str = "") -> Bar:
    return Bar(what, f"{measured:{form}}{unit}", f">= {limit:{form}}{unit}", measured >= limit)


def none_of(what: str, count: int) -> Bar:
    return Bar(what, f"{count:,}", "0", count == 0)


@dataclass(frozen=True)
class Verdict:
    figure: str  # the published figure in a sentence: the last line of the run
    bars: tuple[Bar, ...]

    @property
    def ok(self) -> bool:
        return bool(self.bars) and not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run fails: each bar that is missed."""
        return tuple(f"{bar.what}: {bar.measured} ({bar.limit})" for bar in self.bars if not bar.holds)


def finish(console: Console, verdict: Verdict) -> int:
    """Print the bars and, last, the figure. Returns the exit code: 0 if all bars hold, else 1."""
    table = Table("what", "measured", "bar", "")
    for bar in verdict.bars:
        table.add_row(bar.what, bar.measured, bar.limit, "holds" if bar.holds else "MISSED")
    console.print(table)
    console.print(verdict.figure, highlight=False, markup=False, soft_wrap=True)
    return 0 if verdict.ok else 1
