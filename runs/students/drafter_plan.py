"""Plans on which hardware a drafter with the measured acceptance would gain speed. For runs/drafter.sh."""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

from headway.plan.chips import CHIPS
from headway.plan.models import model_shape
from headway.plan.step import Setup, Speculation, seconds_per_token

# A full model, its drafter, and the number of chips.
PAIRS = (
    ("llama-3.1-8b", "llama-3.2-1b", 1),
    ("llama-3.1-70b", "llama-3.2-1b", 4),
    ("llama-3.1-70b", "llama-3.1-8b", 4),
)
CHIP, BATCHES, PAYS = "h100", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1.3


def planned_gain(full: Setup, drafter: Setup, tokens: int, acceptance: float, batch: int) -> float:
    """Speed ÷ plain speed, if a step drafts `tokens` tokens one after another and then verifies all of them at once."""
    plain_s = seconds_per_token(full, batch, with_prompts=False)
    # Acceptance 0 gives the time of a verifying step; subtract the planner's own drafts (one layer each).
    checking = replace(full, speculation=Speculation(tokens, 0.0))
    checked_s = seconds_per_token(checking, batch, with_prompts=False) / (1 + tokens / full.shape.layers)
    drafts_s = tokens * seconds_per_token(drafter, batch, with_prompts=False)
    return Speculation(tokens, acceptance).tokens_per_step * plain_s / (checked_s + drafts_s)


def each(acceptance: float, tokens: int) -> float:
    """The acceptance of a draft token if all before it were accepted, from the share accepted of all draft tokens."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        share = (Speculation(tokens, middle).tokens_per_step - 1) / tokens
        low, high = (middle, high) if share < acceptance else (low, middle)
    return high


def planned_table(acceptance: float, tokens: int) -> tuple[Table, list[str]]:
    """The gains, and up to which batch each pair gains speed, as text."""
    chance = each(acceptance, tokens)
    table = Table("full model", "drafter", *[f"{batch}" for batch in BATCHES])
    table.title = (
        f"planned on {CHIP}, {tokens} draft tokens, {acceptance:.0%} accepted: times the plain speed, by streams"
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
