"""Deals replicas out over relays: each replica is probed by one relay, and few change hands when relays come and go."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence


def deal(replicas: Iterable[str], relays: Sequence[str]) -> list[list[str]]:
    """The replicas of each relay, in the order of `relays`: each goes to the relay with the highest score for it."""
    dealt: list[list[str]] = [[] for _ in relays]
    for replica in replicas if relays else ():
        scores = [zlib.crc32(f"{relay} {replica}".encode()) for relay in relays]
        dealt[scores.index(max(scores))].append(replica)
    return dealt
