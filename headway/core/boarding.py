"""Boarding for one model: which replica a call boards, whether it is held, when it is refused.

Knows seats, the calls held in order of arrival, and the pace at which seats come free. Does not know what a call is for
beyond its id, and does no I/O: `now` is an argument.

Invariants (tests/core/test_machine.py):
- a replica never carries more streams than it has seats;
- a call is held only while there is no open seat that it may take;
- held calls board in order of arrival, behind those whose engine failed and who wait for a second one.

Cost: O(1) per call in the number of replicas and of held calls. Open replicas stand in one row per load ("two aboard",
"three aboard"); loads change by one at a time, so the lightest row is found by a pointer that moves one step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from headway.core.types import Call, ModelPolicy, Replica

MAX_RETRY_AFTER_S = 60
NOT_IN_A_ROW = -1


@dataclass(slots=True)
class _Carrier:
    replica: Replica
    open: bool = True
    row: int = NOT_IN_A_ROW
    aboard: OrderedDict[str, None] = field(default_factory=OrderedDict)


@dataclass(slots=True)
class _Held:
    call: Call
    until: float
    avoid: Set[str]  # shared with the machine: replicas that failed this call


class Boarding:
    """The seats of one model and the calls that wait for them."""

    def __init__(self, policy: ModelPolicy) -> None:
        self.policy = policy
        self.open_replicas = 0
        self._carriers: dict[str, _Carrier] = {}
        self._rows: list[OrderedDict[str, _Carrier]] = [OrderedDict()]
        self._lightest = 0
        # Two queues, so that in each the deadlines are in order and expiry looks at the front only.
        self.returned: OrderedDict[str, _Held] = OrderedDict()
        self._arrived: OrderedDict[str, _Held] = OrderedDict()
        self._pace_s = 1.0  # smoothed time between two seats coming free
        self._last_freed_at: float | None = None

    # --- replicas ---

    def replica_up(self, replica: Replica) -> None:
        carrier = self._carriers.get(replica.name)
        if carrier is None:
            self._carriers[replica.name] = carrier = _Carrier(replica, open=False)
        carrier.replica = replica
        self._set_open(carrier, value=True)

    def replica_suspect(self, name: str) -> None:
        if carrier := self._carriers.get(name):
            self._set_open(carrier, value=False)

    def replica_down(self, name: str) -> list[str]:
        """Forget the replica; returns the calls that were aboard."""
        carrier = self._carriers.pop(name, None)
        if carrier is None:
            return []
        self._set_open(carrier, value=False)
        return list(carrier.aboard)

    @property
    def known_replicas(self) -> int:
        return len(self._carriers)

    # --- seats ---

    def seat(self, call: Call, avoid: Set[str]) -> str | None:
        """Give the call a seat on the lightest open replica it may board; None if there is none."""
        carrier = self._lightest_open(avoid)
        if carrier is None:
            return None
        carrier.aboard[call.id] = None
        self._place(carrier)
        return carrier.replica.name

    def free(self, call_id: str, replica: str, now: float) -> None:
        carrier = self._carriers.get(replica)
        if carrier is None or call_id not in carrier.aboard:
            return  # the replica went down in between, and its seats with it
        del carrier.aboard[call_id]
        self._place(carrier)
        if self._last_freed_at is not None:
            self._pace_s += 0.1 * (now - self._last_freed_at - self._pace_s)
        self._last_freed_at = now

    def aboard(self, replica: str) -> int:
        carrier = self._carriers.get(replica)
        return len(carrier.aboard) if carrier else 0

    def is_open(self, replica: str) -> bool:
        carrier = self._carriers.get(replica)
        return carrier is not None and carrier.open

    # --- held calls ---

    @property
    def held(self) -> int:
        return len(self._arrived) + len(self.returned)

    @property
    def is_full(self) -> bool:
        return len(self._arrived) >= self.policy.max_held

    def hold(self, call: Call, now: float, avoid: Set[str], *, returned: bool) -> float:
        """Keep the call waiting; returns its deadline."""
        until = now + self.policy.max_hold_s
        queue = self.returned if returned else self._arrived
        queue[call.id] = _Held(call, until, avoid)
        return until

    def drop(self, call_id: str) -> None:
        if self._arrived.pop(call_id, None) is None:
            self.returned.pop(call_id, None)

    def next_boarding(self) -> tuple[Call, str] | None:
        """The held call that boards next, and where; None while nobody can."""
        for held in self._in_order():
            replica = self.seat(held.call, held.avoid)
            if replica is not None:
                self.drop(held.call.id)
                return held.call, replica
            if not held.avoid:
                return None  # no open seat at all: nobody behind can board either
        return None

    def expired(self, now: float) -> list[Call]:
        """Take out the held calls whose time is up."""
        due = []
        for queue in (self.returned, self._arrived):
            while queue:
                held = next(iter(queue.values()))
                if held.until > now:
                    break
                queue.popitem(last=False)
                due.append(held.call)
        return due

    def retry_after_s(self) -> int:
        """When a seat can be hoped for, were the call to come back: the queue's length at the pace seen lately."""
        return min(MAX_RETRY_AFTER_S, 1 + int(self._pace_s * self.held))

    def _in_order(self) -> Iterator[_Held]:
        yield from self.returned.values()
        yield from self._arrived.values()

    # --- rows ---

    def _lightest_open(self, avoid: Set[str]) -> _Carrier | None:
        if not avoid:
            return next(iter(self._rows[self._lightest].values()), None)
        for row in self._rows[self._lightest :]:
            for name, carrier in row.items():
                if name not in avoid:
                    return carrier
        return None

    def _set_open(self, carrier: _Carrier, *, value: bool) -> None:
        self.open_replicas += value - carrier.open
        carrier.open = value
        self._place(carrier)

    def _place(self, carrier: _Carrier) -> None:
        """Put the carrier into the row of its load, or into none if it takes no calls, and follow with the pointer."""
        name, load = carrier.replica.name, len(carrier.aboard)
        if carrier.row != NOT_IN_A_ROW:
            del self._rows[carrier.row][name]
        takes_calls = carrier.open and load < carrier.replica.seats
        carrier.row = load if takes_calls else NOT_IN_A_ROW
        if takes_calls:
            while len(self._rows) <= load:
                self._rows.append(OrderedDict())
            self._rows[load][name] = carrier
            self._lightest = min(self._lightest, load)
        while not self._rows[self._lightest] and self._lightest < len(self._rows) - 1:
            self._lightest += 1
