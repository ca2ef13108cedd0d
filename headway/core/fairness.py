"""Held calls of one tier: in order of arrival within a tenant; between tenants, who has been served least comes first.

Virtual token counters: each tenant's counter grows by the tokens it was served. A tenant that comes back after a pause
is lifted to the least of those that are waiting, so that nobody can save up. Knows nothing of seats or replicas.

Invariant: every held call is in its tenant's line and in the heap of deadlines.
Cost: O(log held) per call. Calls that leave before their deadline stay in the heap until most of it is such calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headway.core.types import Call


@dataclass(slots=True)
class HeldCall:
    call: Call
    until: float
    avoid: Set[str]  # shared with the machine: replicas that failed this call


SPARE_DEADLINES = 64  # of calls that are gone may be in a heap, however few are held


class FairQueue:
    def __init__(self) -> None:
        self.held_of: dict[str, int] = {}  # by model; no zeros
        self._held: dict[str, HeldCall] = {}
        self._deadlines: list[tuple[float, int, HeldCall]] = []  # heap; the number keeps calls in order of arrival
        self._pushed = 0
        self._lines: dict[str, OrderedDict[str, HeldCall]] = {}
        self._served: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []  # heap of (served, tenant); entries may be out of date

    def __len__(self) -> int:
        return len(self._held)

    def push(self, held: HeldCall) -> None:
        tenant = held.call.tenant
        line = self._lines.get(tenant)
        if line is None:
            least = self._least_served()
            if least is not None:
                self._served[tenant] = max(self._served.get(tenant, 0.0), least)
            line = self._lines[tenant] = OrderedDict()
            heappush(self._order, (self._served.get(tenant, 0.0), tenant))
        line[held.call.id] = held
        self._held[held.call.id] = held
        self.held_of[held.call.model] = self.held_of.get(held.call.model, 0) + 1
        self._pushed += 1
        heappush(self._deadlines, (held.until, self._pushed, held))
        if len(self._deadlines) > 2 * len(self._held) + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_held(entry[2])]
            heapify(self._deadlines)

    def first(self) -> HeldCall | None:
        """The call that is next, if a seat is found for it."""
        tenant = self._first_tenant()
        return next(iter(self._lines[tenant].values())) if tenant is not None else None

    def remove(self, call_id: str) -> bool:
        held = self._held.pop(call_id, None)
        if held is None:
            return False
        line = self._lines[held.call.tenant]
        del line[call_id]
        if not line:
            del self._lines[held.call.tenant]
        model = held.call.model
        self.held_of[model] -= 1
        if not self.held_of[model]:
            del self.held_of[model]
        return True

    def charge(self, tenant: str, tokens: float) -> None:
        self._served[tenant] = served = self._served.get(tenant, 0.0) + tokens
        if tenant in self._lines:
            heappush(self._order, (served, tenant))

    def expired(self, now: float) -> list[Call]:
        """Take out the calls whose time is up."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            held = heappop(self._deadlines)[2]
            if self._is_held(held):
                self.remove(held.call.id)
                due.append(held.call)
        return due

    def _is_held(self, held: HeldCall) -> bool:
        return self._held.get(held.call.id) is held

    def _first_tenant(self) -> str | None:
        while self._order:
            served, tenant = self._order[0]
            if tenant in self._lines and served == self._served.get(tenant, 0.0):
                return tenant
            heappop(self._order)
        return None

    def _least_served(self) -> float | None:
        tenant = self._first_tenant()
        return self._served.get(tenant, 0.0) if tenant is not None else None
