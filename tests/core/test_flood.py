"""One tenant sends ten times the capacity: the calls of the others are served nearly as without it."""

from __future__ import annotations

import random
from heapq import heappop, heappush

from headway.core.machine import Machine
from headway.core.types import (
    Arrived,
    Board,
    Call,
    Finished,
    ModelPolicy,
    Replica,
    ReplicaUp,
    Ticked,
    TierPolicy,
    own_pools,
)

OTHERS_PER_S, FLOOD_PER_S = 20.0, 400.0  # of a capacity of 40


def others_in_a_flood(from_s: float, until_s: float) -> tuple[float, float]:
    """The share of the others' calls that board once the flood has begun, and the p50 of their waits."""
    m = Machine(*own_pools({"m": ModelPolicy({"standard": TierPolicy(48, 4.0)})}))
    for number in range(10):
        m.step(ReplicaUp(Replica(f"r{number}", "m", 8)), 0.0)
    chance, events, came = random.Random(27), list[tuple[float, str, str]](), dict[str, float]()
    for tenant, per_s, at_s in (("other", OTHERS_PER_S, 0.0), ("flood", FLOOD_PER_S, from_s)):
        while (at_s := at_s + chance.expovariate(per_s)) < until_s:
            heappush(events, (at_s, "arrives", f"{tenant} {chance.randrange(7)} {len(events)}"))
    waits, asked = [], 0
    while events:
        now, what, name = heappop(events)
        if what == "ends":
            actions = m.step(Finished(name, 10, 40), now)
        else:
            tenant = "flood" if name.startswith("flood") else name[:7]
            came[name] = now
            asked += tenant != "flood" and now >= from_s
            actions = m.step(Ticked(), now) + m.step(Arrived(Call(name, "m", "standard", tenant=tenant)), now)
        for board in (action for action in actions if isinstance(action, Board)):
            heappush(events, (now + chance.uniform(1.5, 2.5), "ends", board.call_id))
            if board.call_id.startswith("other") and came[board.call_id] >= from_s:
                waits.append(now - came[board.call_id])
    return len(waits) / asked, sorted(waits)[len(waits) // 2]


def test_one_tenants_flood_leaves_the_others_their_seats() -> None:
    served, wait_s = others_in_a_flood(from_s=20.0, until_s=50.0)
    assert served > 0.98
    assert wait_s < 0.1
