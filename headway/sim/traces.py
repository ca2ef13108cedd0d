"""Calls replayed from a public trace: Azure's (CSV) or Mooncake's (JSON lines)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from headway.core.types import Call, Tier
from headway.errors import SetupError
from headway.sim.loop import Job

Row = tuple[float, int, int, str]  # seconds from the start, prompt tokens, output tokens, affinity key


def read_trace(path: Path, model: str = "m", tier: Tier = "standard") -> Iterator[Job]:
    rows = _mooncake(path) if path.suffix == ".jsonl" else _azure(path)
    try:
        for number, (at, prompt_tokens, tokens, affinity) in enumerate(rows):
            call = Call(f"t{number}", model, tier, affinity=affinity, falls_back=True, prompt_tokens=prompt_tokens)
            yield Job(at, call, max(1, tokens))
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise SetupError(f"{path} is no trace of Azure (CSV) or Mooncake (.jsonl): {error}") from error


def _azure(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        start: datetime | None = None
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or at
            yield (at - start).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]), ""


def _mooncake(path: Path) -> Iterator[Row]:
    """The affinity key is the first two blocks of 512 tokens; nearly all calls share the first one."""
    with path.open("rb") as file:
        for line in file:
            row = msgspec.json.decode(line)
            affinity = "-".join(map(str, row["hash_ids"][:2]))
            yield row["timestamp"] / 1000.0, row["input_length"], row["output_length"], affinity
