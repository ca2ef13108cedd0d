"""Limits per minute for each tenant, in requests and in tokens: token buckets that refill at the rate of the limit.

The tokens of a call are known only when it has ended, so running calls may overdraw a bucket. New calls are then over
the limit until it has refilled. `now` is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from math import ceil

from headway.core.learnt import MAX_BUCKETS, LearntBucket, within

MINUTE_S = 60.0
MAX_TENANTS = 65_536


@dataclass(slots=True)
class TokenLimit:
    """Limits per minute; 0 means no limit."""

    input_tpm: int = 0
    output_tpm: int = 0
    requests_pm: int = 0

    @property
    def is_none(self) -> bool:
        return not (self.input_tpm or self.output_tpm or self.requests_pm)


@dataclass(slots=True)
class RateLimit:
    """What is left of a limit, and the time until it is full again."""

    limit: TokenLimit
    input_left: int
    output_left: int
    requests_left: int
    input_full_in_s: float
    output_full_in_s: float
    requests_full_in_s: float = 0.0

    @property
    def is_used_up(self) -> bool:
        return any(per_minute > 0 and left <= 0 for per_minute, left in self._parts())

    @property
    def retry_after_s(self) -> int:
        """Seconds until there is at least one request and one token of each kind."""
        waits = [(1 - left) * MINUTE_S / per_minute for per_minute, left in self._parts() if per_minute]
        return ceil(max(1.0, *waits))

    def _parts(self) -> tuple[tuple[int, int], ...]:
        return (
            (self.limit.input_tpm, self.input_left),
            (self.limit.output_tpm, self.output_left),
            (self.limit.requests_pm, self.requests_left),
        )


class RateLimiter:
    """The buckets of all tenants. Bounded: the least recently used bucket is dropped, and is full when used again."""

    def __init__(self) -> None:
        # tenant -> time, and what was missing then: input, output, requests
        self._missing: OrderedDict[str, tuple[float, float, float, float]] = OrderedDict()

    def of(self, tenant: str, limit: TokenLimit, now: float) -> RateLimit | None:
        """What is left of the tenant's limit; None if there is no limit."""
        if limit.is_none:
            return None
        missing_input, missing_output, missing_requests = self._missing_now(tenant, limit, now)
        return RateLimit(
            limit,
            int(limit.input_tpm - missing_input),
            int(limit.output_tpm - missing_output),
            int(limit.requests_pm - missing_requests),
            missing_input * MINUTE_S / limit.input_tpm if limit.input_tpm else 0.0,
            missing_output * MINUTE_S / limit.output_tpm if limit.output_tpm else 0.0,
            missing_requests * MINUTE_S / limit.requests_pm if limit.requests_pm else 0.0,
        )

    def spend(
        self, tenant: str, limit: TokenLimit, now: float, *, input: int = 0, output: int = 0, requests: int = 0
    ) -> None:
        if limit.is_none:
            return
        missing_input, missing_output, missing_requests = self._missing_now(tenant, limit, now)
        self._missing[tenant] = (now, missing_input + input, missing_output + output, missing_requests + requests)
        self._missing.move_to_end(tenant)
        if len(self._missing) > MAX_TENANTS:
            self._missing.popitem(last=False)

    def learnt(self, now: float) -> list[LearntBucket]:
        """The buckets that were used last, and those before them first: they have refilled the least."""
        latest = list(islice(reversed(self._missing.items()), MAX_BUCKETS))
        latest.reverse()
        return [
            LearntBucket(tenant, now - missing[0], missing[1], missing[2], missing[3]) for tenant, missing in latest
        ]

    def recall(self, buckets: list[LearntBucket], age_s: float, now: float) -> None:
        """Take over the buckets of another core. What was spent here since counts as spent then."""
        for one in buckets[:MAX_BUCKETS]:
            _, spent_input, spent_output, spent_requests = self._missing.get(one.name, (now, 0.0, 0.0, 0.0))
            self._missing[one.name] = (
                now - within(one.since_s + age_s, 0.0),
                spent_input + within(one.input, 0.0),
                spent_output + within(one.output, 0.0),
                spent_requests + within(one.requests, 0.0),
            )
            self._missing.move_to_end(one.name)
            if len(self._missing) > MAX_TENANTS:
                self._missing.popitem(last=False)

    def _missing_now(self, tenant: str, limit: TokenLimit, now: float) -> tuple[float, float, float]:
        at, missing_input, missing_output, missing_requests = self._missing.get(tenant, (now, 0.0, 0.0, 0.0))
        minutes = (now - at) / MINUTE_S
        return (
            max(0.0, missing_input - minutes * limit.input_tpm),
            max(0.0, missing_output - minutes * limit.output_tpm),
            max(0.0, missing_requests - minutes * limit.requests_pm),
        )
