"""Boards the held calls of a pool for which there are seats, in the order of waiting.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from headway.core.fairness import FairQueue
from headway.core.pool import Pool
from headway.core.replica_queues import NOBODY
from headway.core.types import EXPRESS, TIERS, Call, Tier

UNPROMISED: Final[tuple[Tier, ...]] = tuple(tier for tier in TIERS if tier not in EXPRESS)
# The most held calls of a tier that are tried in one step and do not fit:
RETURNED: Final = 8  # returned calls
TRIED_AGAIN: Final = 4  # calls that were set aside in earlier steps
SET_ASIDE: Final = 4  # other calls,
SET_ASIDE_OF_ONE: Final = 2  # of one tenant


def board_held(pool: Pool, now: float) -> Iterator[tuple[Call, str]]:
    """Board the held calls for which there are seats; yields each with its replica.

    A call may not fit where others would: it has several choices, a long prompt or a stricter floor. It does not
    delay them: it is set aside, and tried again before the others in later steps until its deadline.

    Each step tries the returned calls until RETURNED of them did not fit; these are tried after the others in later
    steps. For each tier it tries at most TRIED_AGAIN calls that were set aside before, then the others until SET_ASIDE
    of them did not fit, SET_ASIDE_OF_ONE of one tenant. If there is room after that, a call that fits may be behind
    those that were not tried, so the shortest prompts are tried. So a call finds its seat however many others do not
    fit; only a returned call, or one that must avoid a replica, may have to wait until it is tried again.

    Calls with a floor come first, also before a stream that was taken off a light replica to make room for them.
    """
    waiting = pool.waiting
    for tiers in (EXPRESS, UNPROMISED):
        for tier in tiers:
            if waiting.returned[tier]:
                yield from _board_returned(pool, tier, now)
        for tier in tiers:
            queue = waiting.queues.get(tier)
            if queue is not None and len(queue):
                yield from _board_queue(pool, tier, queue, now)


def _board_returned(pool: Pool, tier: Tier, now: float) -> Iterator[tuple[Call, str]]:
    returned = pool.waiting.returned[tier]
    misses = 0
    while misses < min(RETURNED, len(returned)) and _has_room(pool, tier, now):
        held = next(iter(returned.values()))
        if (replica := pool.seat(held.call, held.avoid, now)) is not None:
            pool.waiting.drop(held.call)
            yield held.call, replica
        else:
            returned.move_to_end(held.call.id)
            misses += 1


def _board_queue(pool: Pool, tier: Tier, queue: FairQueue, now: float) -> Iterator[tuple[Call, str]]:
    if not _has_room(pool, tier, now):
        return
    missed: Call | None = None  # did not fit in this step; a call that asks for as much does not fit either
    for held in chain(queue.candidates(TRIED_AGAIN, SET_ASIDE, SET_ASIDE_OF_ONE), queue.shortest_prompts()):
        if missed is not None and not held.avoid and _asks_as_much(held.call, missed):
            continue
        replica = pool.seat(held.call, held.avoid, now)
        if replica is None:
            missed = missed if held.avoid else held.call
            continue
        queue.remove(held.call.id)
        yield held.call, replica
        if not _has_room(pool, tier, now):
            return


def _has_room(pool: Pool, tier: Tier, now: float) -> bool:
    """Whether there is a seat for the least demanding call of the tier: one choice, no prompt, and the lowest floor
    that any offer promises in this tier."""
    doors = pool.doors
    if tier not in EXPRESS:
        return doors.free_heavy > 0 or doors.free_retiring > 0 or pool.finder.spare(now) > 0
    floor_tps = pool.loosest[tier]
    if any(state.load < state.caps[floor_tps] for state in doors.light.from_highest(NOBODY)):
        return True
    if doors.may_another_be_light:
        for queue in doors.heavy.ranks:
            emptiest = queue.lowest(NOBODY)
            if emptiest is not None and emptiest.load < emptiest.caps[floor_tps]:
                return True
    return False


def _asks_as_much(call: Call, other: Call) -> bool:
    return call.model == other.model and call.choices >= other.choices and call.prompt_tokens >= other.prompt_tokens
