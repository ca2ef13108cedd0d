"""Limits the time that the gateway spends on reading and checking the requests of one key.

Requests are read on the event loop, and no stream moves meanwhile. Nearly all take far less than a millisecond. What
one takes beyond that counts against its key, and a key that has used up its time is refused before its request is read.
Each request is bounded by itself (api/limits.py, api/grammars.py); this bounds how many expensive ones may follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.core.rate_limit import RateLimiter, TokenLimit
from headway.errors import Refused

FREE_S = 0.001  # of each request
# Microseconds per minute, 3 s in all: 5 % of the event loop's time. A prompt of a megabyte takes a few milliseconds.
LIMIT = TokenLimit(input_tpm=3_000_000)


class CheckTime:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = RateLimiter()

    def admit(self, tenant: str) -> None:
        """Raises Refused if the tenant's time is used up."""
        left = self._limiter.of(tenant, LIMIT, self._clock())
        if left is not None and left.is_used_up:
            raise Refused("check_time", left.retry_after_s)

    @contextmanager
    def charging(self, tenant: str) -> Iterator[None]:
        """Charge what the block takes. It must not await: the time of other calls would count."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.charge(tenant, time.thread_time() - began)

    def charge(self, tenant: str, seconds: float) -> None:
        if seconds > FREE_S:
            self._limiter.spend(tenant, LIMIT, self._clock(), input=round((seconds - FREE_S) * 1e6))
