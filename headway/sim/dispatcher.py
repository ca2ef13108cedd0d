"""A dispatcher in virtual time: how long messages and decisions take, and the queue before the core that decides."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headway.core.types import Adopted
from headway.sim.messages import QueueItem, RelayReported


@dataclass(slots=True)
class DispatcherTimes:
    """Seconds that the parts of a cell take. The defaults are measured (docs/LOG.md): `Arrived` to `Board` takes
    0.41 ms p50 and 1.4 ms p99 (runs/relays.sh), and a core decides 14,000 calls per second (runs/dispatcher.sh)."""

    delay_s: float = 5e-6  # a message takes so long at least, each way,
    spread_s: float = 2e-4  # and so much longer on average, with an exponential distribution
    call_s: float = 70e-6  # of the dispatcher's core, for all events of a call: half when it arrives, half when it ends
    adopted_s: float = 15e-6  # for a call that a relay reports to a new dispatcher: 10 to read it and to step
    retry_s: float = 0.2  # a relay looks for a dispatcher again within so long
    probe_s: float = 0.05  # an engine is probed and counted in so long
    between_cells_s: float = 0.02  # a call goes from one cell to another in so long

    @classmethod
    def there_and_back(cls, median_s: float) -> DispatcherTimes:
        """The measured times, with a network between relays and dispatcher: `Arrived` to `Board` in so long (p50)."""
        least = cls()
        return cls(delay_s=least.delay_s + max(0.0, median_s - MEASURED_S) / 2)

    def of(self, item: QueueItem) -> float:
        """What the item takes of the dispatcher's core."""
        if isinstance(item, Adopted):
            return self.adopted_s
        return 0.0 if isinstance(item, RelayReported) else self.call_s / 2


MEASURED_S = 0.41e-3


@dataclass(slots=True)
class DispatcherFault:
    """The dispatcher of a cell dies. Its standby leads after `takeover_s`."""

    at: float
    takeover_s: float
    cell: int = 0


@dataclass(slots=True)
class Takeover:
    """What happened when, after a dispatcher had died."""

    cell: int
    died_at: float
    adopted: int = 0  # calls that relays told the new dispatcher
    settled_at: float | None = None  # all relays had reported
    boarded_at: float | None = None  # the first call boarded
    opened_at: float | None = None  # all replicas were open


class SimDispatcher:
    def __init__(self) -> None:
        self.epoch = 0
        self.is_alive = True
        self.is_busy = False
        self.queue: deque[QueueItem] = deque()
        self.unreported: set[int] = set()  # relays that a new dispatcher waits for
        self.unopened: set[str] = set()  # replicas that it has not opened
        self.strangers: dict[str, int] = {}  # by replica; no zeros
        self.takeover: Takeover | None = None  # until it is complete

    def has_boarded(self, now: float) -> None:
        """One of its calls has boarded."""
        if self.is_alive and self.takeover is not None and self.takeover.boarded_at is None:
            self.takeover.boarded_at = now

    def end(self) -> None:
        """It dies, with all that it has not decided. Messages to it are for an epoch that is over."""
        self.epoch += 1
        self.is_alive = self.is_busy = False
        self.queue.clear()
        self.unreported.clear()
        self.unopened.clear()
        self.strangers.clear()
