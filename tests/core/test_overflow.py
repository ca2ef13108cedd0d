"""Calls that board the overflow pool of their offer while the owner changes it."""

from __future__ import annotations

from headway.core.machine import Machine
from headway.core.types import (
    Arrived,
    Call,
    Hold,
    Offer,
    PolicyChanged,
    PoolPolicy,
    Refuse,
    Replica,
    ReplicaUp,
    Ticked,
    Tier,
    TierPolicy,
)

TIERS: dict[Tier, TierPolicy] = {"standard": TierPolicy(12, 8.0, overflow_after_s=1.0)}


def test_a_call_does_not_overflow_into_a_pool_that_was_taken_away() -> None:
    machine = Machine({"p": PoolPolicy(), "o": PoolPolicy()}, {"m": Offer("p", TIERS, overflow="o")})
    machine.step(ReplicaUp(Replica("o0", "o", 1)), 0.0)
    [held] = machine.step(Arrived(Call("c", "m", "standard", may_overflow=True)), 0.0)
    assert isinstance(held, Hold)
    machine.step(PolicyChanged({"p": PoolPolicy()}, {"n": Offer("p", TIERS)}), 0.5)
    assert machine.step(Ticked(), 2.0) == [], "its server is still known, and serves nobody of this offer"
    [refused] = machine.step(Ticked(), 8.1)
    assert isinstance(refused, Refuse)
