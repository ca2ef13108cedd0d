"""What a dispatcher tells operators of its cell (`headway status`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import asdict

from headway.core.demand import pool_demand, scaled_pools, tier_seats
from headway.core.machine import Machine
from headway.core.replicas import ReplicaState
from headway.core.types import TICK_S, Replica, Tier
from headway.dispatch.fleet import RunningFleet
from headway.dispatch.frames import (
    MAX_LISTED,
    SHOWN,
    DemandStatus,
    RelayStatus,
    ReplicaStatus,
    Status,
    TierStatus,
)
from headway.dispatch.sessions import RelaySession

LAG_WINDOW_S = 5.0  # the lag of the last one or two windows is told


class TickLag:
    """The most that ticks were late recently."""

    def __init__(self) -> None:
        self._ticked_at: float | None = None
        self._window_at = 0.0
        self._now_s = self._before_s = 0.0  # of this window, and of the one before

    def tick(self, now: float) -> None:
        late_s = 0.0 if self._ticked_at is None else max(0.0, now - self._ticked_at - TICK_S)
        self._ticked_at = now
        if now - self._window_at >= LAG_WINDOW_S:
            self._window_at, self._before_s, self._now_s = now, self._now_s, 0.0
        self._now_s = max(self._now_s, late_s)

    @property
    def worst_s(self) -> float:
        return max(self._now_s, self._before_s)


def relays_status(listed: Iterable[str], sessions: Iterable[RelaySession], now: float) -> list[RelayStatus]:
    """Relays that are listed or connected, by name. Several runs of one relay are one row: the calls of all, and the
    last beat of the one that is connected."""
    rows = {name: RelayStatus(name, 0, None) for name in sorted(listed)}
    for session in sessions:
        row = rows.setdefault(session.relay, RelayStatus(session.relay, 0, None))
        row.calls += len(session.calls)
        if session.lost_at is None:
            beat_s = now - session.heard_at
            row.beat_s = beat_s if row.beat_s is None else min(row.beat_s, beat_s)
    return list(rows.values())[:MAX_LISTED]


def leader_status(
    epoch: int,
    relays: list[RelayStatus],
    fleet: RunningFleet,
    machine: Machine,
    silent: Container[str],
    lag_s: float,
) -> Status:
    replicas = replicas_status(machine, fleet, silent)
    pools = machine.pools.values()
    return Status(
        "leader",
        epoch,
        relays,
        replicas[:MAX_LISTED],
        more_replicas=len(replicas[MAX_LISTED:]),
        open_replicas=sum(pool.open_replicas for pool in pools),
        held=sum(pool.waiting.held for pool in pools),
        lag_s=lag_s,
    )


def replicas_status(machine: Machine, fleet: RunningFleet, silent: Container[str] = ()) -> list[ReplicaStatus]:
    """All replicas, those that take no calls first."""
    rows = []
    for name, member in fleet.members.items():
        state = _state_of(machine, member.replica)
        row = ReplicaStatus(
            name,
            member.replica.pool,
            is_open=state is not None and state.open,
            seats=member.replica.seats,
            aboard=state.load if state is not None else 0,
            is_behind=state is not None and state.is_behind,
            is_silent=name in silent,
            is_draining=fleet.is_draining(name),
            is_light=state is not None and state.light,
            is_retiring=state is not None and state.retiring,
            light_seats=state.light_seats if state is not None else 0,
            strangers=state.strangers if state is not None else 0,
        )
        rows.append(row)
    rows.sort(key=lambda row: (row.is_open and not row.is_behind, row.pool, row.name))
    for row in rows[:SHOWN]:
        if (state := _state_of(machine, fleet.members[row.name].replica)) is not None:
            row.by_tier = _seats_by_tier(state)
    return rows


def _state_of(machine: Machine, replica: Replica) -> ReplicaState | None:
    pool = machine.pools.get(replica.pool)
    return pool.replica_state(replica.name) if pool is not None else None


def _seats_by_tier(state: ReplicaState) -> list[tuple[Tier, int]]:
    seats = Counter[Tier]()
    for stream in state.aboard.values():
        seats[stream.call.tier] += stream.call.choices
    return list(seats.items())


def demand_status(machine: Machine, now: float) -> list[DemandStatus]:
    """What the calls of each pool need of replicas."""
    pools = machine.pools
    return [
        DemandStatus(
            pool=name,
            **asdict(pool_demand(pools, name, now)),
            tiers=[TierStatus(**asdict(one)) for one in tier_seats(pools, name)],
        )
        for name in scaled_pools(pools)
    ]
