"""Where a call is: aboard a replica or held, and what it has used of its pool."""

from __future__ import annotations

from dataclasses import replace

from headway.core.pool import Pool
from headway.core.rate_limit import RateLimit, RateLimiter, TokenLimit
from headway.core.types import EXPRESS, Call
from headway.errors import RefusalReason


class Journey:
    """Aboard `replica`, or held if that is None.

    Not a dataclass: the __init__ of a compiled dataclass is interpreted, and a journey is made for every call."""

    def __init__(self, call: Call, pool: Pool, arrived_at: float) -> None:
        self.call = call
        self.home = pool  # of its model
        self.pool = pool  # where it has its seats, or waits: at home, unless it has overflowed
        self.arrived_at = arrived_at
        self.replica: str | None = None
        self.avoid: set[str] = set()  # replicas that failed this call and have not come up again since
        self.engines_reached = 0
        self.counted = False  # in the reserve, as an express call that is present
        self.seat_us = 0  # from the replicas that it has left
        self.reason: RefusalReason | None = None  # why it was downgraded
        self.rate_limit: RateLimit | None = None  # what its tenant had left when it arrived, this request counted

    @property
    def falls_back(self) -> bool:
        """Whether the call may be served as standard, and some replica could carry all its choices then."""
        return self.call.may_fall_back and self.pool.could_seat(replace(self.call, tier="standard"))

    @property
    def bucket(self) -> tuple[str, TokenLimit] | None:
        """The key and the limit of the bucket that the call uses; None if there is no limit. An API key with its own
        limits has one bucket for the express tiers and one for the others, whatever the model. Otherwise each tier of
        each model has its own bucket."""
        call = self.call
        own = call.express_limit if call.tier in EXPRESS else call.other_limit
        if own is not None:
            return f"{call.tenant} {'express' if call.tier in EXPRESS else 'other'}", own
        limit = self.pool.offers[call.model].tiers[call.tier].limit
        return None if limit.is_none else (f"{call.tenant} {call.tier} {call.model}", limit)

    def count_request(self, limiter: RateLimiter, now: float) -> bool:
        """Count the request against its tenant's limit, unless that is used up. Returns whether it was counted."""
        if (bucket := self.bucket) is None:
            return True
        self.rate_limit = limiter.of(*bucket, now)
        if self.rate_limit is not None and self.rate_limit.is_used_up:
            return False
        limiter.spend(*bucket, now, requests=1)
        self.rate_limit = limiter.of(*bucket, now)
        return True

    def give_back(self, now: float, speed_tps: float | None = None) -> None:
        """Give back the call's seats, or its place among the held calls. `speed_tps` is of its stream, if known."""
        if self.replica is None:
            self.pool.waiting.drop(self.call)
        else:
            self.seat_us += self.pool.free(self.call.id, self.replica, now, speed_tps)
        self.uncount_express(now)

    def count_express(self, now: float) -> None:
        """The call is present from now on, if it has a floor."""
        if self.call.tier in EXPRESS and not self.counted:
            self.counted = True
            self.pool.express_present(self.call.choices, now)

    def uncount_express(self, now: float) -> None:
        if self.counted:
            self.counted = False
            self.pool.express_present(-self.call.choices, now)
