"""Compares Headway's load generator with GuideLLM on the same scripted engine and load, in turns. See runs/referee.sh.

The time per token is GuideLLM's `inter_token_latency_ms`, (last - first) / (tokens - 1) of each call. Headway measures
the same if a piece is one token, as here; `time_per_output_token_ms` would include the first token. Both take the
median over the calls and spread the start of the slots over a generation's time. Headway leaves out the first call of
each slot. GuideLLM is configured to do so, but counts more calls at 32 streams, so its number of calls is printed.
The engine's record is a third source: the time from first to last token, and the number of streams.

The engine's steps take equally long for 4 and 8 streams, and for 16 and 32. So the number of streams that are at their
prompts, which depends on the timing of the slots, does not look like a difference between the two tools.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.bench.client import LoadClient
from headway.bench.load import closed_loop
from headway.local.engine_env import ensure_cpu_engine, ensure_environment, ensure_smollm2
from headway.local.engine_process import free_port
from runs.gateway.tax import spread
from runs.measure.fetch import fetch
from runs.measure.machine import require
from runs.measure.streams import scripted
from runs.measure.verdict import Verdict, at_most, finish, none_of

console = Console(width=120)
VERSION = "0.8.1"
LOCK = Path(__file__).parent.parent / "peers" / "guidellm.txt"
NEEDS_BYTES = 4_000_000_000
BAR = 0.03
FIRST_TOKEN_MS, STEP_MS = 200, "1:10,4:15,8:15,16:25,32:25"
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 128
GENERATIONS = {1: 4, 8: 2, 32: 1}  # by streams: counted calls per slot
GENERATION_S = {1: 1.5, 8: 2.1, 32: 3.4}  # by streams: time of a call, over which GuideLLM's slots are spread
GUIDELLM_TIMEOUT_S = 120
# The default is up to ten worker processes, which would compete with each other and the engine on two cores.
GUIDELLM_SETTINGS = {"GUIDELLM__MAX_WORKER_PROCESSES": "2", "HF_HUB_OFFLINE": "1"}


@dataclass
class Turn:
    """One tool's figures for one number of streams, and the engine's for the same time. Medians, in ms."""

    ttft_ms: float
    tpot_ms: float
    calls: int  # counted
    engine_tpot_ms: float = 0.0
    problems: tuple[str, ...] = ()


def ensure_guidellm(progress: Callable[[str], None]) -> Path:
    """The path of `guidellm`. Creates its environment on first use (1.7 GB, about 2 minutes)."""
    return ensure_environment(f"peers-guidellm-{VERSION}", LOCK, NEEDS_BYTES, progress).with_name("guidellm")


def ours(url: str, streams: int) -> Turn:
    client = LoadClient(url, "m")
    try:
        load = uvloop.run(closed_loop(client, streams, PROMPT_TOKENS, OUTPUT_TOKENS, GENERATIONS[streams]))
    finally:
        client.close()
    good = load.complete
    ttft_s, tpot_s = (statistics.median(values) for values in zip(*((c.ttft_s, c.tpot_s) for c in good), strict=True))
    return Turn(1e3 * ttft_s, 1e3 * tpot_s, len(good), problems=tuple(load.problems()))


def guidellm(command: Path, tokenizer: Path, url: str, streams: int) -> Turn:
    calls = streams * (1 + GENERATIONS[streams])
    profile = {
        "kind": "concurrent",
        "streams": streams,
        "rampup_duration": GENERATION_S[streams] * (streams - 1) / streams,
        "warmup": {"mode": "requests", "value": streams},
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GUIDELLM_"))}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = {
            "--backend": {"kind": "openai_http", "target": url, "model": "m"},
            "--tokenizer": {"kind": "huggingface_auto", "model": str(tokenizer)},
            "--data": {"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
            "--profile": profile,
            "--constraint": {"kind": "max_requests", "count": calls},
            "--output": {"kind": "json", "path": str(report)},
        }
        line = [str(command), "run", "--disable-console"]
        for name, value in arguments.items():
            line += [name, json.dumps(value)]
        done = subprocess.run(
            line, env={**env, **GUIDELLM_SETTINGS}, capture_output=True, text=True, timeout=GUIDELLM_TIMEOUT_S
        )
        if done.returncode != 0 or not report.exists():
            raise SystemExit(f"GuideLLM failed:\n{(done.stdout + done.stderr)[-3000:]}")
        return read_report(json.loads(report.read_text()))


def read_report(report: dict[str, Any]) -> Turn:
    """Read GuideLLM's medians over the calls that it counts."""
    metrics = report["benchmarks"][0]["metrics"]
    first, between = metrics["time_to_first_token_ms"]["successful"], metrics["inter_token_latency_ms"]["successful"]
    totals = metrics["request_totals"]
    failed = totals["errored"] + totals["incomplete"]
    problems = (f"{failed} calls failed",) if failed else ()
    return Turn(first["median"], between["median"], totals["successful"], problems=problems)


