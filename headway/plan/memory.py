"""What fits where: weights and the context of so many streams, in the memory of so many chips.

Knows bytes only; speed is step.py's. Weights are split evenly over the chips; context is split over the heads that keep
it, and a latent, which has none, is kept whole on every chip.

Invariant: `seats` streams of full length fit, one more does not (or the engine would not schedule it).
"""

from __future__ import annotations

from dataclasses import replace

from headway.errors import SetupError
from headway.plan.chips import Chip, Precision
from headway.plan.shape import ModelShape
from headway.plan.step import Setup

# vLLM takes nine tenths of a chip by default; of that, buffers and the links' library take some (AIConfigurator).
HBM_SHARE, HBM_OVERHEAD_GB = 0.9, 3.9
SRAM_SHARE = 0.85
MOST_SEATS = 512  # beyond it nothing was measured
MOST_SPLIT = 64
NO_END = 1 << 16  # chips: a context that does not fit then never does


def usable_gb(chip: Chip) -> float:
    if chip.kind == "sram":
        return chip.memory_gb * SRAM_SHARE
    return max(0.0, chip.memory_gb * HBM_SHARE - (HBM_OVERHEAD_GB if chip.kind == "hbm" else 0.0))


def weights_held(chip: Chip, precision: Precision, shape: ModelShape) -> float:
    """How many billion weights of such a model one chip holds, without any context."""
    return usable_gb(chip) / (shape.weight_bytes(precision) / shape.params)


def seats(setup: Setup) -> int:
    """How many streams of full length fit beside the weights; 0 where these do not."""
    shape, n = setup.shape, setup.chips
    free = usable_gb(setup.chip) * 1e9 - shape.weight_bytes(setup.precision) / n
    kept = shape.kv_bytes(setup.prompt_tokens + setup.output_tokens, setup.precision)
    # SRAM chips are a pipeline of layers: each keeps the context of its own, latent or not.
    a_stream = kept / n if setup.chip.kind == "sram" else kept / min(n, shape.kv_heads)
    return max(0, min(MOST_SEATS, int(free / a_stream)))


def fewest_chips(setup: Setup) -> int:
    """That hold the weights and one stream, whether or not so many are linked."""
    n = 1
    while seats(replace(setup, chips=n)) < 1:
        n = n * 2 if setup.chip.kind != "sram" else n + max(1, n // 64)
        if n > NO_END:
            tokens = setup.prompt_tokens + setup.output_tokens
            raise SetupError(
                f"the context of one stream of {tokens:,} tokens does not fit a {setup.chip.name}: plan less."
            )
    return n


def splits(setup: Setup) -> list[int]:
    """The numbers of chips worth looking at: those that hold the model inside one scale-up domain."""
    fewest = fewest_chips(setup)
    if setup.chip.kind == "sram":
        # More of them make a stream no faster; they give room for more streams.
        return [n for n in (fewest, fewest * 2) if n <= setup.chip.world]
    return [n for n in (2**power for power in range(7)) if fewest <= n <= min(setup.chip.world, MOST_SPLIT)]
