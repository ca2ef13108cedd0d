"""Which speculation an engine should run: none, n-gram, or the student as drafter; and how many tokens by batch.

Pure: takes what was measured side by side, speculative ÷ plain, and decides. vLLM runs one method in an engine, with
another number of tokens for another number of streams, and 0 switches it off there. A method is taken only where no
kind of text is slower with it than the noise of the measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["ngram", "draft_model"]
Gains = Mapping[tuple[str, int], Sequence[float]]  # by kind of text and streams: speculative ÷ plain, pair by pair
WORTH = 1.03  # a smaller gain is not told from noise with a handful of pairs


@dataclass(frozen=True, slots=True)
class Tried:
    method: Method
    tokens: int
    gains: Gains

    def gain(self, streams: int) -> float:
        """The mean over kinds of text, as for a mix of them; 0 where one of them is slower."""
        of_kinds = [statistics.median(gains) for (_, batch), gains in self.gains.items() if batch == streams]
        if not of_kinds or min(of_kinds) < 1.0:
            return 0.0
        return statistics.geometric_mean(of_kinds)


@dataclass(frozen=True, slots=True)
class Choice:
    """`by_streams` has for each measured number of streams the tokens to guess; all 0 where nothing pays."""

    method: Method | None
    by_streams: dict[int, int]

    def schedule(self, seats: int) -> list[tuple[int, int, int]]:
        """As vLLM takes it: from, to, tokens. Between two measured batches the larger one's number holds, so that a
        batch is never given more guesses than the next larger one was found to bear."""
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
            pays = gains[tokens] >= WORTH
            by_streams[streams] = tokens if pays else 0
            score += math.log(gains[tokens]) if pays else 0.0
        if score > best_score:
            best, best_score = Choice(method, by_streams), score
    return best
