"""What it costs a relay to keep the token ids of its streams, so that they can go on elsewhere. See runs/ids-cost.sh.

One gateway relays streams that can go on elsewhere, and streams that cannot because they have a seed, in turns. The
engine says the ids of the former in each event, so these are longer too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track

from headway.local.engine_process import free_port
from runs.gateway.relay_change import interval
from runs.gateway.tax import all_complete
from runs.measure.streams import ChatRequest, at_once, chat_request, cpu_seconds, process, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish

PAIRS = 21
MAX_RATIO, GOAL = 1.10, 1.03
MODEL, STREAMS, TOKENS, STEP = "scripted", 64, 500, "1:10"  # 64 streams at 100 tokens/s, one token per event

console = Console(width=110)


@dataclass(frozen=True)
class IdPairs:
    """CPU seconds of the gateway. The turns at one place are a pair: without and with ids."""

    without: Sequence[float]
    with_ids: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [kept / plain for plain, kept in zip(self.without, self.with_ids, strict=True)]


def verdict(pairs: IdPairs) -> Verdict:
    ratios = pairs.ratios
    median, (low, high) = statistics.median(ratios), interval(ratios)
    per_token_us = [1e6 * statistics.median(turns) / (STREAMS * TOKENS) for turns in (pairs.without, pairs.with_ids)]
    bars = (
        at_least("pairs", len(ratios), PAIRS, "d"),
        at_most(f"CPU per token, with ids ÷ without, median of the pairs (goal {GOAL})", median, MAX_RATIO, ".3f"),
    )
    figure = (
        f"keeping token ids takes {median:.3f} times the CPU per token (95 % interval {low:.3f} .. {high:.3f}, "
        f"{len(ratios)} pairs): {per_token_us[0]:.1f} and {per_token_us[1]:.1f} us"
    )
    return Verdict(figure, bars)


async def turn(url: str, pid: int, request: ChatRequest) -> float:
    cpu = cpu_seconds(pid)
    streams, _ = await at_once(url, request, STREAMS)
    all_complete(streams)
    return cpu_seconds(pid) - cpu


def measure(pairs: int) -> IdPairs:
    engine_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    requests = (chat_request(MODEL, TOKENS, seed=1), chat_request(MODEL, TOKENS))
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "headway.toml"
        config.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "{MODEL}"\n'
            f'[[models.replicas]]\nurl = "http://127.0.0.1:{engine_port}"\nseats = {2 * STREAMS}\n'
        )
        serve = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        with (
            scripted(engine_port, model=MODEL, first_token_ms=5, step_ms=STEP, seats=2 * STREAMS),
            process(serve, f"{url}/ready") as pid,
        ):
            seen: list[list[float]] = [[], []]
            for request in requests:  # the first calls fill caches
                uvloop.run(turn(url, pid, request))
            for number in track(range(pairs), "pairs", console=console, transient=True):
                for place in (0, 1) if number % 2 else (1, 0):
                    seen[place].append(uvloop.run(turn(url, pid, requests[place])))
    return IdPairs(*seen)


def main(pairs: str = str(PAIRS)) -> int:
    console.print(f"{STREAMS} streams of {TOKENS} tokens a turn")
    return finish(console, verdict(measure(int(pairs))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
