"""Where a drafter of measured acceptance would pay on other hardware, by the planner's steps. For runs/drafter.sh."""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

from headway.plan.chips import CHIPS
from headway.plan.models import model_shape
from headway.plan.step import Setup, Speculation, seconds_per_token

# A full model, what could draft for it, and the chips it takes.
PAIRS = (
    ("llama-3.1-8b", "llama-3.2-1b", 1),
    ("llama-3.1-70b", "llama-3.2-1b", 4),
    ("llama-3.1-70b", "llama-3.1-8b", 4),
)
CHIP, BATCHES, PAYS = "h100", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1.3


def planned_gain(full: Setup, drafter: Setup, tokens: int, acceptance: float, batch: int) -> float:
    """Tokens of a step over its time, beside a plain step: so many drafts one after the other, then one look at all."""
    plain_s = seconds_per_token(full, batch, with_prompts=False)
    # With nothing accepted a step gives one token; the planner's own drafts (a layer each) are taken out again.
    checking = replace(full, speculation=Speculation(tokens, 0.0))
    checked_s = seconds_per_token(checking, batch, with_prompts=False) / (1 + tokens / full.shape.layers)
    drafts_s = tokens * seconds_per_token(drafter, batch, with_prompts=False)
    return Speculation(tokens, acceptance).tokens_per_step * plain_s / (checked_s + drafts_s)


def each(acceptance: float, tokens: int) -> float:
    """The chance of a guess whose forerunners were all taken, from the share taken of all guesses."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        share = (Speculation(tokens, middle).tokens_per_step - 1) / tokens
        low, high = (middle, high) if share < acceptance else (low, middle)
    return high


def planned_table(acceptance: float, tokens: int) -> tuple[Table, list[str]]:
    """The gains, and in words up to which batch each pair pays."""
    chance = each(acceptance, tokens)
    table = Table("full model", "drafter", *[f"{batch}" for batch in BATCHES])
    table.title = (
        f"planned on {CHIP}, {tokens} ahead, {acceptance:.0%} of guesses taken: times the plain speed, by streams"
    )
    words = []
    for name, small, chips in PAIRS:
        full = Setup(model_shape(name), CHIPS[CHIP], chips, "bf16", prompt_tokens=512, output_tokens=128)
        drafter = replace(full, shape=model_shape(small))
        gains = {batch: planned_gain(full, drafter, tokens, chance, batch) for batch in BATCHES}
        table.add_row(f"{name} on {chips}", small, *[f"{gain:.2f}" for gain in gains.values()])
        pays = [batch for batch, gain in gains.items() if gain >= PAYS]
        words.append(f"{name} with {small}: {f'up to {max(pays)} streams' if pays else 'nowhere'}")
    return table, words
