"""The calls that wait for a seat of one pool, and their order.

Calls whose engine failed come first, then the tiers from fastest to slowest. Within a tier the order is fair between
tenants, whichever of the pool's models they request. The offer sets how many calls may be held, and for how long.
pool.py knows which seats are free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set

from headway.core.fairness import FairQueue, HeldCall
from headway.core.learnt import LearntQueue, LearntWaiting, within
from headway.core.types import EXPRESS, TIERS, Call, Offer, Tier

MAX_RETRY_AFTER_S = 60


class WaitingRoom:
    def __init__(self, offers: dict[str, Offer]) -> None:
        self.returned: OrderedDict[str, HeldCall] = OrderedDict()  # calls whose engine failed; tried before all others
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
        return len(self.returned) + sum(len(queue) for queue in self.queues.values())

    @property
    def express_seats(self) -> int:
        """The number of seats that the held express calls need."""
        return sum(self.queues[tier].seats for tier in EXPRESS if tier in self.queues)

    @property
    def fewest_express_choices(self) -> int:
        """The smallest number of choices of any held express call; 0 if none is held."""
        queues = [self.queues[tier] for tier in EXPRESS if tier in self.queues]
        return min((n for queue in queues for n, calls in queue.by_choices.items() if calls), default=0)

    def all_held(self) -> list[HeldCall]:
        """Those of each queue in the order in which they came."""
        return [*self.returned.values(), *(held for queue in self.queues.values() for held in queue)]

    def is_held(self, call: Call) -> bool:
        return call.id in self.returned or call.id in self.queues[call.tier]

    def is_anyone_held(self, tier: Tier) -> bool:
        """Whether a call of this tier, or any call whose engine failed, is held."""
        return bool(self.returned) or len(self.queues[tier]) > 0

    def is_full(self, call: Call) -> bool:
        max_held = self._offers[call.model].tiers[call.tier].max_held
        return self.queues[call.tier].by_model.get(call.model, 0) >= max_held

    def hold(self, call: Call, now: float, avoid: Set[str], *, returned: bool, waited_s: float = 0.0) -> float:
        """Hold the call, which has waited for so long already. Returns for how much longer."""
        max_hold_s = max(0.0, self._offers[call.model].tiers[call.tier].max_hold_s - waited_s)
        held = HeldCall(call, now + max_hold_s, avoid)
        if returned:
            self.returned[call.id] = held
        else:
            self.queues[call.tier].push(held)
        return max_hold_s

    def drop(self, call: Call) -> None:
        if not self.queues[call.tier].remove(call.id):
            self.returned.pop(call.id, None)

    def expired(self, now: float) -> list[Call]:
        """Remove and return the held calls whose deadline has passed."""
        due = [held.call for held in self.returned.values() if held.until <= now]
        for call in due:
            del self.returned[call.id]
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
