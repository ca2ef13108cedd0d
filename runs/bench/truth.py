"""What the load generator reports beside what is programmed into a scripted engine. See runs/bench-truth.sh."""

from __future__ import annotations

import statistics
import sys

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.bench.client import Client
from headway.bench.load import Load, closed_loop, quantile
from headway.local.engine_process import free_port
from runs.measure.streams import scripted

console = Console(width=120)
TOKENS, FIRST_MS = 64, 500.0
SETTINGS = [(1, 10.0), (16, 10.0), (64, 20.0), (256, 40.0)]  # streams, ms per step
BAR = 0.01


async def measure(url: str, streams: int) -> Load:
    client = Client(url, "m")
    try:
        return await closed_loop(client, streams, 32, TOKENS, max(1, 4 // streams))
    finally:
        client.close()


def programmed_tpot_ms(streams: int, step_ms: float) -> float:
    """A stream's first token comes between two steps of the others, half a step before the next on average; alone, it
    begins a step."""
    return step_ms * (TOKENS - 1 + (0.5 if streams > 1 else 0.0)) / (TOKENS - 1)


def main(rounds: int) -> int:
    found: dict[int, list[tuple[float, float, float, bool]]] = {streams: [] for streams, _ in SETTINGS}
    turns = [setting for _ in range(rounds) for setting in SETTINGS]
    for streams, step_ms in track(turns, "measuring", console=console, transient=True):
        port = free_port()
        with scripted(port, model="m", first_token_ms=FIRST_MS, step_ms=f"1:{step_ms}", seats=256):
            load = uvloop.run(measure(f"http://127.0.0.1:{port}", streams))
        ttft = 1e3 * statistics.median(call.ttft_s for call in load.complete) / FIRST_MS
        tpot = 1e3 * statistics.median(call.tpot_s for call in load.complete) / programmed_tpot_ms(streams, step_ms)
        lag_ms = 1e3 * quantile(load.lags_s, 0.99)
        found[streams].append((ttft, tpot, lag_ms, not load.problems()))
    table = Table("streams", "first token ÷ programmed", "token ÷ programmed", "client late p99, ms", "valid rounds")
    worst = 0.0
    for streams, results in found.items():
        ttfts, tpots = [one[0] for one in results], [one[1] for one in results]
        for ratios in (ttfts, tpots):
            worst = max(worst, abs(statistics.median(ratios) - 1))
        table.add_row(
            str(streams),
            f"{statistics.median(ttfts):.4f} ({min(ttfts):.4f} .. {max(ttfts):.4f})",
            f"{statistics.median(tpots):.4f} ({min(tpots):.4f} .. {max(tpots):.4f})",
            f"{statistics.median(one[2] for one in results):.2f}",
            f"{sum(one[3] for one in results)} of {rounds}",
        )
    console.print(table)
    console.print(f"farthest from what is programmed, medians of {rounds} rounds: {worst:.2%} (bar {BAR:.0%})")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
