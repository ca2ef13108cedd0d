"""What a teacher would have said at every token of the answers: its most likely tokens, computed once and kept.

Loaded by train.py, in the training Python. One pass of the teacher serves every epoch and every seed; with K tokens
kept instead of the whole vocabulary a million answer tokens take 300 MB. Imports nothing of Headway.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BATCH_TOKENS = 4096


@dataclass
class Top:
    ids: list[Any]  # for each row: answer tokens × K
    logps: list[Any]


def teacher_top(
    settings: dict[str, Any], rows: list[dict[str, Any]], as_tokens: Callable[..., Any], say: Callable[..., None]
) -> Top:
    """From the file in the output folder if it is that of the same rows and teacher, else computed."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    named = [settings["teacher"], settings["top_k"], settings["temperature"], rows]
    print_of = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    path = Path(settings.get("teacher_cache") or settings["out"]) / f"teacher-{print_of[:16]}.pt"
    if path.exists():
        kept = torch.load(path, weights_only=True)
        return Top(kept["ids"], kept["logps"])
    top = _computed(settings, rows, as_tokens, say)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".partial")
    torch.save({"ids": top.ids, "logps": top.logps}, unfinished)
    unfinished.rename(path)
    return top


def _computed(
    settings: dict[str, Any], rows: list[dict[str, Any]], as_tokens: Callable[..., Any], say: Callable[..., None]
) -> Top:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found,unused-ignore]

    tokenizer = AutoTokenizer.from_pretrained(settings["teacher"])
    model = AutoModelForCausalLM.from_pretrained(settings["teacher"], dtype=torch.bfloat16).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device)
    texts = [as_tokens(row, tokenizer) for row in rows]
    top = Top([None] * len(rows), [None] * len(rows))
    began, tokens, done = time.monotonic(), 0, 0
    for batch in _batches(texts):
        longest = max(len(prompt) + len(answer) for prompt, answer in (texts[n] for n in batch))
        answers = max(len(texts[n][1]) for n in batch)
        ids, mask = [], []
        for prompt, answer in (texts[n] for n in batch):
            pad = longest - len(prompt) - len(answer)
            ids.append([tokenizer.pad_token_id] * pad + prompt + answer)
            mask.append([0] * pad + [1] * (longest - pad))
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                use_cache=False,
                logits_to_keep=answers + 1,
            ).logits[:, :-1]
        for place, n in enumerate(batch):
            own = logits[place, -len(texts[n][1]) :].float() / settings["temperature"]
            best = torch.log_softmax(own, dim=-1).topk(settings["top_k"], dim=-1)
            # Copies: a view would keep the whole batch's logits.
            top.ids[n], top.logps[n] = best.indices.int().cpu().clone(), best.values.half().cpu().clone()
        tokens, done = tokens + sum(map(sum, mask)), done + len(batch)
        say(teacher=done, of=len(rows), tokens=tokens, s=round(time.monotonic() - began, 1))
    return top


def _batches(texts: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Texts of like length together, up to so many tokens with their padding."""
    batches: list[list[int]] = [[]]
    for n in sorted(range(len(texts)), key=lambda n: len(texts[n][0]) + len(texts[n][1])):
        length = len(texts[n][0]) + len(texts[n][1])
        if batches[-1] and (len(batches[-1]) + 1) * length > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(n)
    return [batch for batch in batches if batch]
