"""Intervals and timeouts of a gateway."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and timeouts for replicas and clients; see docs/reference/configuration.md."""

    probe_interval_s: float = 1.0
    stall_s: float = 30.0
    reader_stall_s: float = 30.0
