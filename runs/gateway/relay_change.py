"""CPU per relayed token of this checkout beside another commit's. See runs/relay-change.sh.

Both gateways run all the time on the same scripted engine and take turns, so that a slow minute of the machine is
both's. Which one goes first alternates too.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import track

from headway.local.engine_process import free_port
from runs.gateway.tax import all_complete
from runs.measure.streams import ChatRequest, at_once, chat_request, cpu_seconds, gateway, process, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish

ROOT = Path(__file__).parents[2]
VERSION_0_1 = "4bdd684"
PAIRS = 21
MAX_RATIO = 1.03
MODEL, STREAMS, TOKENS, STEP = "scripted", 64, 150, "1:10"  # 64 streams at 100 tokens/s, one token per event
SEED = 16

console = Console(width=110)


@dataclass(frozen=True)
class Turns:
    """Microseconds of CPU per relayed token; the turns at one place are a pair."""

    before: Sequence[float]
    after: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]


def interval(ratios: Sequence[float], resamples: int = 2_000) -> tuple[float, float]:
    """95 % interval of the median, by resampling the pairs."""
    dice = random.Random(SEED)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def verdict(turns: Turns) -> Verdict:
    ratios = turns.ratios
    median, (low, high) = statistics.median(ratios), interval(ratios)
    bars = (
        at_least("pairs", len(ratios), PAIRS, "d"),
        at_most("CPU per token, after ÷ before, median of the pairs", median, MAX_RATIO, ".3f"),
    )
    before, after = statistics.median(turns.before), statistics.median(turns.after)
    figure = (
        f"after ÷ before {median:.3f} (95 % interval {low:.3f} .. {high:.3f}, {len(ratios)} pairs); "
        f"{before:.2f} and {after:.2f} µs of CPU per token"
    )
    return Verdict(figure, bars)


def checked_out(commit: str, folder: Path) -> Path:
    """The files of the commit, without its history."""
    tree = folder / "before"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit, "headway"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    return tree


def loading_from(tree: Path) -> dict[str, str]:
    """The environment in which `python -m headway` is that of `tree`, and not of the directory it is started in."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def turn_us(url: str, pid: int, request: ChatRequest) -> float:
    began = cpu_seconds(pid)
    streams, _ = uvloop.run(at_once(url, request, STREAMS))
    all_complete(streams)
    return (cpu_seconds(pid) - began) * 1e6 / sum(stream.tokens for stream in streams)


def measure(commit: str, pairs: int) -> Turns:
    engine_port, before_port, after_port = free_port(), free_port(), free_port()
    engine_url = f"http://127.0.0.1:{engine_port}"
    request = chat_request(MODEL, TOKENS)
    with (
        tempfile.TemporaryDirectory() as name,
        scripted(engine_port, model=MODEL, first_token_ms=5, step_ms=STEP, seats=2 * STREAMS),
    ):
        folder = Path(name)
        config = folder / "before.toml"
        config.write_text(
            f'[gateway]\nport = {before_port}\n[[models]]\nname = "{MODEL}"\n'
            f'[[models.replicas]]\nurl = "{engine_url}"\nseats = {STREAMS}\n'
        )
        command = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        env = loading_from(checked_out(commit, folder))
        urls = [f"http://127.0.0.1:{port}" for port in (before_port, after_port)]
        with (
            process(command, f"{urls[0]}/ready", env) as before_pid,
            gateway(after_port, folder, model=MODEL, engine_urls=[engine_url], seats=STREAMS) as after_pid,
        ):
            ways = list(zip(urls, (before_pid, after_pid), strict=True))
            for url, pid in ways:  # the first calls fill caches
                turn_us(url, pid, request)
            seen: list[list[float]] = [[], []]
            for number in track(range(pairs), "pairs", console=console, transient=True):
                for place in (0, 1) if number % 2 else (1, 0):
                    seen[place].append(turn_us(*ways[place], request))
    return Turns(*seen)


def main(commit: str = VERSION_0_1, pairs: str = str(PAIRS)) -> int:
    console.print(f"before: {commit}; {STREAMS} streams of {TOKENS} tokens a turn, one token per event")
    return finish(console, verdict(measure(commit, int(pairs))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
