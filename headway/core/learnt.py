"""What a core has learnt beside its calls and replicas, as plain values for the core that follows it.

Levels and durations only: the other core may run by another clock. What is given to a core is checked there: numbers
outside their range, or that are none, count as the nearest that is possible, and what is not known to it is ignored.

Not included: which replica has read which prompt (large, and only a preference), the seat-time of calls aboard, and the
order of replicas that are equally suited.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_TENANTS = 8_192  # in the fair queues of all pools together; of more, the most served of each
MAX_BUCKETS = 8_192  # of limits per minute; of more, those used last
MAX_REPLICAS = 16_384  # of each pool
MOST = 1e9  # of a number that has no other limit


def within(value: float, least: float, most: float = MOST) -> float:
    """The nearest number in this range; `least` if the value is not a number."""
    if not value >= least:
        return least
    return min(value, most)


@dataclass(slots=True)
class LearntReplica:
    """How slow a replica is (feedback.py), compared with a curve that needs `curve_s` for each token of one stream."""

    name: str
    curve_s: float
    mean: float
    caps_slowness: float  # by which its caps were computed
    retry_in_s: float | None  # None: it is not shut out


@dataclass(slots=True)
class LearntCaps:
    """Replicas without a measured speed are not listed."""

    width: float
    square: float
    streams: int
    caps_share: float
    replicas: list[LearntReplica]


@dataclass(slots=True)
class LearntPace:
    tokens: float
    seat_s: float
    answer_tokens: float


@dataclass(slots=True)
class LearntForecaster:
    level: float
    slope: float
    dispersion: float
    made: list[float]


@dataclass(slots=True)
class LearntReserve:
    lead_s: float
    width: float
    free_width: float
    calls: int
    late: int
    late_after_ride: int
    forecast: float
    deviation: float
    since_ride_s: float | None
    since_step_s: float | None
    since_steered_s: float
    forecasters: list[LearntForecaster]


@dataclass(slots=True)
class LearntTenant:
    name: str
    served: float  # tokens


@dataclass(slots=True)
class LearntQueue:
    tier: str
    tenants: list[LearntTenant]


@dataclass(slots=True)
class LearntWaiting:
    freed_each_s: float
    since_freed_s: float | None
    queues: list[LearntQueue]


@dataclass(slots=True)
class LearntPool:
    name: str
    pace: LearntPace
    caps: LearntCaps
    reserve: LearntReserve
    waiting: LearntWaiting


@dataclass(slots=True)
class LearntBucket:
    """What is missing in a bucket of a limit per minute, and for how long it has been refilled since."""

    name: str
    since_s: float
    input: float
    output: float
    requests: float


@dataclass(slots=True)
class Learnt:
    pools: list[LearntPool]
    buckets: list[LearntBucket]
