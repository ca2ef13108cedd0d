"""The pools of a machine: made from the owner's policy, changed with it, and what they have learnt."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.learnt import MAX_TENANTS, LearntPool
from headway.core.pool import Pool
from headway.core.types import (
    Offer,
    PoolPolicy,
    ReplicaBehind,
    ReplicaCacheLost,
    ReplicaDraining,
    ReplicaRecovered,
    ReplicaStrangers,
    ReplicaSuspect,
    Tier,
)

ToldOfReplica = (
    ReplicaStrangers | ReplicaCacheLost | ReplicaSuspect | ReplicaBehind | ReplicaRecovered | ReplicaDraining
)


def change_pools(
    pools: dict[str, Pool],
    policies: dict[str, PoolPolicy],
    offers: dict[str, Offer],
    in_use: Iterable[tuple[Pool, str, Tier]],
    now: float,
) -> None:
    """Make, change and remove pools. One that is not configured any more stays, until the next change, if it has
    replicas or calls. `in_use` has the pool, the model and the tier of each call."""
    used: dict[int, set[tuple[str, Tier]]] = {id(pool): set() for pool in pools.values()}
    for pool, model, tier in in_use:
        used[id(pool)].add((model, tier))
    for name, policy in policies.items():
        own = {model: offer for model, offer in offers.items() if name in (offer.pool, offer.overflow)}
        if name in pools:
            pools[name].change(policy, own, used[id(pools[name])], now)
        else:
            pools[name] = Pool(policy, own)
    for name, pool in [(name, pool) for name, pool in pools.items() if name not in policies]:
        if used[id(pool)] or pool.doors.replicas:
            pool.change(pool.policy, {}, used[id(pool)], now)
        else:
            del pools[name]


def tell_pool(pool: Pool, event: ToldOfReplica, now: float) -> Iterable[str]:
    """Tell a pool what happened to one of its replicas. Returns the flex calls to preempt."""
    if isinstance(event, ReplicaStrangers):
        pool.replica_strangers(event.name, event.streams, now)
    elif isinstance(event, ReplicaCacheLost):
        pool.replica_cache_lost(event.name, event.keys)
    elif isinstance(event, ReplicaSuspect):
        pool.replica_suspect(event.name, now)
    elif isinstance(event, ReplicaBehind):
        return pool.replica_behind(event.name, now)
    elif isinstance(event, ReplicaRecovered):
        pool.replica_recovered(event.name, now)
    else:
        pool.replica_draining(event.name, now)
    return ()


def learnt_of_pools(pools: dict[str, Pool], now: float) -> list[LearntPool]:
    queues = sum(len(pool.waiting.queues) for pool in pools.values())
    max_tenants = max(1, MAX_TENANTS // max(1, queues))
    return [pool.learnt(name, max_tenants, now) for name, pool in pools.items()]
