"""The plan of one episode: which faults, in which order, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

RELAYS = ("relay-1", "relay-2", "relay-3", "relay-4")
DISPATCHERS = ("dispatcher-1", "dispatcher-2")

# Share of each kind, in per cent.
KINDS = {
    "leader killed": 15,
    "leader stopped": 10,  # wakes after its successor took over
    "leader stopped for a moment": 4,  # shorter than its lease
    "standby killed": 5,
    "standby stopped": 3,
    "relay killed": 15,
    "relay stopped": 15,
    # Two at once: the successor does not hear a relay that has calls.
    "leader and relay killed": 3,
    "leader killed, relay stopped": 3,
    "leader killed, relay cut off": 3,
    "link closed": 6,  # of one relay to the leader
    "link frozen": 6,
    "relay cut off": 4,  # from both dispatchers
    "leader cut off": 3,  # from all relays
    "database restarted": 3,
    "database read-only": 2,
}
WITH_ETCD = {
    "etcd leader killed": 40,
    "leader killed": 25,
    "leader stopped": 15,
    "relay killed": 10,
    "relay stopped": 10,
}
AWAY = "database away"


@dataclass(frozen=True)
class Fault:
    kind: str
    relay: str
    lasts_s: float
    then_s: float  # until the next one


def plan(seed: int, faults: int, *, with_etcd: bool, with_outage: bool) -> list[Fault]:
    chance = random.Random(f"faults {seed}")
    kinds = WITH_ETCD if with_etcd else KINDS
    drawn = chance.choices(list(kinds), list(kinds.values()), k=faults)
    if with_outage:
        drawn[faults // 2] = AWAY
    return [Fault(kind, chance.choice(RELAYS), _lasts_s(kind, chance), chance.uniform(0.0, 0.6)) for kind in drawn]


def _lasts_s(kind: str, chance: random.Random) -> float:
    if kind == AWAY:
        return 30.0
    if kind.endswith("for a moment"):
        return chance.uniform(0.1, 0.9)
    return chance.uniform(0.4, 3.5)
