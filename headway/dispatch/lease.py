"""Who leads a cell: a lease with an epoch, and what its holder may conclude from it.

Knows nothing of calls, replicas or sockets. The store of a lease decides who may stand; the relays decide who is
obeyed.

    LeaderLease     Protocol: take, renew, release; in PostgreSQL, in etcd, or on a file
    Leadership      what a dispatcher asks before each decision

Invariant: of two dispatchers that both may decide, at most one is obeyed by any relay. It holds if relays obey and echo
only the highest epoch they have seen, and if clocks run at about the same rate (MARGIN_S). Clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Protocol

# A standby can take over this long after the last renewal of a leader that died. Renewed every third of it, so that a
# renewal can fail once and be repeated in time.
LEASE_S = 1.5
# How long an echo counts. Several heartbeats must fit in. A new leader that not all relays have accepted waits as long.
ECHO_S = 0.6
# A leader stops this long before its time is over, because clocks do not run at exactly the same rate.
MARGIN_S = 0.1


class LeaseUnavailable(Exception):
    """The store of the lease cannot be reached, does not answer in time, or takes no writes now: try again later."""


class LeaderLease(Protocol):
    """The lease of one cell, as one dispatcher sees it. Calls must not overlap.

    Every method returns or raises LeaseUnavailable within a third of `lease_s`. What raised may still take effect.
    """

    @property
    def lease_s(self) -> float:
        """How long the lease lasts after `take` or `renew`, counted from when the store handled the request."""

    async def take(self, above: int = 0) -> int | None:
        """Try to become the leader. Returns the new epoch, or None if another dispatcher holds the lease.

        The epoch is higher than all before it, and higher than `above`: a store that has lost its last commits, such as
        a standby that took over, learns from the relays which epochs are used up. A holder gets a new epoch at once.
        """

    async def renew(self, epoch: int) -> bool:
        """Extend the lease. False: it is lost for good; another dispatcher has taken it, or can."""

    async def release(self, epoch: int) -> None:
        """Let another dispatcher take the lease at once. Does nothing if this epoch is over."""

    async def close(self) -> None:
        """Close connections and files. Releases nothing on purpose."""


class Leadership:
    """Whether a dispatcher may decide now. Await one of its methods at a time; cancel `renew` to resign at once.

    `clock` is monotonic and never cached: use `time.monotonic`. uvloop reads its clock once for each turn of the loop,
    so a process that is stopped within a turn would not notice.
    """

    def __init__(self, lease: LeaderLease, clock: Callable[[], float]) -> None:
        self.epoch: int | None = None  # None: it does not lead
        self._lease = lease
        self._clock = clock
        self._is_store_away = False
        self._since = 0.0
        self._lease_ends = 0.0
        self._echoes_end = 0.0
        self._starts = 0.0

    async def stand(self, above: int = 0) -> bool:
        """Try to become the leader, with an epoch higher than `above`. Raises LeaseUnavailable.

        Call it again if a relay knows a higher epoch, or the same one from another dispatcher."""
        self.epoch = None
        sent = self._clock()
        epoch = await self._lease.take(above)
        if epoch is None:
            return False
        self.epoch = epoch
        self._is_store_away = False
        self._since = self._clock()
        self._lease_ends = sent + self._lease.lease_s - MARGIN_S
        self._echoes_end = float("-inf")
        self._starts = float("inf")
        return True

    async def renew(self) -> None:
        """Call every third of the lease's time, and once after each pause, while it leads. Sets `epoch` to None if
        the lease is lost."""
        epoch = self.epoch
        if epoch is None:
            return
        sent = self._clock()
        try:
            is_kept = await self._lease.renew(epoch)
        except LeaseUnavailable:
            self._is_store_away = True
            return
        if is_kept:
            self._is_store_away = False
            self._lease_ends = sent + self._lease.lease_s - MARGIN_S
        else:
            self.epoch = None

    async def resign(self) -> None:
        """Stop deciding, then let another dispatcher take over at once."""
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            with suppress(LeaseUnavailable):  # then it ends by itself
                await self._lease.release(epoch)

    def heard_from(self, echoes: Collection[float], of: int) -> None:
        """Tell which relays accept this epoch: for each, when the last heartbeat that it echoed was sent.

        `of` counts all relays of the cell, also those that cannot be reached, so that two majorities share a relay.
        """
        mine = sorted((sent for sent in echoes if sent >= self._since), reverse=True)
        if self.epoch is None or 2 * len(mine) <= of:
            return
        # Of the newest echoes of more than half of the relays, the oldest.
        self._echoes_end = mine[of // 2] + ECHO_S - MARGIN_S
        # A relay that has not accepted this epoch may obey the leader before. That one has lost its majority, and its
        # last echoes expire within ECHO_S. If all relays have accepted, nobody obeys it: there is nothing to wait for.
        wait_s = 0.0 if len(mine) >= of else ECHO_S
        self._starts = min(self._starts, self._clock() + wait_s)

    def may_decide(self, now: float) -> bool:
        """Whether this dispatcher may decide at `now`, read from the clock immediately before."""
        if self.epoch is None or now < self._starts:
            return False
        return now < self._lease_ends or (self._is_store_away and now < self._echoes_end)
