"""The ids of calls."""

from __future__ import annotations

import secrets
import time


def new_call_id() -> str:
    """A unique id that sorts by time: milliseconds, then 80 random bits."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
