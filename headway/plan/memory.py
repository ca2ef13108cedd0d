"""Memory planning: how many streams fit with the weights on a number of chips.

Knows bytes only; step.py knows speed. Weights are split evenly over the chips. Context is split by KV heads; a latent
cache has none, so every chip holds all of it.

Invariant: `seats` streams of full length fit and one more does not, or exceeds what was measured (MAX_SEATS, gains).
"""

from __future__ import annotations

from dataclasses import replace

from headway.errors import SetupError
from headway.plan.chips import Chip, Precision
from headway.plan.shape import ModelShape
from headway.plan.step import Setup

# vLLM uses nine tenths of a chip by default; buffers and the communication library take some (AIConfigurator).
HBM_SHARE, HBM_OVERHEAD_GB = 0.9, 3.9
SRAM_SHARE = 0.85
MAX_SEATS = 512  # nothing was measured beyond it
MAX_SPLIT = 64
MAX_CHIPS = 1 << 16  # a context that does not fit on this many never fits


def usable_gb(chip: Chip) -> float:
    if chip.kind == "sram":
        return chip.memory_gb * SRAM_SHARE
    return max(0.0, chip.memory_gb * HBM_SHARE - (HBM_OVERHEAD_GB if chip.kind == "hbm" else 0.0))


def weights_held(chip: Chip, precision: Precision, shape: ModelShape) -> float:
    """Return how many billion weights of this model one chip holds without context."""
    return usable_gb(chip) / (shape.weight_bytes(precision) / shape.params)


def seats(setup: Setup) -> int:
    """Return how many streams of full length fit with the weights; 0 if the weights do not fit. With gains, at most as
    many as were measured."""
    shape, n = setup.shape, setup.chips
    most = MAX_SEATS if setup.gains is None else setup.gains.most_streams
    free = usable_gb(setup.chip) * 1e9 - shape.weight_bytes(setup.precision) / n
    kept = shape.kv_bytes(setup.prompt_tokens + setup.output_tokens, setup.precision)
    # SRAM chips are a pipeline of layers: each holds the context of its own layers, latent or not.
    a_stream = kept / n if setup.chip.kind == "sram" else kept / min(n, shape.kv_heads)
    return max(0, min(most, int(free / a_stream)))


def fewest_chips(setup: Setup) -> int:
    """Return the fewest chips that hold the weights and one stream, whether or not they can be linked."""
    n = 1
    while seats(replace(setup, chips=n)) < 1:
        n = n * 2 if setup.chip.kind != "sram" else n + max(1, n // 64)
        if n > MAX_CHIPS:
            tokens = setup.prompt_tokens + setup.output_tokens
            raise SetupError(
                f"the context of one stream of {tokens:,} tokens does not fit a {setup.chip.name}: "
                "use shorter prompts or answers."
            )
    return n


def splits(setup: Setup) -> list[int]:
    """Return the numbers of chips to consider: those that hold the model within one scale-up domain."""
    fewest = fewest_chips(setup)
    if setup.chip.kind == "sram":
        # More chips do not make a stream faster; they make room for more streams.
        return [n for n in (fewest, fewest * 2) if n <= setup.chip.world]
    return [n for n in (2**power for power in range(7)) if fewest <= n <= min(setup.chip.world, MAX_SPLIT)]
