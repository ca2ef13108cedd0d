"""Several gateways in front of one fleet: which gateway owns each replica, takes each call, and knows of the others.

Each replica has one owner. Calls go to the gateways in turn, as from a load balancer. A call that finds no room at its
gateway is handed on once (sim/siblings.py), based on summaries that are at most `summary_s` old. Handing on takes no
time in the simulation. When a gateway dies, its calls are lost. Its replicas have no owner until its lease has ended;
then its siblings take them over. When it comes back it owns no replicas and hands its calls on.
"""

from __future__ import annotations

import random

from headway.core.machine import Machine
from headway.core.types import Call, ModelPolicy, own_pools
from headway.sim.siblings import Room, roomier


class Cell:
    def __init__(self, policies: dict[str, ModelPolicy], gateways: int = 1, summary_s: float = 0.5) -> None:
        self.machines = [Machine(*own_pools(policies)) for _ in range(gateways)]
        self.summary_s = summary_s
        self.handed_on = 0
        self._policies = policies
        self._alive = list(range(gateways))
        self._turn = 0
        self._owners: dict[str, int] = {}
        self._summaries: dict[str, list[Room]] = {model: [{} for _ in range(gateways)] for model in policies}
        self._chance = random.Random("siblings")

    @property
    def gateways(self) -> int:
        return len(self.machines)

    def owner(self, replica: str) -> int:
        """The owner of the replica. A replica without an owner is given to the next gateway in turn."""
        owner = self._owners.get(replica)
        if owner is None:
            owner = self._owners[replica] = self._alive[len(self._owners) % len(self._alive)]
        return owner

    def gateway_for(self, call: Call, now: float) -> int:
        """The gateway whose turn it is, or the sibling that it hands the call to."""
        alive = self._alive
        self._turn = (self._turn + 1) % len(alive)
        home = alive[self._turn]
        pool = self.machines[home].pool_of(call.model)
        if len(alive) == 1 or pool.room(call.model, call.tier, now) > 0:
            return home
        first, second = self._sibling(), self._sibling()
        sibling = roomier(call.tier, first, second, self._summaries[call.model])
        if sibling is None and pool.known_replicas:
            return home
        self.handed_on += 1
        return first if sibling is None else sibling  # a gateway without replicas cannot hold a call

    def _sibling(self) -> int:
        """A random gateway other than the one whose turn it is."""
        step = 1 + int(self._chance.random() * (len(self._alive) - 1))
        return self._alive[(self._turn + step) % len(self._alive)]

    def tell(self, now: float) -> None:
        """Update the summaries: all gateways report how much room they have."""
        for model, policy in self._policies.items():
            rooms = self._summaries[model]
            for number in self._alive:
                pool = self.machines[number].pool_of(model)
                rooms[number] = {tier: pool.room(model, tier, now) for tier in policy.tiers}

    def die(self, gateway: int) -> list[str]:
        """The gateway dies. Returns the replicas that have no owner now."""
        self._alive.remove(gateway)
        self.machines[gateway] = Machine(*own_pools(self._policies))
        for rooms in self._summaries.values():
            rooms[gateway] = {}
        orphans = [name for name, owner in self._owners.items() if owner == gateway]
        for name in orphans:
            del self._owners[name]
        return orphans

    def come_back(self, gateway: int) -> None:
        self._alive.append(gateway)
        self._alive.sort()