def in_the_engines_words(record: dict[str, Any], turn: Turn, streams: int) -> Turn:
    whole = [r for r in record["requests"].values() if r["state"] == "finished" and r["tokens_sent"] == OUTPUT_TOKENS]
    seconds = [(r["ended_s"] - r["first_token_s"]) / (OUTPUT_TOKENS - 1) for r in whole]
    turn.engine_tpot_ms = 1e3 * statistics.median(seconds)
    expected = streams * GENERATIONS[streams]
    if record["highest_running"] != streams:
        turn.problems += (f"the engine had {record['highest_running']} streams at most, not {streams}",)
    if len(whole) < expected:
        turn.problems += (f"the engine finished {len(whole)} whole answers, at least {expected} expected",)
    return turn


def measure(tool: Callable[[str, int], Turn], streams: int) -> Turn:
    """Run one turn of one tool on a fresh engine, whose record then has only this turn."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with scripted(port, model="m", first_token_ms=FIRST_TOKEN_MS, step_ms=STEP_MS, seats=2 * max(GENERATIONS)):
        turn = tool(url, streams)
        return in_the_engines_words(json.loads(fetch(f"{url}/scripted/record")), turn, streams)


Figures = dict[tuple[str, int], list[Turn]]  # by tool and number of streams
TIMES = (("ttft_ms", "first token"), ("tpot_ms", "per token"))


def ratios_of(figures: Figures, streams: int, name: str) -> list[float]:
    """By turn: GuideLLM's figure ÷ Headway's."""
    pairs = zip(figures["Headway", streams], figures["GuideLLM", streams], strict=True)
    return [getattr(theirs, name) / getattr(own, name) for own, theirs in pairs]


def verdict(figures: Figures) -> Verdict:
    medians = {
        f"{what}, {streams} streams": statistics.median(ratios_of(figures, streams, name))
        for streams in GENERATIONS
        for name, what in TIMES
    }
    problems = sum(bool(turn.problems) for turns in figures.values() for turn in turns)
    bars = [at_most(f"{what}: differs by", abs(ratio - 1), BAR, ".1%") for what, ratio in medians.items()]
    worst = max(abs(ratio - 1) for ratio in medians.values())
    figure = f"the two differ by {worst:.1%} at most (bar {BAR:.0%})"
    return Verdict(figure, (*bars, none_of("turns with problems", problems)))


def show(figures: Figures, streams: int, table: Table) -> None:
    """Add the rows of one number of streams."""
    own, theirs = figures["Headway", streams], figures["GuideLLM", streams]
    for name, what in TIMES:
        a, b = [getattr(turn, name) for turn in own], [getattr(turn, name) for turn in theirs]
        ratios = ratios_of(figures, streams, name)
        engine = [f"programmed {FIRST_TOKEN_MS}"] * 2
        if name == "tpot_ms":
            engine = [f"{statistics.median(t.engine_tpot_ms for t in turns):.2f}" for turns in (own, theirs)]
        row = [f"{statistics.median(a):.2f}", engine[0], f"{statistics.median(b):.2f}", engine[1]]
        table.add_row(f"{streams}", what, *row, f"{statistics.median(ratios):.4f}", spread(ratios, 4))


def main(turns: int) -> int:
    require(console, free_cores=True)
    with console.status("environments") as status:
        command = ensure_guidellm(status.update)
        tokenizer = ensure_smollm2(ensure_cpu_engine(status.update), status.update)
    tools: dict[str, Callable[[str, int], Turn]] = {
        "Headway": ours,
        "GuideLLM": lambda url, streams: guidellm(command, tokenizer, url, streams),
    }
    found: Figures = {(name, streams): [] for name in tools for streams in GENERATIONS}
    for number in track(range(turns), "turns", console=console, transient=True):
        for streams in GENERATIONS:
            for name in list(tools)[:: -1 if number % 2 else 1]:
                turn = measure(tools[name], streams)
                found[name, streams].append(turn)
                said = (
                    f"{turn.ttft_ms:.2f}, {turn.tpot_ms:.3f} ms, engine {turn.engine_tpot_ms:.3f}, {turn.calls} calls"
                )
                said = "; ".join([f"turn {number + 1}, {name}, {streams} streams: {said}", *turn.problems])
                console.print(said, highlight=False)
    table = Table("streams", "median ms", "Headway", "engine then", "GuideLLM", "engine then", "ratio", "turns")
    for streams in GENERATIONS:
        show(found, streams, table)
    console.print(f"{OUTPUT_TOKENS} tokens out, {turns} turns, ratio = GuideLLM {VERSION} ÷ Headway", table, sep="\n")
    return finish(console, verdict(found))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
