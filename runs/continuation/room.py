"""A fast call comes while both engines are busy: streams make way for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import cycle

from rich.console import Console

from runs.continuation.drains import GIVE_UP_S, failed
from runs.continuation.service import TOPICS, Service, Told

STREAMS = 32  # on both engines together: twice as many on each as the floor allows
TOKENS = 120
FAST_TOKENS = 24
BEGUN = 4  # pieces of each answer that its client has, before the fast call comes


@dataclass
class MadeRoom:
    fast: Told
    first_token_s: float = float("nan")  # of the fast call
    ended_s: float = float("nan")  # after it came, the last of the other streams
    moved: int = 0
    failed: int = 0

    @property
    def is_fast(self) -> bool:
        return self.fast.headway.get("tier_served") == "fast"


async def make_room(service: Service, console: Console) -> MadeRoom:
    topics, answers, fast = cycle(TOPICS), [Told(TOKENS) for _ in range(STREAMS)], Told(FAST_TOKENS)
    asking = [asyncio.create_task(service.ask_into(told, next(topics), 1.0)) for told in answers]
    async with asyncio.timeout(GIVE_UP_S):
        while min(told.chunks for told in answers) < BEGUN:
            await asyncio.sleep(0.05)
    came_at = time.perf_counter()
    await service.ask_into(fast, "a fast ship", 1.0, tier="fast")
    made = MadeRoom(fast, fast.first_at - came_at)
    await asyncio.gather(*asking)
    made.ended_s = time.perf_counter() - came_at
    made.moved = sum(one.moves for one in answers)
    made.failed = failed(answers) + bool(fast.error)
    console.print(
        f"a fast call among {STREAMS} streams: first token after {made.first_token_s:.1f} s, {made.moved} moved",
        highlight=False,
    )
    return made
