"""Compares what the load generator reports with a scripted engine's programmed times. See runs/bench-truth.sh."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.bench.client import LoadClient
from headway.bench.load import Load, closed_loop, quantile
from headway.local.engine_process import free_port
from runs.measure.machine import too_slow
from runs.measure.streams import scripted
from runs.measure.verdict import Verdict, at_most, finish

console = Console(width=120)
TOKENS, FIRST_MS = 64, 500.0
SETTINGS = [(1, 10.0), (16, 10.0), (64, 20.0), (256, 40.0)]  # streams, ms per step
BAR = 0.01


@dataclass(frozen=True)
class Round:
    """One round at one number of streams: reported ÷ programmed."""

    first_token: float
    per_token: float
    late_ms: float  # how late the client read, p99
    valid: bool  # the load generator considers its figures valid


Figures = dict[int, list[Round]]  # by number of streams


async def measure(url: str, streams: int) -> Load:
    client = LoadClient(url, "m")
    try:
        return await closed_loop(client, streams, 32, TOKENS, max(1, 4 // streams))
    finally:
        client.close()


def programmed_tpot_ms(streams: int, step_ms: float) -> float:
    """The programmed time per token. A stream's first token comes on average half a step before the next step of the
    others; a stream alone starts with a step."""
    return step_ms * (TOKENS - 1 + (0.5 if streams > 1 else 0.0)) / (TOKENS - 1)


def one_round(streams: int, step_ms: float) -> Round:
    port = free_port()
    with scripted(port, model="m", first_token_ms=FIRST_MS, step_ms=f"1:{step_ms}", seats=256):
        load = uvloop.run(measure(f"http://127.0.0.1:{port}", streams))
    first_ms = 1e3 * statistics.median(call.ttft_s for call in load.complete)
    token_ms = 1e3 * statistics.median(call.tpot_s for call in load.complete)
    ratios = first_ms / FIRST_MS, token_ms / programmed_tpot_ms(streams, step_ms)
    return Round(*ratios, 1e3 * quantile(load.lags_s, 0.99), not load.problems())


def too_busy(figures: Figures) -> str | None:
    """A reason if the client was late in most rounds: it shares the machine with the engine and measured itself."""
    for streams, rounds in figures.items():
        valid = sum(one.valid for one in rounds)
        if 2 * valid < len(rounds):
            return f"the client was late in {len(rounds) - valid} of {len(rounds)} rounds at {streams} streams"
    return None


def verdict(figures: Figures) -> Verdict:
    medians = {
        f"{what}, {streams} streams": statistics.median(getattr(one, name) for one in rounds)
        for streams, rounds in figures.items()
        for name, what in (("first_token", "first token"), ("per_token", "per token"))
    }
    bars = [at_most(f"{what}: off by", abs(ratio - 1), BAR, ".2%") for what, ratio in medians.items()]
    worst = max(abs(ratio - 1) for ratio in medians.values())
    rounds = min(map(len, figures.values()))
    figure = f"farthest from what is programmed, medians of {rounds} rounds: {worst:.2%} (bar {BAR:.0%})"
    return Verdict(figure, tuple(bars))


def show(figures: Figures) -> None:
    table = Table("streams", "first token ÷ programmed", "token ÷ programmed", "client late p99, ms", "valid rounds")
    for streams, rounds in figures.items():
        table.add_row(
            str(streams),
            *[
                f"{statistics.median(ratios):.4f} ({min(ratios):.4f} .. {max(ratios):.4f})"
                for ratios in ([one.first_token for one in rounds], [one.per_token for one in rounds])
            ],
            f"{statistics.median(one.late_ms for one in rounds):.2f}",
            f"{sum(one.valid for one in rounds)} of {len(rounds)}",
        )
    console.print(table)


def main(rounds: int) -> int:
    figures: Figures = {streams: [] for streams, _ in SETTINGS}
    turns = [setting for _ in range(rounds) for setting in SETTINGS]
    for streams, step_ms in track(turns, "measuring", console=console, transient=True):
        figures[streams].append(one_round(streams, step_ms))
    show(figures)
    if busy := too_busy(figures):
        too_slow(console, busy)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
