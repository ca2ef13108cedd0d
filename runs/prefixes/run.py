"""What the prefix index finds, simulated and on real vLLM. See runs/prefix.sh."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.sim.loop import Job
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish, none_of
from runs.prefixes.on_vllm import Seen, Way, compare, serving
from runs.prefixes.picture import draw_found
from runs.prefixes.simulated import FASTER, REPLICAS, by_core, by_rule, hashed, in_turns, last_seen, of_one_cache
from runs.prefixes.trace import conversations

console = Console(width=120)
TUNED_ON = 3_000  # the first calls of the trace: the constants of core/finder.py and core/replicas.py were chosen there
FAST_SHARES, SEEDS = (0.0, 0.1, 0.2), range(1, 6)
RULES = {"last seen": last_seen, "hashed": hashed, "in turns": in_turns}
ROUNDS = 2
MIN_FOUND, MAX_IMBALANCE, MIN_KEPT = 0.9, 1.2, 0.995
MAX_COMPUTED, MAX_FIRST_TOKEN = 0.6, 0.75


@dataclass(frozen=True)
class SimulatedRow:
    who: str
    fast_share: float
    found: float  # prompt tokens found, divided by those that one large cache finds
    imbalance: float
    first_token_s: float  # median
    kept: float  # share of floors; 1 without fast calls
    refused: int


@dataclass(frozen=True)
class LiveFigures:
    computed: float  # prompt tokens computed, divided by round robin's, over all rounds
    first_token: float  # medians, divided by round robin's: the median of the rounds
    errors: int


@dataclass(frozen=True)
class Figures:
    simulated: list[SimulatedRow]
    live: LiveFigures


def is_scored(job: Job) -> bool:
    return int(job.call.id[1:]) >= TUNED_ON


def simulate(who: str, fast_share: float, seed: int) -> SimulatedRow:
    jobs = conversations(FASTER, fast_share, seed)
    found = by_core(jobs, is_scored) if who == "Headway" else by_rule(RULES[who](), jobs, is_scored)
    most = of_one_cache(jobs, is_scored).share
    kept = found.kept / found.fast if found.fast else 1.0
    return SimulatedRow(who, fast_share, found.share / most, found.imbalance, found.median_s, kept, found.refused)


def simulate_all() -> list[SimulatedRow]:
    asked = [("Headway", share, seed) for share in FAST_SHARES for seed in (SEEDS if share else SEEDS[:1])]
    asked += [(who, 0.0, 1) for who in RULES]
    with ProcessPoolExecutor(2) as pool:
        rows = [pool.submit(simulate, *one) for one in asked]
        return [row.result() for row in track(rows, "simulating", console=console, transient=True)]


def headway_at(rows: list[SimulatedRow], fast_share: float) -> list[SimulatedRow]:
    return [row for row in rows if row.who == "Headway" and row.fast_share == fast_share]


def simulated_table(rows: list[SimulatedRow]) -> Table:
    table = Table(
        "replicas chosen by", "fast calls", "found ÷ one cache", "fullest ÷ mean", "first token p50", "floors kept"
    )
    for who, share in dict.fromkeys((row.who, row.fast_share) for row in rows):
        some = [row for row in rows if (row.who, row.fast_share) == (who, share)]
        found = [row.found for row in some]
        spread = f" ({min(found):.3f} .. {max(found):.3f})" if len(some) > 1 else ""
        table.add_row(
            who,
            f"{share:.0%}",
            f"{median(found):.3f}{spread}",
            f"{max(row.imbalance for row in some):.2f}",
            f"{median(row.first_token_s for row in some):.2f} s",
            f"{min(row.kept for row in some):.2%}" if share else "",
        )
    return table


def draw(rows: list[SimulatedRow]) -> None:
    found: dict[str, list[float]] = {}
    fullest: dict[str, list[float]] = {}
    for row in rows:
        who = f"Headway, {row.fast_share:.0%} fast calls" if row.who == "Headway" else row.who
        found.setdefault(who, []).append(row.found)
        fullest.setdefault(who, []).append(row.imbalance)
    draw_found({who: median(some) for who, some in found.items()}, {who: median(some) for who, some in fullest.items()})


def live_figures(seen: dict[Way, Seen]) -> LiveFigures:
    ours, others = seen["Headway"], seen["in turns"]
    ratios = [median(one) / median(other) for one, other in zip(ours.first_token_s, others.first_token_s, strict=True)]
    computed = sum(ours.computed_tokens) / sum(others.computed_tokens)
    return LiveFigures(computed, median(ratios), ours.errors + others.errors)


def live_table(seen: dict[Way, Seen]) -> Table:
    table = Table("two vLLM engines", "prompt tokens computed, by round", "first token p50, by round")
    for way, one in seen.items():
        firsts = ", ".join(f"{median(times):.2f} s" for times in one.first_token_s)
        table.add_row(way, ", ".join(f"{tokens:,}" for tokens in one.computed_tokens), firsts)
    return table


def verdict(figures: Figures) -> Verdict:
    rows, live = figures.simulated, figures.live
    plain, tenth, fifth = (headway_at(rows, share) for share in FAST_SHARES)
    found, with_fast = median(row.found for row in plain), median(row.found for row in tenth)
    bars: list[Bar] = [
        at_least("found ÷ what one cache finds, no fast calls", found, MIN_FOUND, ".3f"),
        at_least("the same, a tenth of the conversations fast", with_fast, MIN_FOUND, ".3f"),
        at_most("streams of the fullest replica ÷ mean", max(row.imbalance for row in [*plain, *tenth]), MAX_IMBALANCE),
        at_least("floors kept", min(row.kept for row in [*tenth, *fifth]), MIN_KEPT, ".2%"),
        none_of("calls refused", sum(row.refused for row in rows)),
        at_most("on vLLM: prompt tokens computed ÷ round robin's", live.computed, MAX_COMPUTED),
        at_most("on vLLM: first token p50 ÷ round robin's", live.first_token, MAX_FIRST_TOKEN),
        none_of("on vLLM: errors", live.errors),
    ]
    figure = (
        f"Simulated, {REPLICAS} replicas: {found:.0%} of the prompt tokens that one large cache finds ({with_fast:.0%} "
        f"with a tenth of the conversations fast). On two vLLM engines: {live.computed:.2f} times the prompt tokens "
        f"computed of round robin, first token after {live.first_token:.2f} times as long."
    )
    return Verdict(figure, tuple(bars))


def main() -> int:
    rows = simulate_all()
    console.print(simulated_table(rows))
    draw(rows)
    with tempfile.TemporaryDirectory() as folder, serving(console, Path(folder)) as place:
        seen = asyncio.run(compare(place, ROUNDS, console))
    console.print(live_table(seen))
    return finish(console, verdict(Figures(rows, live_figures(seen))))


if __name__ == "__main__":
    sys.exit(main())
