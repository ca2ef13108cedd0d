"""Calls replayed from a public trace: Azure's (CSV) or Mooncake's (JSON lines)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from itertools import takewhile
from pathlib import Path

import msgspec

from headway.core.types import KEYED_TOKENS, Call, Tier
from headway.errors import SetupError
from headway.sim.cache import BLOCK_TOKENS
from headway.sim.loop import Job

Row = tuple[float, int, int, tuple[int, ...]]  # seconds from the start, prompt tokens, output tokens, prompt's blocks


def read_trace(path: Path, model: str = "m", tier: Tier = "standard") -> Iterator[Job]:
    rows = _mooncake(path) if path.suffix == ".jsonl" else _azure(path)
    try:
        for number, (at, prompt_tokens, tokens, blocks) in enumerate(rows):
            call = Call(f"t{number}", model, tier, falls_back=True, prompt_tokens=prompt_tokens)
            yield with_blocks(Job(at, call, max(1, tokens)), blocks)
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise SetupError(f"{path} is no trace of Azure (CSV) or Mooncake (.jsonl): {error}") from error


def with_blocks(job: Job, blocks: tuple[int, ...]) -> Job:
    """The call with the keys that the gateway would find if its prompt has these blocks."""
    tokens = min(job.call.prompt_tokens, BLOCK_TOKENS * len(blocks))
    job.blocks, job.call.prefix_tokens = blocks, tuple(takewhile(tokens.__ge__, KEYED_TOKENS))
    job.call.prefix_keys = tuple(
        blocks[(count - 1) // BLOCK_TOKENS] * len(KEYED_TOKENS) + place
        for place, count in enumerate(job.call.prefix_tokens)
    )
    return job


def _azure(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        start: datetime | None = None
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or at
            yield (at - start).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]), ()


def _mooncake(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            row = msgspec.json.decode(line)
            yield row["timestamp"] / 1000.0, row["input_length"], row["output_length"], tuple(row["hash_ids"])
