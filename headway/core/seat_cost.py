"""What a light seat costs: which replicas of a pool should be light.

Replicas of a pool have the same weights, and may be started differently: with speculation, on more chips. Each has its
own curve then. A replica that is light gives up what it would generate if it were heavy, for as many light seats as its
curve allows:

    cost of a light seat = seats * speed at all seats / light seats

Light replicas are those whose seats cost least. Costs that differ by less than STEP count as the same, because curves
are measured: among such replicas the emptiest comes first, as if they were all alike.
"""

from __future__ import annotations

from math import inf, log
from typing import Final

from headway.core.replicas import ReplicaState
from headway.core.types import Replica

STEP: Final = 1.15
MAX_RANK: Final = 7


def cost_of_light_seat(replica: Replica, light_seats: int) -> float:
    """In tokens per second; inf if it has none."""
    if replica.curve is None or not light_seats:
        return inf
    return replica.seats * replica.curve.speed_tps(replica.seats) / light_seats


class SeatCosts:
    """The costs of all replicas of a pool, and the rank of each."""

    def __init__(self) -> None:
        self._costs: dict[str, float] = {}
        self._cheapest = inf

    def set(self, name: str, cost: float) -> bool:
        """Returns whether the ranks of others may have changed."""
        before = self._costs.get(name, inf)
        self._costs[name] = cost
        return self._has_changed(before, cost)

    def drop(self, name: str) -> bool:
        return self._has_changed(self._costs.pop(name, inf), inf)

    def _has_changed(self, before: float, after: float) -> bool:
        cheapest = self._cheapest
        if after < cheapest:
            self._cheapest = after
        elif before <= cheapest:
            self._cheapest = min(self._costs.values(), default=inf)
        return self._cheapest != cheapest

    def rank(self, state: ReplicaState) -> int:
        cost = self._costs.get(state.replica.name, inf)
        if cost == inf:
            return 0  # it is never light
        return min(MAX_RANK, int(log(cost / self._cheapest) / log(STEP)))
