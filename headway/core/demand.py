"""What the calls of a pool need of replicas: for gauges by tier, and for the policy that scales (scaling.py).

Reading it changes nothing in core. So it may be read at any time, and a recorded run gives the same actions without it.
Cost: O(replicas + held calls).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.core.pool import Pool
from headway.core.replicas import ReplicaState
from headway.core.types import EXPRESS, Tier

PATIENCE = 0.5  # a flex call that has waited for this share of its time is late


@dataclass(slots=True)
class TierSeats:
    """`wanted`: seats that calls of the tier hold or wait for; of an express tier also those that the reserve wants
    ready. `ready`: seats that they hold or could take now. Free seats count for every tier whose calls could take them.
    More wanted than ready: calls wait, or will soon. `held`: seats for which calls wait now."""

    model: str
    tier: Tier
    wanted: int
    ready: int
    held: int = 0


@dataclass(slots=True)
class PoolDemand:
    """The demand of one pool at one moment.

    Loads are work, not streams: a replica with few streams is faster, so they leave sooner, and half of the streams do
    more than half of the work. 1.0 is what a replica does with all its seats taken."""

    replicas: int  # that take calls
    seats: float  # of a replica, on average; 0 if none is known
    light_seats: float  # of a light replica, on average; 0 if none keeps a floor
    answer_s: float  # for which a call holds its seat, on average
    standard_share: float  # of the replicas that must stay heavy
    light_replicas: int  # that are light now; calls without a floor ride there and need no other seats
    express_seats: int  # light seats that the reserve wants, taken or ready
    standard_load: float  # of the standard streams aboard heavy replicas
    standard_held: int  # seats for which standard calls wait, or which they have in an overflow pool
    flex_load: float
    flex_late: int  # seats for which flex calls have waited for half of their time and more


def tier_seats(pools: Mapping[str, Pool], name: str) -> Iterator[TierSeats]:
    """By model and tier, of the models that this pool serves at home."""
    pool = pools[name]
    held = Counter[tuple[str, Tier]]()
    for one in pool.waiting.all_held():
        held[one.call.model, one.call.tier] += one.call.choices
    doors, reserve = pool.doors, pool.reserve
    in_reserve = reserve.last_wanted_seats - reserve.present
    free = doors.free_heavy + doors.free_retiring + max(0, doors.ready - reserve.last_wanted_free)
    free_express = doors.ready + doors.free_retiring + _could_be_light(pool)
    for model, offer in pool.offers.items():
        if offer.pool != name:
            continue
        for tier in offer.tiers:
            is_express = tier in EXPRESS
            taken = pool.taken[model, tier]
            wanted = taken + held[model, tier] + _overflown(pools, model, offer.overflow, tier)
            wanted += in_reserve if is_express else 0
            ready = taken + (free_express if is_express else free)
            yield TierSeats(model, tier, wanted, ready, held[model, tier])


def pool_demand(pools: Mapping[str, Pool], name: str, now: float) -> PoolDemand:
    pool = pools[name]
    states = [state for state in pool.doors.replicas.values() if not state.draining]
    light = [state.light_seats for state in states if state.light_seats]
    standard_held = flex_late = 0
    for one in pool.waiting.all_held():
        if one.call.tier == "standard":
            standard_held += one.call.choices
        elif one.call.tier == "flex":
            patience_s = pool.offers[one.call.model].tiers["flex"].max_hold_s
            flex_late += one.call.choices if one.until - now <= PATIENCE * patience_s else 0
    for model, offer in pool.offers.items():
        if offer.pool == name:
            standard_held += _overflown(pools, model, offer.overflow, "standard")
    # Of draining ones too: as many calls as they carry will come to others.
    load = sum(_load(state) for state in pool.doors.replicas.values() if not state.light)
    flex = sum(seats for (_, tier), seats in pool.taken.items() if tier == "flex")
    standard = sum(seats for (_, tier), seats in pool.taken.items() if tier == "standard")
    flex_load = load * flex / max(1, flex + standard)
    return PoolDemand(
        pool.open_replicas,
        sum(state.replica.seats for state in states) / max(1, len(states)),
        sum(light) / max(1, len(light)),
        1000.0 * pool.pace.answer_tokens / max(1, pool.pace.tokens(1000.0)),
        pool.policy.standard_share,
        pool.light_replicas,
        pool.reserve.last_wanted_seats,
        load - flex_load,
        standard_held,
        flex_load,
        flex_late,
    )


def first_to_drain(pool: Pool) -> str | None:
    """The replica to take away if there are too many: the emptiest heavy one, or if there is none, the emptiest. In the
    place of a light one another would have to close its doors and empty first. None if none takes calls."""
    states = [state for state in pool.doors.replicas.values() if state.open]
    first = min(states, key=lambda state: (state.light, state.load), default=None)
    return first.replica.name if first is not None else None


def scaled_pools(pools: Mapping[str, Pool]) -> list[str]:
    """The pools that have calls of their own. An overflow pool has servers of somebody else."""
    return [name for name, pool in pools.items() if any(offer.pool == name for offer in pool.offers.values())]


def _overflown(pools: Mapping[str, Pool], model: str, overflow: str, tier: Tier) -> int:
    """The seats of the model's calls that found none at home."""
    pool = pools.get(overflow)
    return pool.taken[model, tier] if pool is not None else 0


def _could_be_light(pool: Pool) -> int:
    """The seats that express calls could take on replicas that are heavy."""
    doors = pool.doors
    more = doors.max_light_replicas - doors.light_replicas
    heavy = [state.light_seats - state.load for state in doors.replicas.values() if state.open and not state.light]
    return sum(sorted((free for free in heavy if free > 0), reverse=True)[: max(0, more)])


def _load(state: ReplicaState) -> float:
    """Of the streams aboard that have no floor."""
    streams = state.load - state.express_seats
    if streams <= 0:
        return 0.0
    curve, seats = state.replica.curve, state.replica.seats
    if curve is None:
        return streams / seats
    context = state.context / state.load  # of each stream
    full_s = curve.seconds_per_token(seats, round(context * seats))
    return streams / seats * full_s / curve.seconds_per_token(state.load, state.context)
