"""The calls of Mooncake's conversation trace (data/README.md), with the blocks of their prompts."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from headway.core.types import Call, Tier
from headway.sim.loop import Job
from headway.sim.traces import with_blocks

TRACE = Path(__file__).parent.parent.parent / "data" / "mooncake_conversations.csv"


def conversations(faster: float, fast_share: float = 0.0, seed: int = 0) -> list[Job]:
    """The calls come `faster` times as fast as they did. A share of the conversations, drawn from the seed, is fast. A
    conversation is what begins with the same two blocks: nearly all prompts share the first one."""
    chance, is_fast = random.Random(f"{seed} fast"), dict[tuple[int, ...], bool]()
    before: list[int] = []  # by block: the one that it always follows; -1 for the first of a prompt
    jobs = []
    with TRACE.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            last = int(row["known_block"])
            for _ in range(int(row["new_blocks"])):
                before.append(last)
                last = len(before) - 1
            blocks = []
            while last >= 0:
                blocks.append(last)
                last = before[last]
            blocks.reverse()
            beginning = tuple(blocks[:2])
            if beginning not in is_fast:
                is_fast[beginning] = chance.random() < fast_share
            tier: Tier = "fast" if is_fast[beginning] else "standard"
            call = Call(f"t{number}", "m", tier, prompt_tokens=int(row["prompt_tokens"]))
            job = Job(int(row["at_ms"]) / 1000.0 / faster, call, max(1, int(row["output_tokens"])))
            jobs.append(with_blocks(job, tuple(blocks)))
    return jobs
