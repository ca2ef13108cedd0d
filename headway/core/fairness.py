"""Held calls of one tier. The tenant that was served the fewest tokens is next; its calls are in order of arrival.

Virtual token counters: each tenant's counter grows by the tokens it was served. When a tenant returns after a pause,
its counter is raised to the smallest of the waiting tenants, so that a pause does not earn priority. If no tenant
waits, it is raised to the largest of all: there were seats for everybody, so nobody has to be made up for it. A call
that did not fit where others might is set aside, so that the calls behind it can be tried. This module knows nothing
about replicas.

Invariant: every held call is in its tenant's line or set aside, in the heap of deadlines and, unless it must avoid a
replica, in that of its kind.
Cost: O(log held) per call. Entries of calls that have left stay in a heap until most of its entries are stale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Final

from headway.core.learnt import MAX_TENANTS, LearntTenant, within
from headway.core.types import Call

MOST_SERVED = 1e15  # tokens of a tenant, taken from another core
SPARE: Final = 64  # stale entries that a heap may always have, however few calls are held


@dataclass(slots=True)
class HeldCall:
    call: Call
    until: float
    avoid: Set[str]  # replicas that failed this call; the set is shared with the machine


class FairQueue:
    def __init__(self) -> None:
        self.by_model: dict[str, int] = {}  # calls held
        self._by_tenant: dict[str, dict[str, int]] = {}  # the same, by model and tenant; no zeros
        self.by_choices: dict[int, int] = {}
        self.seats = 0  # that the held calls need
        self._held: dict[str, HeldCall] = {}
        # Heaps; the number orders equal entries by arrival.
        self._deadlines: list[tuple[float, int, HeldCall]] = []
        self._by_prompt: dict[tuple[str, int], list[tuple[int, int, HeldCall]]] = {}  # by model and choices
        self._pushed = 0
        self._lines: dict[str, OrderedDict[str, HeldCall]] = {}
        self._aside: OrderedDict[str, HeldCall] = OrderedDict()  # did not fit; the call tried last comes last
        self._served: dict[str, float] = {}
        self._most = 0.0  # of any tenant
        self._order: list[tuple[float, str]] = []  # heap of (served, tenant); entries may be stale

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._held

    def __iter__(self) -> Iterator[HeldCall]:
        return iter(self._held.values())

    def has_place(self, call: Call, max_held: int) -> bool:
        """Whether the call may wait. `max_held` calls of a model may; if they do, only a tenant with less than an equal
        share of them may have another one wait, so that no tenant fills the queue for all. `n` tenants that come one
        after the other hold at most `max_held` times 1 + 1/2 + ... + 1/n calls."""
        if self.by_model.get(call.model, 0) < max_held:
            return True
        held = self._by_tenant.get(call.model, {})
        tenants = len(held) + (call.tenant not in held)
        return (held.get(call.tenant, 0) + 1) * tenants <= max_held

    def push(self, held: HeldCall) -> None:
        tenant = held.call.tenant
        line = self._lines.get(tenant)
        if line is None:
            least = self._least_served()
            self._served[tenant] = served = max(self._served.get(tenant, 0.0), self._most if least is None else least)
            line = self._lines[tenant] = OrderedDict()
            heappush(self._order, (served, tenant))
        line[held.call.id] = held
        self._held[held.call.id] = held
        self._count(held.call, +1)
        self._pushed += 1
        heappush(self._deadlines, (held.until, self._pushed, held))
        if len(self._deadlines) > 2 * len(self._held) + SPARE:
            self._deadlines = [entry for entry in self._deadlines if self._is_held(entry[2])]
            heapify(self._deadlines)
        if not held.avoid:  # if a call that must avoid a replica does not fit, others of its kind may
            self._push_by_prompt(held)

    def _push_by_prompt(self, held: HeldCall) -> None:
        kind = (held.call.model, held.call.choices)
        alike = self._by_prompt.setdefault(kind, [])
        heappush(alike, (held.call.prompt_tokens, self._pushed, held))
        if len(alike) > 2 * len(self._held) + SPARE:
            self._by_prompt[kind] = alike = [entry for entry in alike if self._is_held(entry[2])]
            heapify(alike)

    def first(self, passed_over: Set[str] = frozenset()) -> HeldCall | None:
        """The next call in line. Tenants that are passed over keep their place."""
        skipped = []
        while (tenant := self._first_tenant()) is not None and tenant in passed_over:
            skipped.append(heappop(self._order))
        for entry in skipped:
            heappush(self._order, entry)
        return next(iter(self._lines[tenant].values())) if tenant is not None else None

    def candidates(self, again: int, others: int, of_one_tenant: int) -> Iterator[HeldCall]:
        """Yield the calls to try, in order: at most `again` calls that were set aside, then those in line. A call that
        is still held when the next one is requested did not fit and is set aside. After `of_one_tenant` such calls the
        tenant is passed over. Ends after `others` such calls in line."""
        for held in list(islice(self._aside.values(), again)) if self._aside else ():
            yield held
            if self._is_held(held):
                self._aside.move_to_end(held.call.id)
        misses: dict[str, int] = {}
        passed_over: set[str] = set()
        while others and (first := self.first(passed_over)) is not None:
            yield first
            if self._is_held(first):
                self._leave_line(first)
                self._aside[first.call.id] = first
                others -= 1
                tenant = first.call.tenant
                misses[tenant] = misses.get(tenant, 0) + 1
                if misses[tenant] == of_one_tenant:
                    passed_over.add(tenant)

    def shortest_prompts(self) -> Iterator[HeldCall]:
        """Yield the call with the shortest prompt of each model and number of choices: if it does not fit, no other
        call of its kind does. If it is no longer held when the next one is requested, the next shortest follows."""
        for alike in self._by_prompt.values():
            while alike:
                held = alike[0][2]
                if not self._is_held(held):
                    heappop(alike)
                    continue
                yield held
                if self._is_held(held):
                    break

    def _leave_line(self, held: HeldCall) -> None:
        line = self._lines[held.call.tenant]
        del line[held.call.id]
        if not line:
            del self._lines[held.call.tenant]

    def remove(self, call_id: str) -> bool:
        held = self._held.pop(call_id, None)
        if held is None:
            return False
        if self._aside.pop(call_id, None) is None:
            self._leave_line(held)
        self._count(held.call, -1)
        return True

    def charge(self, tenant: str, tokens: float) -> None:
        self._served[tenant] = served = self._served.get(tenant, 0.0) + tokens
        self._most = max(self._most, served)
        if tenant in self._lines:
            heappush(self._order, (served, tenant))

    def learnt(self, max_tenants: int) -> list[LearntTenant]:
        """The tokens that tenants were served. Of more tenants than this, those that were served the most: the others
        begin anew, as if they had been served as much as the least of these."""
        if len(self._served) <= max_tenants:
            return [LearntTenant(tenant, served) for tenant, served in self._served.items()]
        kept = sorted(self._served.items(), key=itemgetter(1), reverse=True)[:max_tenants]
        return [LearntTenant(tenant, served - kept[-1][1]) for tenant, served in kept]

    def recall(self, tenants: list[LearntTenant]) -> None:
        """Add what another core has served."""
        for one in tenants[:MAX_TENANTS]:
            self.charge(one.name, within(one.served, 0.0, MOST_SERVED))

    def next_deadline(self) -> float:
        """When the first of the held calls has waited for too long; infinite if none is held."""
        while self._deadlines and not self._is_held(self._deadlines[0][2]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else inf

    def expired(self, now: float) -> list[Call]:
        """Remove and return the calls whose deadline has passed."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            held = heappop(self._deadlines)[2]
            if self._is_held(held):
                self.remove(held.call.id)
                due.append(held.call)
        return due

    def _count(self, call: Call, change: int) -> None:
        self.by_model[call.model] = self.by_model.get(call.model, 0) + change
        self.by_choices[call.choices] = self.by_choices.get(call.choices, 0) + change
        self.seats += change * call.choices
        tenants = self._by_tenant.setdefault(call.model, {})
        tenants[call.tenant] = held = tenants.get(call.tenant, 0) + change
        if not held:
            del tenants[call.tenant]

    def check(self, now: float) -> None:
        """Raise AssertionError if the invariant does not hold or a call is held past its deadline."""
        in_line = {call_id: held for line in self._lines.values() for call_id, held in line.items()}
        assert not in_line.keys() & self._aside.keys(), "a call is in line and set aside"
        assert in_line | self._aside == self._held, "a held call is not in line, or one in line is not held"
        assert all(self._lines.values()), "a tenant has an empty line"
        deadlines = {held.call.id for _, _, held in self._deadlines if self._is_held(held)}
        assert deadlines == self._held.keys(), "a held call has no deadline"
        by_prompt = {held.call.id for alike in self._by_prompt.values() for _, _, held in alike if self._is_held(held)}
        free = {held.call.id for held in self if not held.avoid}
        assert by_prompt == free, "a held call is not among those of its kind"
        assert self.seats == sum(held.call.choices for held in self), "the seats that held calls want are miscounted"
        assert sum(self.by_model.values()) == sum(self.by_choices.values()) == len(self), "held calls are miscounted"
        by_tenant: dict[str, dict[str, int]] = {model: {} for model in self._by_tenant}
        for held in self:
            tenants = by_tenant[held.call.model]
            tenants[held.call.tenant] = tenants.get(held.call.tenant, 0) + 1
        assert by_tenant == self._by_tenant, "the held calls of tenants are miscounted"
        late = [held.call.id for held in self if held.until < now]
        assert not late, f"{late} are held past their deadline"

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
