"""Remembers which replica calls with the same prompt prefix boarded last: its engine may have the prefix in its cache.

This is only a preference: it never overrides seats or floors. Bounded: the least recently used entry is dropped.
"""

from __future__ import annotations

from collections import OrderedDict

from headway.core.types import Call

MAX_REMEMBERED = 65_536


class PrefixAffinity:
    def __init__(self) -> None:
        self._replica_of: OrderedDict[tuple[str, str], str] = OrderedDict()  # by model and affinity key

    def last(self, call: Call) -> str | None:
        return self._replica_of.get((call.model, call.affinity)) if call.affinity else None

    def note(self, call: Call, replica: str) -> None:
        if not call.affinity:
            return
        key = (call.model, call.affinity)
        self._replica_of[key] = replica
        self._replica_of.move_to_end(key)
        if len(self._replica_of) > MAX_REMEMBERED:
            self._replica_of.popitem(last=False)
