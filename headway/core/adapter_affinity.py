"""Remembers which replica calls to the same adapter boarded last: its engine may have the adapter's weights loaded.

This is only a preference: it never overrides seats or floors. It is forgotten REMEMBERED_S after the last call.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

REMEMBERED_S: Final = 300.0


class AdapterAffinity:
    def __init__(self, adapters: Set[str]) -> None:
        """`adapters` are the models of the pool that are adapters of its weights."""
        self._used: dict[str, tuple[str, float]] = {}  # by adapter: the replica, and when
        self.change(adapters)

    def change(self, adapters: Set[str]) -> None:
        self._adapters = adapters
        self._used = {model: used for model, used in self._used.items() if model in adapters}

    def last(self, model: str, now: float) -> str | None:
        used = self._used.get(model)
        return used[0] if used is not None and now - used[1] <= REMEMBERED_S else None

    def note(self, model: str, replica: str, now: float) -> None:
        if model in self._adapters:
            self._used[model] = replica, now
