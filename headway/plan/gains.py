"""Gains of speculative decoding by batch: how many times as fast a stream is as without, as others have measured.

Each series is one model on one chip with one setting; data/speculation_gains.csv has the source of each figure. Gains
depend on the text and on the model, so those of another model are an estimate. Does not know steps, chips or money.

Invariant: nothing is assumed that makes speculation look better than it was measured. Between two batches the gain is
interpolated over the logarithm of the batch. It never rises with the batch. Below the first batch it is that of the
first. Beyond the last there is none: it is 1, or the last if that is less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

Method = Literal["eagle3", "mtp", "dflash"]


@dataclass(frozen=True, slots=True)
class Gains:
    method: Method
    model: str
    chip: str
    engine: str
    setting: str  # how many tokens are drafted
    by_batch: tuple[tuple[int, float], ...]  # in the order of batches

    @property
    def most_streams(self) -> int:
        """The largest batch that was measured."""
        return self.by_batch[-1][0]

    def at(self, batch: float) -> float:
        lowest = self.by_batch[0][1]
        for (begin, first), (end, last) in zip(self.by_batch, self.by_batch[1:], strict=False):
            if begin >= batch:
                return lowest
            share = min(1.0, log(batch / begin) / log(end / begin))
            lowest = min(lowest, first + (last - first) * share)
        return lowest if batch <= self.most_streams else min(1.0, lowest)

    def __str__(self) -> str:
        batches = f"{self.by_batch[0][0]} to {self.most_streams} streams"
        return f"{self.model} on {self.chip} with {self.engine}, {self.setting}, {batches}"


def gains_for(method: Method, chip: str) -> Gains:
    """The series of this method on this chip, or on any if there is none. Of several, the one that ends lowest."""
    known = [one for one in SERIES if one.method == method]
    return min([one for one in known if one.chip == chip] or known, key=lambda one: one.by_batch[-1][1])


SERIES: tuple[Gains, ...] = (
    Gains("eagle3", "llama-3.1-8b", "h100", "sglang", "3 tokens",
          ((2, 1.81), (4, 1.82), (8, 1.62), (16, 1.48), (24, 1.39), (32, 1.32), (48, 1.38), (56, 1.34), (64, 1.38))),
    Gains("eagle3", "llama-3.1-8b", "rtx-3090", "vllm", "2 tokens",
          ((2, 1.75), (4, 1.68), (8, 1.58), (16, 1.49), (24, 1.42), (32, 1.36), (48, 1.21), (56, 1.01))),
    Gains("mtp", "qwen3.5-27b", "b200", "sglang", "block of 16",
          ((1, 2.012), (8, 1.664), (16, 1.393), (32, 0.933))),
    Gains("mtp", "qwen3.5-27b", "b200", "sglang", "block of 8",
          ((1, 2.5), (8, 2.09), (16, 1.891), (32, 1.512))),
    Gains("mtp", "gemma-4-31b", "h100", "vllm", "8 tokens",
          ((1, 3.109), (16, 2.541))),
    Gains("mtp", "gemma-4-26b-a4b", "h100", "vllm", "8 tokens",
          ((1, 1.492), (16, 1.854))),
    Gains("dflash", "qwen3.5-27b", "b200", "sglang", "block of 16",
          ((1, 3.036), (8, 2.322), (16, 1.783), (32, 1.258))),
    Gains("dflash", "qwen3.5-27b", "b200", "sglang", "block of 8",
          ((1, 2.976), (8, 2.404), (16, 2.159), (32, 1.714))),
    Gains("dflash", "qwen3.6-35b-a3b", "b200", "sglang", "block of 16",
          ((1, 1.897), (8, 1.638), (16, 1.59), (32, 1.532))),
    Gains("dflash", "qwen3.6-35b-a3b", "b200", "sglang", "block of 8",
          ((1, 1.88), (8, 1.664), (16, 1.688), (32, 1.793))),
    Gains("dflash", "gemma-4-31b", "h100", "vllm", "15 tokens",
          ((1, 3.03), (16, 1.933))),
    Gains("dflash", "gemma-4-26b-a4b", "h100", "vllm", "15 tokens",
          ((1, 1.73), (16, 2.007))),
)  # fmt: skip
