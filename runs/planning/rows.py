"""Public measurements of engines in AIConfigurator's CSV form, as what the planner predicts. See runs/plan-accuracy.sh.

Which rows are in scope is decided here, by what a row says of its configuration, never by how well it is predicted.
Rows whose prompts are read on other chips (disaggregated) are not in the committed table; data/README.md counts them.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from headway.plan.chips import CHIPS, Precision
from headway.plan.models import model_shape
from headway.plan.step import Engine, Setup

DATA = Path(__file__).parents[2] / "data"
SAMPLE, REFS = DATA / "silicon_sample.csv", DATA / "silicon_refs.csv"
MODELS = {
    "MiniMax-M2.5": "minimax-m2.5",
    "Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "DeepSeek-V3": "deepseek-v3",
    "DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "DeepSeek-R1": "deepseek-v3",
    "DeepSeek-R1-NVFP4": "deepseek-v3",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Kimi-K2.5": "kimi-k2.5",
    "gpt-oss-120b": "gpt-oss-120b",
    "GLM-5": "glm-5",
}
SHAPES = {name: model_shape(name) for name in set(MODELS.values())}
MOST_TTFT_MS = 3000.0
MOST_TP = 8

# Why a row is not in scope, in the order in which it is asked.
R1 = "DeepSeek-R1: speculative and plain decoding mixed, without a label"
MANY_CHIPS = "tp_size above 8: several nodes, or tp times ep written into it"
UNRECORDED = "parallelism recorded as 0 chips: not known what was run"
DP_ATTENTION = "attention replicated (data parallel): the batch of a replica is not the row's"
QUEUED = "first token after 3 s or more: calls waited, the batch was not what is written"


@dataclass(frozen=True, slots=True)
class Row:
    setup: Setup
    batch: int
    measured_s: float
    model: str
    chip: str
    engine: str
    lengths: str


def read_rows(path: Path) -> tuple[list[Row], Counter[str]]:
    """The rows in scope, and how many are not, by their first reason."""
    rows: list[Row] = []
    out: Counter[str] = Counter()
    for raw in _raw_rows(path):
        why = _reasons(raw)
        if why:
            out[why[0]] += 1
        else:
            rows.append(_row(raw))
    return rows, out


def rows_out_only_for(path: Path, reason: str) -> list[Row]:
    """What would be in scope but for this: scored beside the others, so that nothing is hidden by the scope."""
    return [_row(raw) for raw in _raw_rows(path) if _reasons(raw) == [reason]]


def _raw_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _reasons(raw: dict[str, str]) -> list[str]:
    chips, moe_chips = int(raw["tp_size"]), int(raw["moe_tp_size"] or 1) * int(raw["moe_ep_size"] or 1)
    found = {
        R1: "DeepSeek-R1" in raw["model_path"],
        MANY_CHIPS: chips > MOST_TP,
        UNRECORDED: "0" in (raw["moe_tp_size"], raw["moe_ep_size"]),
        DP_ATTENTION: raw["attention_dp_size"] not in {"", "0", "1"} or moe_chips > chips,
        QUEUED: float(raw["silicon_ttft_ms"]) >= MOST_TTFT_MS,
    }
    return [reason for reason, applies in found.items() if applies]


def _row(raw: dict[str, str]) -> Row:
    engine = next(one for one in get_args(Engine) if one == raw["backend"])
    precision: Precision = next(one for one in get_args(Precision) if one == (raw["precision"] or "bf16"))
    model = MODELS[raw["model_path"].rpartition("/")[2]]
    chip = raw["system"].removesuffix("_sxm")
    setup = Setup(
        SHAPES[model], CHIPS[chip], int(raw["tp_size"]), precision, engine, int(raw["isl"]), int(raw["osl"]),
        max(1, int(raw["moe_ep_size"] or 1)),
    )  # fmt: skip
    seconds = float(raw["silicon_tpot_ms"]) / 1000
    return Row(setup, int(raw["batch_size"]), seconds, model, chip, engine, f"{raw['isl']}/{raw['osl']}")
