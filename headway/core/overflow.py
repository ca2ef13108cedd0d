"""Calls that find no seat at home, and board the overflow pool of their offer: servers that the owner does not run.

A call waits at home first, for as long as its tier says. It overflows at once if it would be refused for lack of seats.
It never waits in the overflow pool: a server there has a seat for it, or it goes on waiting at home. One that fails
there comes back home.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from headway.core.journey import Journey
from headway.core.pool import Pool
from headway.errors import RefusalReason

LACKS_SEATS: Final[tuple[RefusalReason, ...]] = ("full", "hold_timeout", "no_replica")


def overflow_pool(journey: Journey, pools: Mapping[str, Pool]) -> Pool | None:
    """The pool that the call may board if it finds no seat at home; None if there is none for it, or if the owner has
    taken it away from calls like this one. A stream that has begun goes on from its tokens, which other people's
    servers do not take."""
    call = journey.call
    offer = journey.home.offers[call.model]
    if not offer.overflow or not call.may_overflow or offer.tiers[call.tier].overflow_after_s is None:
        return None
    pool = pools.get(offer.overflow) if not journey.has_begun else None
    return pool if pool is not None and pool.offers_tier(call.model, call.tier) else None


def pool_aboard(journey: Journey, pools: Mapping[str, Pool]) -> Pool:
    """The pool of the replica that the call is aboard: at home, unless the replica is one of the overflow pool."""
    pool = overflow_pool(journey, pools)
    is_there = pool is not None and journey.replica is not None and pool.replica_state(journey.replica) is not None
    return pool if pool is not None and is_there else journey.home


def seat_in_overflow(journey: Journey, pools: Mapping[str, Pool], now: float, *, is_refused: bool) -> bool:
    """Give the call, which has no seat and is not held, a seat in the overflow pool. `is_refused`: it would be refused
    otherwise, however long it has waited."""
    pool, call = overflow_pool(journey, pools), journey.call
    if pool is None or not (is_refused or _has_waited(journey, now)):
        return False
    replica = pool.seat(call, journey.avoid, now)
    if replica is not None:
        journey.pool, journey.replica = pool, replica
    return replica is not None


def overflow_held(
    home: Pool, journeys: Mapping[str, Journey], pools: Mapping[str, Pool], now: float
) -> Iterator[Journey]:
    """Give held calls that have waited for long enough seats in the overflow pool; those that came first go first."""
    full = {""} | {offer.overflow for offer in home.offers.values() if not _has_room(pools.get(offer.overflow))}
    if all(offer.overflow in full for offer in home.offers.values()):
        return
    for held in home.waiting.all_held():
        journey = journeys[held.call.id]
        if home.offers[held.call.model].overflow in full or not _has_waited(journey, now):
            continue
        if seat_in_overflow(journey, pools, now, is_refused=False):
            home.waiting.drop(held.call)
            yield journey


def _has_waited(journey: Journey, now: float) -> bool:
    after_s = journey.home.offers[journey.call.model].tiers[journey.call.tier].overflow_after_s
    return after_s is not None and now - journey.arrived_at >= after_s


def _has_room(pool: Pool | None) -> bool:
    return pool is not None and pool.doors.free_heavy > 0
