"""The table that runs/peers.sh publishes, who leads in it, and whether its bars hold. Pure.

The bars are against LiteLLM, the only peer that does more with a call than relay it, and, for CPU per token, against
the routers in Rust. HAProxy, in C, is a goal: its row must be there, and the standings say who leads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runs.measure.verdict import Bar, Verdict

OURS, HAPROXY, LITELLM = "Headway", "HAProxy", "LiteLLM"
RUST = ("vllm-router", "smg")
GATEWAYS = (OURS, HAPROXY, *RUST, LITELLM)
MAX_ADDED_SHARE, MAX_CPU_SHARE = 1 / 5, 1 / 15
MAX_TIMES_RUST, GOAL_TIMES_HAPROXY = 1.0, 1.5
# Beyond this LiteLLM, the slowest, mostly queues. Then the machine is too slow, or too busy, for a fair comparison.
MAX_QUEUEING = 3.0  # added p50 with Poisson arrivals ÷ one call at a time

Rounds = tuple[float, ...]  # one figure per round; their median counts


@dataclass(frozen=True)
class FirstToken:
    """Time to first token beyond the bare engine's, in ms."""

    p50_ms: Rounds
    p99_ms: Rounds
    core: Rounds  # share of a core that the gateway used, all its processes


@dataclass(frozen=True)
class Relay:
    cpu_us: Rounds  # per relayed token, all processes of the gateway
    tokens_per_s: Rounds
    core: Rounds
    failed: int = 0


@dataclass(frozen=True)
class Row:
    gateway: str
    alone: FirstToken  # one call at a time
    half_load: FirstToken  # Poisson arrivals
    slow: Relay  # 8 streams at 50 tokens/s
    full: Relay  # 64 streams, as fast as they go


@dataclass(frozen=True)
class Measure:
    """One thing the gateways are compared by; the lowest leads."""

    what: str
    unit: str
    digits: int
    rounds: Callable[[Row], Rounds]
    max_share: float | None = None  # of LiteLLM's


CPU = (
    Measure("CPU per token, 8 slow streams", "µs", 1, lambda row: row.slow.cpu_us, MAX_CPU_SHARE),
    Measure("CPU per token, 64 fast streams", "µs", 1, lambda row: row.full.cpu_us, MAX_CPU_SHARE),
)
MEASURES = (
    Measure("added first token p50, one call at a time", "ms", 2, lambda row: row.alone.p50_ms, MAX_ADDED_SHARE),
    Measure("added first token p50, Poisson", "ms", 2, lambda row: row.half_load.p50_ms, MAX_ADDED_SHARE),
    Measure("added first token p99, Poisson", "ms", 2, lambda row: row.half_load.p99_ms),
    *CPU,
)


def complete_rows(table: Sequence[Row]) -> dict[str, Row]:
    """The rows that have at least one round of every measure, by gateway."""
    return {row.gateway: row for row in table if all(measure.rounds(row) for measure in MEASURES)}


def standings(table: Sequence[Row]) -> list[str]:
    """For each measure, all gateways from the best to the worst."""
    lines = []
    for measure in MEASURES:
        medians = [(statistics.median(measure.rounds(row)), name) for name, row in complete_rows(table).items()]
        places = [
            f"{number}. {name} {value:,.{measure.digits}f}" for number, (value, name) in enumerate(sorted(medians), 1)
        ]
        lines.append(f"{measure.what}, {measure.unit}: {', '.join(places)}")
    return lines


def verdict(table: Sequence[Row]) -> Verdict:
    rows = complete_rows(table)
    missing = [name for name in GATEWAYS if name not in rows]
    bars = [Bar("a row for each gateway", f"missing: {', '.join(missing)}" if missing else "all", "all", not missing)]
    figures = standings(table)
    if not missing:
        bars += [_share_bar(measure, rows[OURS], rows[LITELLM]) for measure in MEASURES if measure.max_share]
        bars += [_rust_bar(measure, rows) for measure in CPU]
        bars.append(_load_bar(rows[LITELLM]))
        figures += [_haproxy_goal(measure, rows[OURS], rows[HAPROXY]) for measure in CPU]
    return Verdict("\n".join(figures), tuple(bars))


def _share_bar(measure: Measure, ours: Row, theirs: Row) -> Bar:
    assert measure.max_share
    mine, other = (statistics.median(measure.rounds(row)) for row in (ours, theirs))
    # An added time of nothing, or less, is noise of the machine and shows nothing.
    holds = 0 < mine <= measure.max_share * other
    measured = f"1/{other / mine:.1f}" if mine > 0 else f"{mine:.{measure.digits}f} {measure.unit}"
    return Bar(f"{measure.what}, {OURS} ÷ {LITELLM}", measured, f"<= 1/{1 / measure.max_share:.0f}", holds)


def _rust_bar(measure: Measure, rows: dict[str, Row]) -> Bar:
    mine = statistics.median(measure.rounds(rows[OURS]))
    least, router = min((statistics.median(measure.rounds(rows[name])), name) for name in RUST)
    what, measured = f"{measure.what}, {OURS} ÷ the better Rust router", f"{mine / least:.2f} ({router})"
    return Bar(what, measured, f"<= {MAX_TIMES_RUST:.2f}", mine <= MAX_TIMES_RUST * least)


def _haproxy_goal(measure: Measure, ours: Row, haproxy: Row) -> str:
    times = statistics.median(measure.rounds(ours)) / statistics.median(measure.rounds(haproxy))
    return f"{measure.what}, {OURS} ÷ {HAPROXY}: {times:.2f} (goal {GOAL_TIMES_HAPROXY})"


def _load_bar(litellm: Row) -> Bar:
    alone, half_load = statistics.median(litellm.alone.p50_ms), statistics.median(litellm.half_load.p50_ms)
    what, limit = f"{LITELLM}'s added p50, Poisson ÷ one call at a time", f"<= {MAX_QUEUEING:.0f}, else it queues"
    return Bar(what, f"{half_load:.2f} ÷ {alone:.2f} ms", limit, half_load <= MAX_QUEUEING * alone)
