"""Records a live run and replays its events through the core that the simulator drives. See runs/sim-parity.sh."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from headway.dispatch.record import replay
from headway.local.engine_process import free_port
from runs.measure.streams import call, chat_request, gateway, scripted
from runs.measure.verdict import Bar, Verdict, at_least, finish
from runs.measure.witness import set_faults

console = Console(width=120)
MODEL, REPLICAS, SEATS = "m", 4, 8
TIERS = """\
[[models.tiers]]
name = "standard"
max_hold_s = 2.0
[[models.tiers]]
name = "fast"
floor_tps = 55.0
max_hold_s = 1.0
output_tokens_per_minute = 60000
[[models.tiers]]
name = "flex"
max_hold_s = 5.0
"""
CURVE = "curve = [[1, 87.0], [8, 45.0]]\nprompt_tps = 20000.0"
CALLS_PER_S = 40.0


MIN_EVENTS = 1_000


@dataclass(frozen=True)
class Figures:
    calls: int
    complete: int
    events: int
    actions: int
    first_difference: str | None


def verdict(figures: Figures) -> Verdict:
    same = figures.first_difference is None
    said = "identical in the replay" if same else "DIFFERENT"
    bars = (
        Bar("actions in the replay", "the same" if same else "different", "the same", same),
        at_least("events", figures.events, MIN_EVENTS, ",.0f"),
        at_least("calls answered to the end", figures.complete, figures.calls / 4, ",.0f"),
    )
    figure = (
        f"{figures.events:,} events of a live run of {figures.calls:,} calls, {figures.actions:,} actions: {said} "
        "(bar: identical)"
    )
    return Verdict(figure, bars)


async def load(port: int, urls: list[str], calls_to_make: int) -> Counter[str]:
    chance, answers = random.Random(5), Counter[str]()
    calls = set[asyncio.Task[None]]()

    async def one(tier: str, tokens: int) -> None:
        stream = await call(f"http://127.0.0.1:{port}", chat_request(MODEL, tokens, service_tier=tier))
        answers[f"{tier}: {'complete' if stream.complete else stream.status or 'cut'}"] += 1

    for _ in range(calls_to_make):
        tier = chance.choices(["default", "fast", "flex"], [0.6, 0.3, 0.1])[0]
        task = asyncio.create_task(one(tier, chance.randint(5, 80)))
        calls.add(task)
        task.add_done_callback(calls.discard)
        if chance.random() < 0.02:  # a replica drops some streams, before or in the middle of their answers
            await set_faults(chance.choice(urls), die_after_tokens=chance.randint(0, 9), times=2)
        await asyncio.sleep(chance.expovariate(CALLS_PER_S))
    await asyncio.gather(*calls)
    return answers


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 2_400
    folder = Path(tempfile.mkdtemp(prefix="headway-parity-"))
    record, ports, port = folder / "record.jsonl", [free_port() for _ in range(REPLICAS)], free_port()
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    with ExitStack() as stack:
        for one in ports:
            stack.enter_context(scripted(one, model=MODEL, first_token_ms=20, step_ms="1:11.5,8:22", seats=4 * SEATS))
        stack.enter_context(
            gateway(port, folder, model=MODEL, engine_urls=urls, seats=SEATS, tiers=TIERS, curve=CURVE, record=record)
        )
        answers = uvloop.run(load(port, urls, calls))
    result = replay(record)
    console.print("answers:", dict(sorted(answers.items())))
    if result.first_difference:
        console.print(result.first_difference, style="red", markup=False)
    complete = sum(count for how, count in answers.items() if how.endswith("complete"))
    figures = Figures(answers.total(), complete, result.events, result.actions, result.first_difference)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    raise SystemExit(main())
