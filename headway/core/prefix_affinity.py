"""Where calls with the same prompt prefix went last: an engine that has the prefix in its cache need not read it again.

Only a tie-break: seats and floors are decided first. Bounded: the least recently used entry is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_REMEMBERED = 65_536


class PrefixAffinity:
    def __init__(self) -> None:
        self._replica_of: OrderedDict[str, str] = OrderedDict()

    def last(self, affinity: str) -> str | None:
        return self._replica_of.get(affinity)

    def note(self, affinity: str, replica: str) -> None:
        if not affinity:
            return
        self._replica_of[affinity] = replica
        self._replica_of.move_to_end(affinity)
        if len(self._replica_of) > MAX_REMEMBERED:
            self._replica_of.popitem(last=False)
