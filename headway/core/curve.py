"""The curve: the time per token of each stream on a replica that carries b streams with k tokens of context in all.

    seconds per token (b, k) = a + c*b + d*sqrt(b) + e*k

a is the time to read the weights, which does not depend on the batch; c is what each stream adds; d is a part that
grows more slowly with the batch. Three measured points are enough to fit these (docs/design/0002). e is the time to
read the keys and values of one token of context: the streams' prompts and what was generated so far. One point with
long contexts is enough to fit it. This module is arithmetic only: measurements are made elsewhere.

Invariant: the fitted curve never falls as the batch or the context grows, so "the largest batch that keeps a floor" is
well defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, log, sqrt

Point = tuple[int, float]  # batch, seconds per token; the context is short and counts as none
LongPoint = tuple[int, float, int]  # batch, seconds per token, tokens of context of each stream

# A promise must be kept for every stream, not only on average. The margin covers streams slower than the curve.
DEFAULT_MARGIN = 0.1


@dataclass(slots=True)
class Curve:
    a: float
    c: float
    d: float
    e: float = 0.0

    def seconds_per_token(self, batch: int, context: int = 0) -> float:
        """`context` is the tokens of all streams together."""
        return self.a + self.c * batch + self.d * sqrt(batch) + self.e * context

    def speed_tps(self, batch: int) -> float:
        """Tokens per second of one stream in a batch of this size, with short contexts."""
        return 1.0 / self.seconds_per_token(batch)

    def largest_batch(self, floor_tps: float, seats: int, margin: float = DEFAULT_MARGIN) -> int:
        """The largest batch, at most `seats`, at which a stream with a short context gets the floor plus the margin;
        0 if there is none."""
        allowed_s = longest_s(floor_tps, margin)
        low, high = 0, seats
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds_per_token(middle) <= allowed_s:
                low = middle
            else:
                high = middle - 1
        return low

    def emptying_s(self, streams: int, left: int) -> float:
        """Seconds, for each token of the mean answer, until only `left` of the streams are left: the integral of the
        time per token over the batch, divided by the batch. Contexts count as short."""
        left = max(1, left)
        if left >= streams:
            return 0.0
        return self.a * log(streams / left) + self.c * (streams - left) + 2 * self.d * (sqrt(streams) - sqrt(left))

    def slower(self, factor: float) -> Curve:
        """Return the same curve with every step `factor` times as long."""
        return Curve(self.a * factor, self.c * factor, self.d * factor, self.e * factor)


def longest_s(floor_tps: float, margin: float) -> float:
    """The longest time per token that gives the floor plus the margin."""
    return 1.0 / (floor_tps * (1.0 + margin))


def fit(points: list[Point], long_points: Sequence[LongPoint] = ()) -> Curve:
    """Fit a curve by least squares of the relative error, with no negative part. One point gives a flat curve. The
    context's part is fitted after the others, to the long points alone; without any it is 0."""
    batches = {batch for batch, _ in points}
    if not points or any(batch < 1 or seconds <= 0 for batch, seconds in points):
        raise ValueError("a curve needs points (batch, seconds per token) with batch >= 1 and seconds > 0")
    if any(batch < 1 or seconds <= 0 or context < 1 for batch, seconds, context in long_points):
        raise ValueError("a long point needs (batch, seconds per token, context) with batch and context >= 1")
    best, best_error = Curve(max(seconds for _, seconds in points), 0.0, 0.0), inf
    # Try every combination of the three parts, skip fits with a negative part, and take the one with the least error.
    for count in range(1, min(3, len(batches)) + 1):
        for parts in combinations(range(3), count):
            solution = _least_squares(points, parts)
            if solution is None or min(solution) < 0:
                continue
            curve = Curve(*(solution[parts.index(part)] if part in parts else 0.0 for part in range(3)))
            error = sum((curve.seconds_per_token(batch) / seconds - 1.0) ** 2 for batch, seconds in points)
            if error < best_error - 1e-12:
                best, best_error = curve, error
    best.e = _context_part(best, long_points)
    return best


def _context_part(curve: Curve, long_points: Sequence[LongPoint]) -> float:
    """Seconds per token of context: what the long points took longer than the curve without context."""
    product = square = 0.0
    for batch, seconds, context in long_points:
        tokens, longer = batch * context / seconds, 1.0 - curve.seconds_per_token(batch) / seconds
        product += tokens * longer
        square += tokens * tokens
    return max(0.0, product / square) if square else 0.0


def _least_squares(points: list[Point], parts: tuple[int, ...]) -> list[float] | None:
    """Solve for the chosen parts of (1, b, sqrt b) by the normal equations, each row divided by its measured value."""
    rows = [[(1.0, float(batch), sqrt(batch))[part] / seconds for part in parts] for batch, seconds in points]
    size = len(parts)
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    right = [sum(row[i] for row in rows) for i in range(size)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(matrix[i][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        for other in range(size):
            if other != column:
                share = matrix[other][column] / matrix[column][column]
                matrix[other] = [x - share * y for x, y in zip(matrix[other], matrix[column], strict=True)]
                right[other] -= share * right[column]
    return [right[i] / matrix[i][i] for i in range(size)]
