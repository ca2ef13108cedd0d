"""The prefix cache of a simulated replica, and that core and the replica agree on it."""

from __future__ import annotations

import pytest

from headway.core.curve import fit
from headway.core.types import Call, ModelPolicy, Replica, Tier, TierPolicy
from headway.sim.cache import BLOCK_TOKENS, SimCache
from headway.sim.loop import Job, Simulation
from headway.sim.traces import with_blocks

CURVE = fit([(1, 100.0), (8, 80.0), (64, 20.0)])


def test_blocks_are_found_from_the_beginning_on() -> None:
    cache = SimCache(100 * BLOCK_TOKENS)
    assert cache.read((1, 2, 3), 1500) == 0
    assert cache.read((1, 2, 4), 1500) == 2 * BLOCK_TOKENS
    assert cache.read((5, 2, 3), 1500) == 0
    assert cache.read((1, 2, 3), 1500) == 1499  # one token is always computed


def test_what_was_not_used_for_the_longest_time_is_forgotten_from_its_end_on() -> None:
    cache = SimCache(4 * BLOCK_TOKENS)
    cache.read((1, 2, 3), 1500)
    cache.read((7, 8), 1000)
    assert cache.read((7, 8), 1000) == 999
    assert cache.read((1, 2), 2000) == 2 * BLOCK_TOKENS
    assert cache.read((1, 2, 3), 1500) == 2 * BLOCK_TOKENS


def test_a_conversation_stays_where_its_prompt_is_cached() -> None:
    fleet = [Replica(f"r{number}", "m", 64, CURVE, prompt_tps=10_000.0) for number in range(4)]
    tiers: dict[Tier, TierPolicy] = {"standard": TierPolicy(max_held=10, max_hold_s=5.0)}
    simulation = Simulation({"m": ModelPolicy(tiers=tiers)}, fleet)
    jobs = []
    for turn in range(10):
        for talk in range(4):
            blocks = tuple(1000 * talk + block for block in range(8 + turn))
            call = Call(f"{turn}-{talk}", "m", "standard", prompt_tokens=BLOCK_TOKENS * len(blocks))
            jobs.append(with_blocks(Job(turn * 20.0 + talk * (0.1 + 0.3 * turn), call, 100), blocks))
    trips = {trip.job.call.id: trip for trip in simulation.run(iter(jobs), 1e9)}
    assert len(trips) == 40
    assert (
        sum(replica.cached_tokens for replica in simulation.replicas.values())
        == sum(BLOCK_TOKENS * (8 + turn - 1) for turn in range(1, 10)) * 4
    )
    assert trips["0-0"].first_at - trips["0-0"].job.at == pytest.approx(8 * BLOCK_TOKENS / 10_000.0)
    assert trips["9-0"].first_at - trips["9-0"].job.at == pytest.approx(BLOCK_TOKENS / 10_000.0)
