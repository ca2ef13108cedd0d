"""The simulator with a fleet that scales: replicas start some time after they were ordered, and leave when drained.

The policy is the one that runs (core/scaling.py), and so is what core is told: ReplicaUp, ReplicaDraining,
ReplicaRemoved. The emptiest heavy replica is drained first, and one that drains is opened again before a new one is
ordered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from headway.core.demand import first_to_drain, pool_demand
from headway.core.scaling import ScalingPolicy
from headway.core.types import ModelPolicy, Replica, ReplicaDraining, ReplicaRemoved, ReplicaUp
from headway.sim.loop import SimTrip, Simulation


@dataclass(slots=True)
class FleetMoment:
    """The fleet after the policy was asked."""

    at_s: float
    needed: float  # replicas, for the demand at that time
    wanted: int
    open: int
    starting: int
    draining: int


class ElasticSimulation(Simulation):
    def __init__(self, policy: ModelPolicy, kind: Replica, replicas: int, scaling: ScalingPolicy) -> None:
        """One model on replicas of one kind, as many as `replicas` at first."""
        super().__init__({kind.pool: policy}, [replace(kind, name=f"r{number}") for number in range(replicas)])
        self.moments: list[FleetMoment] = []
        self._kind = kind
        self._scaling = scaling
        self._ordered_at = dict.fromkeys(self._known, 0.0)  # of all replicas that are paid for
        self._ordered = replicas
        self._starting: deque[str] = deque()
        self._draining: dict[str, None] = {}
        self._gone_s = 0.0
        self._asked_at = 0.0

    @property
    def replica_s(self) -> float:
        """The time for which replicas were paid: from their order until they were gone."""
        return self._gone_s + sum(self.now - at for at in self._ordered_at.values())

    def _tick(self) -> list[SimTrip]:
        ended = super()._tick()
        while self._starting and self._ordered_at[self._starting[0]] + self._scaling.rules.start_s <= self.now:
            ended += self._start(self._starting.popleft())
        pool = self.machines[0].pools[self._kind.pool]
        for name in [name for name in self._draining if not pool.aboard(name)]:
            del self._draining[name], self.replicas[name]
            self._gone_s += self.now - self._ordered_at.pop(name)
            ended += self._step(0, ReplicaRemoved(name))
        if self.now - self._asked_at >= self._scaling.every_s:
            self._asked_at = self.now
            ended += self._scale()
        return ended

    def _scale(self) -> list[SimTrip]:
        ended: list[SimTrip] = []
        pools = self.machines[0].pools
        demand = pool_demand(pools, self._kind.pool, self.now)
        running = len(self._ordered_at) - len(self._draining)
        wanted = self._scaling.wanted(demand, running, self.now)
        for _ in range(wanted - running):
            ended += self._add()
        for _ in range(running - wanted):
            name = first_to_drain(pools[self._kind.pool])
            assert name is not None
            self._draining[name] = None
            ended += self._step(0, ReplicaDraining(name))
        needed = self._scaling.needed
        moment = FleetMoment(self.now, needed, wanted, demand.replicas, len(self._starting), len(self._draining))
        self.moments.append(moment)
        return ended

    def _add(self) -> list[SimTrip]:
        if self._draining:
            name, _ = self._draining.popitem()
            return self._step(0, ReplicaUp(self._known[name]))
        name = f"r{self._ordered}"
        self._ordered += 1
        self._known[name] = replace(self._kind, name=name)
        self._ordered_at[name] = self.now
        self._starting.append(name)
        return []
