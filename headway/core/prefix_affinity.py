"""Remembers which replica calls with the same prompt prefix boarded last: its engine may have the prefix in its cache.
The same for calls to the same adapter, whose weights its engine may have loaded.

This is only a preference: it never overrides seats or floors. A prefix is forgotten REMEMBERED_S after its last use: by
then a busy engine has given its memory to others. At most MAX_REMEMBERED are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from typing import Final

from headway.core.types import Call

REMEMBERED_S: Final = 300.0  # as long as hosted models keep cached prompts by default
MAX_REMEMBERED = 65_536
# At most; more than the one that is added, so that the memory shrinks when calls become fewer.
FORGOTTEN_AT_ONCE: Final = 2


class PrefixAffinity:
    def __init__(self, adapters: Set[str]) -> None:
        self.adapters = adapters  # the models of the pool that are adapters of its weights
        # By model and affinity key: the replica, and when it was used. The least recently used is first. An adapter
        # without a prefix has the key "".
        self._used: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def last(self, call: Call, now: float) -> str | None:
        used = self._used.get((call.model, call.affinity)) if call.affinity else None
        if used is None and call.model in self.adapters:
            used = self._used.get((call.model, ""))
        return used[0] if used is not None and now - used[1] <= REMEMBERED_S else None

    def note(self, call: Call, replica: str, now: float) -> None:
        if call.affinity:
            self._note((call.model, call.affinity), replica, now)
        if call.model in self.adapters:
            self._note((call.model, ""), replica, now)
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._used:
                return
            oldest = next(iter(self._used))
            if len(self._used) <= MAX_REMEMBERED and now - self._used[oldest][1] <= REMEMBERED_S:
                return
            del self._used[oldest]

    def _note(self, key: tuple[str, str], replica: str, now: float) -> None:
        self._used[key] = replica, now
        self._used.move_to_end(key)
