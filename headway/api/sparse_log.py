"""A log for what clients can cause any number of times: at most one message per second, and a count of the others."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("headway.api")

INTERVAL_S = 1.0


class SparseLog:
    def __init__(self, level: int) -> None:
        self._level = level
        self._logged_at = float("-inf")
        self._left_out = 0

    def write(self, message: str, error: Exception | None = None) -> None:
        now = time.monotonic()
        if now - self._logged_at < INTERVAL_S:
            self._left_out += 1
            return
        kind = logging.getLevelName(self._level).lower()
        left_out = f" ({self._left_out} earlier {kind}s left out)" if self._left_out else ""
        log.log(self._level, "%s%s", message, left_out, exc_info=error)
        self._logged_at, self._left_out = now, 0
