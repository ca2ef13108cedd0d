"""What a dispatcher has learnt is kept by two of its relays, and goes to the dispatcher that follows it.

So no third process is needed, and a dispatcher still holds nothing that its relays cannot tell it. For relays it is a
piece of bytes. The age of what they kept is counted by their clocks, so that no point in time is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import isfinite
from typing import Any

import msgspec

from headway.core.learnt import Learnt
from headway.core.machine import Machine
from headway.core.types import Remembered
from headway.dispatch.frames import MAX_LEARNT, Keep, Kept
from headway.dispatch.rows import RowSet

log = logging.getLogger("headway.dispatch")

KEEPERS = 2  # relays that keep it: one may die together with the dispatcher
EVERY_S = 2.0
# At least, between two times. With 10,000 replicas it lasts 20 to 40 ms, while nobody gets a seat: calls that wait for
# it, and for what has come meanwhile, must stay well below one per cent.
TIMES_ITS_COST = 500.0

_rows = RowSet([Learnt])
_to_row = _rows.to_row[Learnt]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_rows.union).decode


class Handover:
    """The dispatcher's side."""

    def __init__(self, machine: Machine, epoch: int, clock: Callable[[], float]) -> None:
        self._machine = machine
        self._epoch = epoch
        self._clock = clock
        self._number = 0
        self._next_at = clock() + EVERY_S
        self._is_taken = False
        self._newest: Kept | None = None
        self._newest_at = 0.0  # when it came

    def keep(self) -> Keep | None:
        """What two relays should keep now; None if it is not time yet, or there is too much of it."""
        began_at = self._clock()
        if began_at < self._next_at:
            return None
        learnt = encode_learnt(self._machine.learnt(began_at))
        now = self._clock()
        self._next_at = now + max(EVERY_S, TIMES_ITS_COST * (now - began_at))
        self._number += 1
        if len(learnt) > MAX_LEARNT:
            if self._number == 1:
                log.warning("%d bytes of what was learnt are too many to be kept for the next one", len(learnt))
            return None
        return Keep(self._number, learnt)

    def offered(self, kept: Kept) -> None:
        """A relay has kept this. The newest counts; what comes after it was taken is too late."""
        is_newer = self._newest is None or (kept.epoch, kept.number) > (self._newest.epoch, self._newest.number)
        if kept.epoch < self._epoch and is_newer and not self._is_taken:
            self._newest, self._newest_at = kept, self._clock()

    def take(self) -> Remembered | None:
        """The newest that relays have kept, once; None if there is none that can be read."""
        kept, self._newest, self._is_taken = self._newest, None, True
        if kept is None:
            return None
        learnt = decode_learnt(kept.learnt)
        if learnt is None or not isfinite(kept.age_s):
            log.warning("what the dispatcher of epoch %d had learnt cannot be read", kept.epoch)
            return None
        age_s = max(0.0, kept.age_s) + self._clock() - self._newest_at
        log.info("going on with what the dispatcher of epoch %d had learnt %.1f s ago", kept.epoch, age_s)
        return Remembered(learnt, age_s)


def encode_learnt(learnt: Learnt) -> bytes:
    return _encode(_to_row(learnt))


def decode_learnt(payload: bytes) -> Learnt | None:
    """None if it cannot be read. All its numbers are finite: others could not be recorded."""
    try:
        row = _decode(payload)
    except (ValueError, RecursionError):
        return None
    if not _is_finite(msgspec.to_builtins(row)):
        return None
    learnt: Learnt = _rows.from_row[type(row)](row)
    return learnt


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return all(map(_is_finite, value)) if isinstance(value, list) else True


class Keeper:
    """The relay's side."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: tuple[int, Keep, float] | None = None  # by the dispatcher of this epoch; when it came

    def keep(self, message: Keep, epoch: int) -> None:
        self._kept = epoch, message, self._clock()

    def kept_for(self, epoch: int) -> Kept | None:
        """For the dispatcher of this epoch; None if nothing of an earlier one was kept."""
        if self._kept is None or self._kept[0] >= epoch:
            return None
        earlier, message, at = self._kept
        return Kept(earlier, message.number, self._clock() - at, message.learnt)
