"""A lease without a store, and a clock that tests set."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headway.dispatch.lease import LEASE_S, LeaseUnavailable


@dataclass
class FakeTime:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeRow:
    """The row of a cell, with a clock of its own."""

    clock: FakeTime
    epoch: int = 0
    holder: str = ""
    ends: float = 0.0
    away: set[str] = field(default_factory=set)  # who cannot reach it


class Pause:
    """Awaited while a request or its answer is on the way."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass
class FakeLease:
    row: FakeRow
    holder: str
    lease_s: float = LEASE_S

    async def take(self, above: int = 0) -> int | None:
        await self._reach()
        row = self.row
        if row.holder != self.holder and row.clock.now <= row.ends:
            epoch = None
        else:
            epoch = row.epoch = max(row.epoch, above) + 1
            row.holder, row.ends = self.holder, row.clock.now + self.lease_s
        await self._answer()
        return epoch

    async def renew(self, epoch: int) -> bool:
        await self._reach()
        is_kept = (self.row.holder, self.row.epoch) == (self.holder, epoch)
        if is_kept:
            self.row.ends = self.row.clock.now + self.lease_s
        await self._answer()
        return is_kept

    async def release(self, epoch: int) -> None:
        await self._reach()
        if (self.row.holder, self.row.epoch) == (self.holder, epoch):
            self.row.holder, self.row.ends = "", 0.0
        await self._answer()

    async def close(self) -> None:
        pass

    async def _reach(self) -> None:
        await Pause()
        if self.holder in self.row.away:
            raise LeaseUnavailable

    _answer = _reach  # an answer can be lost, too, after the request took effect


def finished(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end, without an event loop and in no time."""
    with suppress(StopIteration):
        while True:
            work.send(None)
