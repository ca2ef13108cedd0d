"""The calls that wait for a seat of one pool, and their order.

The tiers are in the order from fastest to slowest. *Returned* calls come first: those whose engine failed or that were
taken off it, those with a floor before the held calls with a floor, the others before the held calls without one.
Within a tier the order is fair between tenants, whichever of the pool's models they request. The offer sets how many
calls may be held, and for how long. pool.py knows which seats are free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from itertools import chain
from math import inf

from headway.core.fairness import FairQueue, HeldCall
from headway.core.learnt import LearntQueue, LearntWaiting, within
from headway.core.types import EXPRESS, TIERS, Call, Offer, Tier

MAX_RETRY_AFTER_S = 60


class WaitingRoom:
    def __init__(self, offers: dict[str, Offer]) -> None:
        self.returned: dict[Tier, OrderedDict[str, HeldCall]] = {tier: OrderedDict() for tier in TIERS}
        self.returned_seats = 0  # that the returned calls without a floor need
        self.queues: dict[Tier, FairQueue] = {}  # the fastest first, flex last
        self.change(offers)
        self._pace_s = 1.0  # smoothed time between two freed seats
        self._last_freed_at: float | None = None

    def change(self, offers: dict[str, Offer]) -> None:
        """Calls that are held stay, until the deadline that they have. The tiers of all of them must be offered."""
        self._offers = offers
        offered = {tier for offer in offers.values() for tier in offer.tiers}
        self.queues = {tier: self.queues.get(tier) or FairQueue() for tier in TIERS if tier in offered}

    @property
    def held(self) -> int:
        return sum(map(len, self.returned.values())) + sum(map(len, self.queues.values()))

    @property
    def express_seats(self) -> int:
        """The number of seats that the held express calls need."""
        returned = sum(held.call.choices for tier in EXPRESS for held in self.returned[tier].values())
        return returned + sum(self.queues[tier].seats for tier in EXPRESS if tier in self.queues)

    @property
    def fewest_express_choices(self) -> int:
        """The smallest number of choices of any held express call; 0 if none is held."""
        returned = [held.call.choices for tier in EXPRESS for held in self.returned[tier].values()]
        queues = [self.queues[tier] for tier in EXPRESS if tier in self.queues]
        return min([*returned, *(n for queue in queues for n, calls in queue.by_choices.items() if calls)], default=0)

    def all_held(self) -> list[HeldCall]:
        """Those of each queue in the order in which they came."""
        return [*chain.from_iterable(self.all_returned()), *chain.from_iterable(self.queues.values())]

    def all_returned(self) -> list[list[HeldCall]]:
        """The returned calls, by tier."""
        return [list(calls.values()) for calls in self.returned.values() if calls]

    def is_held(self, call: Call) -> bool:
        return call.id in self.returned[call.tier] or call.id in self.queues[call.tier]

    def is_anyone_held(self, tier: Tier) -> bool:
        """Whether a call of this tier, or any returned call, is held."""
        return any(self.returned.values()) or len(self.queues[tier]) > 0

    def is_full(self, call: Call) -> bool:
        return not self.queues[call.tier].has_place(call, self._offers[call.model].tiers[call.tier].max_held)

    def max_hold_s(self, call: Call) -> float:
        return self._offers[call.model].tiers[call.tier].max_hold_s

    def hold(self, call: Call, until: float, avoid: Set[str], *, returned: bool) -> None:
        held = HeldCall(call, until, avoid)
        if returned:
            self.returned[call.tier][call.id] = held
            self._count_returned(call, +1)
        else:
            self.queues[call.tier].push(held)

    def drop(self, call: Call) -> None:
        if not self.queues[call.tier].remove(call.id) and self.returned[call.tier].pop(call.id, None) is not None:
            self._count_returned(call, -1)

    def _count_returned(self, call: Call, change: int) -> None:
        self.returned_seats += 0 if call.tier in EXPRESS else change * call.choices

    def next_deadline(self) -> float:
        """When the first of the held calls has waited for too long; infinite if none is held."""
        returned = [held.until for calls in self.returned.values() for held in calls.values()]
        return min([*returned, *[queue.next_deadline() for queue in self.queues.values()]], default=inf)

    def expired(self, now: float) -> list[Call]:
        """Remove and return the held calls whose deadline has passed."""
        due = [held.call for calls in self.returned.values() for held in calls.values() if held.until <= now]
        for call in due:
            self.drop(call)
        return due + [call for queue in self.queues.values() for call in queue.expired(now)]

    # --- tokens served to tenants ---

    def charge(self, call: Call, tokens: int) -> None:
        self.queues[call.tier].charge(call.tenant, tokens)

    # --- when to retry ---

    def seat_freed(self, now: float) -> None:
        if self._last_freed_at is not None:
            self._pace_s += 0.1 * (now - self._last_freed_at - self._pace_s)
        self._last_freed_at = now

    def retry_after_s(self, tier: Tier) -> int:
        """Estimate the seconds until a seat is free: the queue's length times the recent time per freed seat."""
        return min(MAX_RETRY_AFTER_S, 1 + int(self._pace_s * len(self.queues[tier])))

    # --- what another core learns or has learnt ---

    def learnt(self, max_tenants: int, now: float) -> LearntWaiting:
        """`max_tenants` is for each queue."""
        since_freed_s = None if self._last_freed_at is None else now - self._last_freed_at
        queues = [LearntQueue(tier, queue.learnt(max_tenants)) for tier, queue in self.queues.items()]
        return LearntWaiting(self._pace_s, since_freed_s, queues)

    def recall(self, learnt: LearntWaiting, age_s: float, now: float) -> None:
        self._pace_s = within(learnt.freed_each_s, 0.0)
        if learnt.since_freed_s is not None:
            self._last_freed_at = now - within(learnt.since_freed_s + age_s, 0.0)
        tenants = {one.tier: one.tenants for one in learnt.queues}
        for tier, queue in self.queues.items():
            queue.recall(tenants.get(tier, []))
