"""Core in the gateway's own process: one process decides for itself. The default."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import Metric

from headway.core.machine import Machine
from headway.core.types import TICK_S, Action, Event, Offer, PolicyChanged, PoolPolicy, ReplicaUp, Ticked
from headway.dispatch.base import Driver, Finding
from headway.dispatch.fleet import Member, RunningFleet
from headway.dispatch.frames import DemandStatus
from headway.dispatch.local_gates import LocalGates
from headway.dispatch.policy_metrics import policy_metrics
from headway.dispatch.record import EventLog
from headway.dispatch.status import demand_status
from headway.supervise import Supervisor


class LocalDispatch:
    def __init__(
        self,
        machine: Machine,
        members: Iterable[Member],
        record: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine = machine
        self.fleet = RunningFleet(machine, self)
        self._members = list(members)  # until `start`
        self.gates = LocalGates(record)
        self._record = record
        self._clock = clock
        self._do: Callable[[Action], None] = _nobody
        self._driver: Driver  # from `start` on
        self._ticking: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return any(pool.open_replicas for pool in self.machine.pools.values())

    @property
    def epoch(self) -> int:
        return 0

    def may_send(self, epoch: int) -> bool:
        return epoch == self.epoch

    def tell(self, event: Event) -> None:
        now = self._clock()
        actions = self.machine.step(event, now)
        if self._record is not None:
            self._record.append(now, event, actions)
        for action in actions:
            self._do(action)

    def reconfigure(self, pools: dict[str, PoolPolicy], offers: dict[str, Offer], members: Iterable[Member]) -> None:
        """Another policy and other replicas from now on. A replica of a new pool needs the policy first."""
        self.tell(PolicyChanged(pools, offers))
        self.fleet.want(members)

    def probed(self, event: Finding) -> None:
        if not (isinstance(event, ReplicaUp) and self.fleet.is_draining(event.replica.name)):
            self.tell(event)

    def deadline(self, call_id: str) -> None:  # noqa: ARG002 (core knows whose time is over)
        self.tell(Ticked())

    def counted(self, replica: str, streams: int) -> None:
        """Not needed: no other process has calls aboard that this one could have lost."""

    def metrics(self, replicas: Mapping[str, str]) -> Iterable[Metric]:
        return (*policy_metrics(self.machine, replicas), *self.gates.metrics())

    def demand(self) -> list[DemandStatus]:
        return demand_status(self.machine, self._clock())

    def start(self, driver: Driver, supervisor: Supervisor) -> None:
        self._do = driver.do
        self._driver = driver
        self.fleet.want(self._members)
        driver.probe_only(None)
        self._ticking = supervisor.start("tick", self._tick, matters=True)

    async def _tick(self) -> None:
        """Let core adapt the reserve to the demand for express calls while there are no other events."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tell(Ticked())
            self.fleet.tick()
            self.gates.tick()

    # --- the fleet's host ---

    def step(self, event: Event) -> None:
        self.tell(event)

    def add_member(self, member: Member) -> None:
        self._driver.add_replica(member)

    def change_member(self, member: Member) -> None:
        self._driver.change_replica(member.replica)

    def remove_member(self, name: str) -> None:
        self._driver.remove_replica(name)

    def probe_now(self, name: str) -> None:
        self._driver.probe_now(name)

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self._record is not None:
            self._record.close()


def _nobody(action: Action) -> None:
    raise RuntimeError(f"{action}: the gateway has not been started")
