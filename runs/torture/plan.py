"""The plan of one part: which faults, when and how long, drawn from its seed.

Clients that leave are part of the workload and are not counted here.
"""

from __future__ import annotations

import random

import msgspec

# Share of each kind, in parts of the whole; none is above a fifth.
KINDS = {
    "engine killed": 8,
    "engine stopped": 5,
    "engine slow": 5,
    "engine drops streams": 9,
    "engine dies before answers": 6,
    "engine hangs": 4,
    "engine refuses": 5,
    "engine claims more": 3,
    "engine claims fewer": 2,
    "engine no usage": 2,
    "engine empty body": 2,
    "engine garbage events": 2,
    "engine another's id": 2,
    "engine no text": 2,
    "engine link closed": 6,
    "engine link frozen": 4,
    "engine link slow": 5,
    "engine link truncated": 5,
    "engine link corrupt": 4,
    "relay killed": 6,
    "relay ended": 3,
    "relay slow": 3,  # its process runs for a part of the time
    "relay short of descriptors": 3,
    "relay short of memory": 2,
    "relay all rolled": 1,  # each ended and started, one after the other
    "relay stopped": 6,
    "leader killed": 4,
    "leader stopped": 3,
    "leader ended": 2,
    "standby killed": 3,
    "link closed": 7,  # between a relay and the leader
    "link frozen": 5,
    "link slow": 4,
    "relay cut off": 3,  # from both dispatchers
    "relay disk full": 4,
    "relay disk read-only": 3,
    "relay disk fails": 3,  # its fsync
    "relay disk slow": 3,
    "relay spool restored": 3,  # an older copy of it
    "relay clock stepped": 3,
    "relay clock drifts": 2,
    "standby clock stepped": 2,
    "database killed": 3,
    "database cut": 4,  # all connections to it
    "database read-only": 2,
    "database stopped": 2,
    "database link closed": 3,
    "database link frozen": 3,
    "database link slow": 3,
    "balancer killed": 1,
    "names empty": 2,  # DNS, by which the students are found
    "names dead": 2,
    "names strangers": 2,
    "names silent": 2,
    "certificate expired": 2,  # of the TLS in front, which some clients use
    "configuration changed": 4,
    "configuration broken": 2,
    "key revoked": 3,
}


class Fault(msgspec.Struct, frozen=True):
    kind: str
    at: int  # number of streams that have begun
    lasts_s: float
    dice: int  # decides whom it hits


def plan(seed: int, streams: int, faults: int, kinds: dict[str, int] = KINDS) -> list[Fault]:
    chance = random.Random(f"faults {seed}")
    drawn = chance.choices(list(kinds), list(kinds.values()), k=faults)
    at = sorted(chance.randint(streams // 50, streams * 97 // 100) for _ in range(faults))
    return [
        Fault(kind, number, chance.uniform(0.2, 2.5), chance.getrandbits(32))
        for kind, number in zip(drawn, at, strict=True)
    ]
