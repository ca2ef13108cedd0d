"""Finds a small plan that still fails, by leaving out ever smaller pieces of it (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(plan: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """No piece of the result can be left out alone, as far as one try of each tells; empty if the plan does not fail.
    A plan that fails only sometimes is shrunk less."""
    if not fails(plan):
        return []
    left, pieces = list(plan), 2
    while len(left) > 1:
        size = -(-len(left) // pieces)
        for start in range(0, len(left), size):
            without = left[:start] + left[start + size :]
            if without and fails(without):
                left, pieces = without, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), 2 * pieces)
    return left
