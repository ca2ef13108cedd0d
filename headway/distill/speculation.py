"""Chooses an engine's speculative decoding: none, n-gram, or the student as drafter, with draft tokens by batch size.

Pure: decides from measured ratios of speed, speculative ÷ plain. vLLM runs one method per engine; its number of draft
tokens may depend on the number of streams, and 0 turns it off there. A method is used only if it slows no kind of text.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["ngram", "draft_model"]
Gains = Mapping[tuple[str, int], Sequence[float]]  # by kind of text and streams: speculative ÷ plain of each pair
MIN_GAIN = 1.03  # a few pairs cannot tell a smaller gain from noise


@dataclass(frozen=True, slots=True)
class Tried:
    method: Method
    tokens: int
    gains: Gains

    def gain(self, streams: int) -> float:
        """The geometric mean over the kinds of text, or 0 if one of them is slower."""
        of_kinds = [statistics.median(gains) for (_, batch), gains in self.gains.items() if batch == streams]
        if not of_kinds or min(of_kinds) < 1.0:
            return 0.0
        return statistics.geometric_mean(of_kinds)


@dataclass(frozen=True, slots=True)
class Choice:
    """`by_streams` maps each measured number of streams to its draft tokens. All are 0 if nothing gains speed."""

    method: Method | None
    by_streams: dict[int, int]

    def schedule(self, seats: int) -> list[tuple[int, int, int]]:
        """vLLM's form: (from streams, to streams, draft tokens). A batch between two measured ones gets the number of
        the larger one, so that no batch drafts more than was measured to pay at that size or above."""
        ranges: list[tuple[int, int, int]] = []
        begin = 1
        for streams, tokens in sorted(self.by_streams.items()):
            if ranges and ranges[-1][2] == tokens:
                ranges[-1] = (ranges[-1][0], streams, tokens)
            else:
                ranges.append((begin, streams, tokens))
            begin = streams + 1
        if begin <= seats:  # beyond what was measured
            ranges.append((begin, seats, 0))
        return ranges


def choose(tried: Sequence[Tried]) -> Choice:
    batches = sorted({streams for one in tried for _, streams in one.gains})
    best, best_score = Choice(None, dict.fromkeys(batches, 0)), 0.0
    for method in sorted({one.method for one in tried}):
        by_streams, score = {}, 0.0
        for streams in batches:
            gains = {one.tokens: one.gain(streams) for one in tried if one.method == method}
            tokens = max(gains, key=lambda count: gains[count])
            pays = gains[tokens] >= MIN_GAIN
            by_streams[streams] = tokens if pays else 0
            score += math.log(gains[tokens]) if pays else 0.0
        if score > best_score:
            best, best_score = Choice(method, by_streams), score
    return best
