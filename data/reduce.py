"""Makes the tables of this folder again from the files they come from: `python data/reduce.py FOLDER`.

FOLDER holds the originals under the names that data/README.md gives. Only standard library, no headway: whoever wants
to check the tables needs nothing else.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from datetime import datetime
from itertools import islice
from pathlib import Path

DATA = Path(__file__).parent
# What the planner reads of a row, and what tells one configuration from another.
COLUMNS = (
    "backend", "backend_version", "model_path", "system", "precision", "isl", "osl", "gemm_quant_mode",
    "moe_quant_mode", "batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "silicon_ttft_ms",
    "silicon_tpot_ms",
)  # fmt: skip
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
TRACE_CALLS = 1000


def reduce_measurements(original: Path, reduced: Path) -> None:
    """Rows whose prompts and answers are computed on the same chips; times to six digits."""
    with original.open(newline="", encoding="utf-8") as source, reduced.open("w", encoding="utf-8") as target:
        writer = csv.DictWriter(target, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in csv.DictReader(source):
            if row["mode"] == "agg":
                writer.writerow(row | {name: f"{float(row[name]):.6g}" for name in MEASURED})


def reduce_azure(original: Path, reduced: Path) -> None:
    with original.open(newline="", encoding="utf-8") as source, reduced.open("w", encoding="utf-8") as target:
        csv.writer(target, lineterminator="\n").writerows(islice(csv.reader(source), 1 + TRACE_CALLS))


def count_azure_minutes(original: Path, reduced: Path) -> None:
    """The calls of each minute; the last, which is not whole, is left out."""
    with original.open(newline="", encoding="utf-8") as source:
        times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in csv.DictReader(source)]
    calls = Counter(int((at - times[0]).total_seconds() // 60) for at in times)
    with reduced.open("w", encoding="utf-8") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(("minute", "calls"))
        writer.writerows((minute, calls[minute]) for minute in range(max(calls)))


def reduce_mooncake(original: Path, reduced: Path) -> None:
    """Blocks are numbered in the order in which they appear, and each follows always the same block. So a prompt is
    known by its last block that had appeared before, and by how many new ones it has."""
    before: dict[int, int] = {}
    with original.open(encoding="utf-8") as source, reduced.open("w", encoding="utf-8") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(("at_ms", "prompt_tokens", "output_tokens", "known_block", "new_blocks"))
        for line in source:
            call = json.loads(line)
            blocks = call["hash_ids"]
            known = [block for block in blocks if block in before]
            new = range(len(before), len(before) + len(blocks) - len(known))
            path = [-1, *known, *new]
            assert blocks == path[1:], "new blocks do not follow known ones"
            assert all(before.setdefault(block, path[place]) == path[place] for place, block in enumerate(blocks))
            writer.writerow(
                (call["timestamp"], call["input_length"], call["output_length"], path[len(known)], len(new))
            )


def main() -> None:
    originals = Path(sys.argv[1])
    reduce_measurements(originals / "silicon_sample.csv", DATA / "silicon_sample.csv")
    reduce_measurements(originals / "silicon_refs.csv", DATA / "silicon_refs.csv")
    reduce_azure(originals / "AzureLLMInferenceTrace_conv.csv", DATA / "azure_conversations.csv")
    count_azure_minutes(originals / "AzureLLMInferenceTrace_conv.csv", DATA / "azure_minutes.csv")
    reduce_mooncake(originals / "conversation_trace.jsonl", DATA / "mooncake_conversations.csv")


if __name__ == "__main__":
    main()
