"""Summary of a scenario over its seeds: the mean of each figure with its 95 % confidence interval."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan, sqrt
from statistics import mean, stdev

from headway.core.types import Tier
from headway.price import MICRO
from headway.sim.scenario import Outcome, Tally

# Student's t for 95 %, by degrees of freedom; the last value is used for more.
T95 = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.13, 2.09, 2.05, 2.04)


@dataclass(frozen=True, slots=True)
class Figure:
    mean: float
    half: float  # half the width of the interval; 0 with a single seed

    def __format__(self, spec: str) -> str:
        if isnan(self.mean):
            return "-"
        return f"{self.mean:{spec}} ± {self.half:{spec}}" if self.half else f"{self.mean:{spec}}"


def figure(values: list[float]) -> Figure:
    """Mean and interval of the values that are not NaN. A seed without promises has no value for floors kept."""
    values = [value for value in values if not isnan(value)]
    if len(values) < 2:
        return Figure(values[0] if values else nan, 0.0)
    t95 = T95[min(len(values) - 1, len(T95) - 1)]
    return Figure(mean(values), t95 * stdev(values) / sqrt(len(values)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


# The columns for each tier: name, how to compute it from one seed's tally, and format.
SHOWN: tuple[tuple[str, Callable[[Tally, float], float], str], ...] = (
    ("calls/s", lambda tally, seconds: tally.calls / seconds, ",.2f"),
    ("floors kept", lambda tally, _: _share(tally.kept, tally.promised) if tally.promised else nan, ".2%"),
    ("downgraded", lambda tally, _: _share(tally.downgraded, tally.calls), ".2%"),
    ("refused", lambda tally, _: _share(tally.refused, tally.calls), ".2%"),
    ("cut", lambda tally, _: _share(tally.cut, tally.calls), ".2%"),
    ("wait p50, s", lambda tally, _: tally.waits_s.quantile(0.5), ".2f"),
    ("wait p99, s", lambda tally, _: tally.waits_s.quantile(0.99), ".2f"),
    ("first token p50, s", lambda tally, _: tally.first_tokens_s.quantile(0.5), ".2f"),
    ("tok/s p50", lambda tally, _: tally.speeds_tps.quantile(0.5), ".1f"),
    ("tok/s p1", lambda tally, _: tally.speeds_tps.quantile(0.01), ".1f"),
    ("money in/h", lambda tally, seconds: (tally.billed - tally.refunded) / MICRO * 3600 / seconds, ",.2f"),
    ("refunded/h", lambda tally, seconds: tally.refunded / MICRO * 3600 / seconds, ",.2f"),
)


def by_tier(outcomes: list[Outcome]) -> dict[Tier, dict[str, Figure]]:
    return {
        tier: {
            name: figure([take(outcome.tallies[tier], outcome.seconds) for outcome in outcomes])
            for name, take, _ in SHOWN
        }
        for tier in outcomes[0].tallies
    }


def money(outcomes: list[Outcome]) -> dict[str, Figure]:
    """Income, cost and margin of the whole fleet per hour, and the reserve's share of the busy time."""
    per_hour = 3600 / MICRO
    billed = [
        sum(tally.billed - tally.refunded for tally in one.tallies.values()) + (one.auto.billed if one.auto else 0)
        for one in outcomes
    ]
    money_in = [amount * per_hour / one.seconds for amount, one in zip(billed, outcomes, strict=True)]
    cost = [one.cost * per_hour / one.seconds for one in outcomes]
    busy = [(sum(one.seat_us.values()) + one.reserve_us) / 1e6 for one in outcomes]
    return {
        "money in/h": figure(money_in),
        "cost/h": figure(cost),
        "margin/h": figure([a - b for a, b in zip(money_in, cost, strict=True)]),
        "reserve, of busy time": figure(
            [one.reserve_us / 1e6 / total if total else 0.0 for one, total in zip(outcomes, busy, strict=True)]
        ),
    }


def moved(outcomes: list[Outcome]) -> dict[str, tuple[Figure, str]]:
    """How many calls went on at another replica after they had begun, and the time that it added; each with its
    format."""
    seeds = [list(one.tallies.values()) for one in outcomes]
    took: dict[str, tuple[list[float], str]] = {
        "moved": ([_share(sum(t.moved for t in one), sum(t.calls for t in one)) for one in seeds], ".2%"),
        "added p50, s": ([_added_s(one, 0.5) for one in seeds], ".2f"),
        "added p99, s": ([_added_s(one, 0.99) for one in seeds], ".2f"),
    }
    return {name: (figure(values), form) for name, (values, form) in took.items()}


def _added_s(tallies: list[Tally], part: float) -> float:
    """Of the tier in which the most calls were moved."""
    return max(tallies, key=lambda one: one.moved).added_s.quantile(part)


def auto(outcomes: list[Outcome]) -> dict[str, tuple[Figure, str]]:
    """The figures of the auto calls, each with its format."""
    seeds = [one.auto for one in outcomes if one.auto is not None]
    took: dict[str, tuple[list[float], str]] = {
        "served by the student": ([_share(one.by_student, one.calls) for one in seeds], ".1%"),
        "audited": ([_share(one.audits, one.calls) for one in seeds], ".1%"),
        "gates closed": ([float(one.trust.is_closed) for one in seeds], ".0%"),
        "mistakes": ([_share(one.mistakes, one.calls - one.refused) for one in seeds], ".2%"),
        "mistakes of the full model": ([one.rungs.full_mistakes for one in seeds], ".2%"),
        "refused or cut": ([_share(one.refused, one.calls) for one in seeds], ".2%"),
        "whole answer p50, s": ([one.seconds.quantile(0.5) for one in seeds], ".2f"),
        "whole answer p99, s": ([one.seconds.quantile(0.99) for one in seeds], ".2f"),
    }
    return {name: (figure(values), form) for name, (values, form) in took.items()}


def as_csv(outcomes: list[Outcome]) -> str:
    """One row for each seed and tier."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "tier", *[name for name, _, _ in SHOWN]])
    for outcome in outcomes:
        for tier, tally in outcome.tallies.items():
            writer.writerow([outcome.seed, tier, *[f"{take(tally, outcome.seconds):.6g}" for _, take, _ in SHOWN]])
    return text.getvalue()
