"""Boards the held calls of a pool for which there are seats, in the order of waiting.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from headway.core.fairness import FairQueue
from headway.core.pool import Pool
from headway.core.types import EXPRESS, Call, Tier

# The most held calls of a tier that are tried in one step and do not fit:
TRIED_AGAIN: Final = 4  # calls that were set aside in earlier steps
SET_ASIDE: Final = 4  # other calls,
SET_ASIDE_OF_ONE: Final = 2  # of one tenant


def board_held(pool: Pool, now: float) -> Iterator[tuple[Call, str]]:
    """Board the held calls for which there are seats; yields each with its replica.

    A call may not fit where others would: it has several choices, a long prompt or a stricter floor. It does not
    delay them: it is set aside, and tried again before the others in later steps until its deadline.

    Each step tries all calls that an engine returned. For each tier it tries at most TRIED_AGAIN calls that were
    set aside before, then the others until SET_ASIDE of them did not fit, SET_ASIDE_OF_ONE of one tenant. If there
    is room after that, a call that fits may be behind those that were not tried, so the shortest prompts are tried.
    So a call finds its seat however many others do not fit; only a call that must avoid a replica may have to wait
    until it is tried again.
    """
    if pool.waiting.returned:
        for held in list(pool.waiting.returned.values()):
            if (replica := pool.seat(held.call, held.avoid, now)) is not None:
                del pool.waiting.returned[held.call.id]
                yield held.call, replica
    for tier, queue in pool.waiting.queues.items():
        if len(queue):
            yield from _board_queue(pool, tier, queue, now)


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
        return doors.free_heavy > 0 or doors.free_retiring > 0 or pool.spare(now) > 0
    floor_tps = pool.loosest[tier]
    if any(state.load < state.caps[floor_tps] for state in doors.light.from_highest(frozenset())):
        return True
    emptiest = doors.emptiest_heavy() if doors.may_another_be_light else None
    return emptiest is not None and emptiest.load < emptiest.caps[floor_tps]


def _asks_as_much(call: Call, other: Call) -> bool:
    return call.model == other.model and call.choices >= other.choices and call.prompt_tokens >= other.prompt_tokens
