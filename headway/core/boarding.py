"""Boarding for one model: the express rule, and around it who waits, where calls go, and which doors are closed.

    A replica that carries a stream with a promised floor takes no more streams than that floor allows;
    a stream with a floor boards only a replica that is, and stays, light enough.

A replica is *light* while its doors are closed to streams beyond its light seats (the batch at which its curve keeps
the floor), and *heavy* otherwise. An express call makes the replica it boards light; the last one to leave lets it be
heavy again. Light seats are kept ready ahead of demand (reserve.py) by closing the doors of the emptiest heavy replica;
what is ready beyond the reserve, standard calls may ride on. The standard share bounds how many replicas may be light.

Invariants (tests/core/test_boarding.py):
- a replica never carries more streams than its limit: its seats, or what the strictest floor aboard allows;
- a heavy replica carries no express stream;
- no more replicas are light than the standard share leaves;
- a call is held only while there is no seat that it may take.

Cost: O(1) per call in replicas and held calls (O(log tenants) for fairness): replicas stand in rows by a small number,
and a bit mask says which rows are not empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from headway.core.fairness import FairQueue, Held
from headway.core.reserve import Reserve
from headway.core.types import EXPRESS, Call, ModelPolicy, Replica, Tier

MAX_RETRY_AFTER_S = 60


@dataclass(slots=True)
class Carrier:
    """A replica with what is aboard."""

    replica: Replica
    caps: dict[Tier, int]  # the largest batch that keeps each express tier's floor here
    light_seats: int  # the largest of them: what the replica offers while it is light
    open: bool = True
    light: bool = False
    aboard: dict[str, Tier] = field(default_factory=dict)
    express: dict[Tier, int] = field(default_factory=dict)  # express streams aboard, by tier
    rows: Rows | None = None
    row: int = 0
    ready: int = 0  # free light seats, as counted in the total

    @property
    def limit(self) -> int:
        """How many streams it may carry as it is now."""
        if not self.light:
            return self.replica.seats
        return min([self.light_seats, *(self.caps[tier] for tier, count in self.express.items() if count)])


class Rows:
    """Carriers in rows by a small number; the first non-empty row from either end is found without looking."""

    def __init__(self) -> None:
        self._rows: list[OrderedDict[str, Carrier]] = []
        self._mask = 0

    def put(self, carrier: Carrier, row: int) -> None:
        while len(self._rows) <= row:
            self._rows.append(OrderedDict())
        self._rows[row][carrier.replica.name] = carrier
        self._mask |= 1 << row
        carrier.rows, carrier.row = self, row

    def take(self, carrier: Carrier) -> None:
        row = self._rows[carrier.row]
        del row[carrier.replica.name]
        if not row:
            self._mask &= ~(1 << carrier.row)
        carrier.rows = None

    def lowest(self, avoid: Set[str] = frozenset()) -> Carrier | None:
        if not self._mask:
            return None
        if not avoid:
            return next(iter(self._rows[(self._mask & -self._mask).bit_length() - 1].values()))
        return next((c for row in self._rows for name, c in row.items() if name not in avoid), None)

    def from_highest(self, avoid: Set[str]) -> Iterator[Carrier]:
        """The first carrier of each row, highest row first."""
        for row in reversed(self._rows):
            found = next((c for name, c in row.items() if name not in avoid), None)
            if found is not None:
                yield found


class Boarding:
    """The seats of one model and the calls that wait for them."""

    def __init__(self, policy: ModelPolicy) -> None:
        self.policy = policy
        self.open_replicas = 0
        self.light_replicas = 0
        self.queues = {tier: FairQueue() for tier in policy.tiers}
        self.returned: OrderedDict[str, Held] = OrderedDict()  # those whose engine failed: before all others
        self._carriers: dict[str, Carrier] = {}
        self._heavy = Rows()  # heavy, open and with a free seat, by load
        self._full: OrderedDict[str, Carrier] = OrderedDict()  # heavy, open and full
        self._light = Rows()  # light, open and with a free light seat, by how many
        self._idle_light: OrderedDict[str, Carrier] = OrderedDict()  # light, open, and no express stream aboard
        self._light_capacity = 0
        self._ready = 0
        self._reserve = Reserve(policy.reserve_window_s, policy.reserve_headroom)
        self._pace_s = 1.0  # smoothed time between two seats coming free
        self._last_freed_at: float | None = None

    # --- replicas ---

    def replica_up(self, replica: Replica) -> None:
        carrier = self._carriers.get(replica.name)
        if carrier is None:
            caps = self._caps(replica)
            carrier = Carrier(replica, caps, max(caps.values(), default=0), open=False)
            self._carriers[replica.name] = carrier
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
        self._set_light(carrier, value=False)  # whatever it still carries: it counts no more
        return list(carrier.aboard)

    @property
    def known_replicas(self) -> int:
        return len(self._carriers)

    def aboard(self, replica: str) -> int:
        carrier = self._carriers.get(replica)
        return len(carrier.aboard) if carrier else 0

    def is_open(self, replica: str) -> bool:
        carrier = self._carriers.get(replica)
        return carrier is not None and carrier.open

    def carrier(self, replica: str) -> Carrier | None:
        return self._carriers.get(replica)

    def _caps(self, replica: Replica) -> dict[Tier, int]:
        """A replica without a curve keeps no promise: nothing is known of its speed."""
        if replica.curve is None:
            return {}
        floors = {tier: policy.floor_tps for tier, policy in self.policy.tiers.items() if tier in EXPRESS}
        return {
            tier: replica.curve.largest_batch(floor_tps, replica.seats, self.policy.margin)
            for tier, floor_tps in floors.items()
        }

    # --- seats ---

    def seat(self, call: Call, avoid: Set[str], now: float) -> str | None:
        """Give the call a seat; None if there is none that it may take."""
        if call.tier in EXPRESS:
            carrier = self._express_seat(call.tier, avoid)
        else:
            carrier = self._heavy.lowest(avoid) or self._ride(avoid, now)
        if carrier is None:
            return None
        carrier.aboard[call.id] = call.tier
        if call.tier in EXPRESS:
            carrier.express[call.tier] = carrier.express.get(call.tier, 0) + 1
            self._set_light(carrier, value=True)
        self._place(carrier)
        return carrier.replica.name

    def _express_seat(self, tier: Tier, avoid: Set[str]) -> Carrier | None:
        # Best fit: the light replica with the fewest free seats, so that others stay whole. A stricter tier than the
        # light seats are made for needs an emptier one, and goes from the emptiest.
        fits = self._light.lowest(avoid)
        if fits is not None and len(fits.aboard) < min(fits.limit, fits.caps[tier]):
            return fits
        for carrier in self._light.from_highest(avoid):
            if len(carrier.aboard) < min(carrier.limit, carrier.caps[tier]):
                return carrier
        if self.light_replicas < self.max_light_replicas:
            lightest = self._heavy.lowest(avoid)
            if lightest is not None and len(lightest.aboard) < lightest.caps.get(tier, 0):
                return lightest
        return None

    def _ride(self, avoid: Set[str], now: float) -> Carrier | None:
        """A light seat for a call without a floor, if more are ready than the reserve."""
        reserve = self._reserve.wanted_seats(now) - self._reserve.present
        return self._light.lowest(avoid) if self._ready > max(0, reserve) else None

    def free(self, call_id: str, replica: str, now: float) -> None:
        carrier = self._carriers.get(replica)
        if carrier is None or call_id not in carrier.aboard:
            return  # the replica went down in between, and its seats with it
        tier = carrier.aboard.pop(call_id)
        if tier in EXPRESS:
            carrier.express[tier] -= 1
        self._place(carrier)
        if self._last_freed_at is not None:
            self._pace_s += 0.1 * (now - self._last_freed_at - self._pace_s)
        self._last_freed_at = now

    # --- doors ---

    @property
    def max_light_replicas(self) -> int:
        """What the standard share leaves. A single replica is light or heavy as calls come: it cannot be shared."""
        if self.open_replicas == 1:
            return 1
        return int(self.open_replicas * (1.0 - self.policy.standard_share) + 1e-9)

    def express_present(self, by: int, now: float) -> None:
        """An express call has come (+1) or gone (-1), aboard or held."""
        self._reserve.change(by, now)

    def set_doors(self, now: float) -> None:
        """Close and open doors so that there are as many light seats, taken and ready, as the reserve wants."""
        wanted = self._reserve.wanted_seats(now)
        while self._light_capacity < wanted and self.light_replicas < self.max_light_replicas:
            carrier = self._heavy.lowest() or next(iter(self._full.values()), None)
            if carrier is None or not carrier.light_seats:
                break
            self._set_light(carrier, value=True)
            self._place(carrier)
        while self._idle_light:
            carrier = next(iter(self._idle_light.values()))
            spare = self._light_capacity - carrier.light_seats >= wanted
            if not spare and self.light_replicas <= self.max_light_replicas:
                break
            self._set_light(carrier, value=False)
            self._place(carrier)

    def _set_light(self, carrier: Carrier, *, value: bool) -> None:
        if carrier.light != value:
            carrier.light = value
            change = 1 if value else -1
            self.light_replicas += change
            self._light_capacity += change * carrier.light_seats

    def _set_open(self, carrier: Carrier, *, value: bool) -> None:
        if carrier.open != value:
            carrier.open = value
            self.open_replicas += 1 if value else -1
            if not value and not any(carrier.express.values()):
                self._set_light(carrier, value=False)
        self._place(carrier)

    def _place(self, carrier: Carrier) -> None:
        """Put the carrier where it belongs after any change, and count what it has ready."""
        name, load = carrier.replica.name, len(carrier.aboard)
        if carrier.rows is not None:
            carrier.rows.take(carrier)
        self._full.pop(name, None)
        self._idle_light.pop(name, None)
        self._ready -= carrier.ready
        carrier.ready = 0
        if not carrier.open:
            return
        if carrier.light:
            carrier.ready = max(0, carrier.limit - load)
            self._ready += carrier.ready
            if carrier.ready:
                self._light.put(carrier, carrier.ready)
            if not any(carrier.express.values()):
                self._idle_light[name] = carrier
        elif load < carrier.replica.seats:
            self._heavy.put(carrier, load)
        else:
            self._full[name] = carrier

    # --- held calls ---

    @property
    def held(self) -> int:
        return len(self.returned) + sum(len(queue) for queue in self.queues.values())

    def is_full(self, tier: Tier) -> bool:
        return len(self.queues[tier]) >= self.policy.tiers[tier].max_held

    def hold(self, call: Call, now: float, avoid: Set[str], *, returned: bool) -> float:
        """Keep the call waiting; returns its deadline."""
        held = Held(call, now + self.policy.tiers[call.tier].max_hold_s, avoid)
        if returned:
            self.returned[call.id] = held
        else:
            self.queues[call.tier].push(held)
        return held.until

    def drop(self, call: Call) -> None:
        if not self.queues[call.tier].remove(call.id):
            self.returned.pop(call.id, None)

    def next_boarding(self, now: float) -> tuple[Call, str] | None:
        """The held call that boards next, and where; None while nobody can."""
        for held in self._next_in_line():
            replica = self.seat(held.call, held.avoid, now)
            if replica is not None:
                self.drop(held.call)
                return held.call, replica
        return None

    def _next_in_line(self) -> Iterator[Held]:
        yield from self.returned.values()
        for queue in self.queues.values():  # in the order of the policy: the fastest tier first, flex last
            if (first := queue.first()) is not None:
                yield first

    def expired(self, now: float) -> list[Call]:
        """Take out the held calls whose time is up."""
        due = [held.call for held in self.returned.values() if held.until <= now]
        for call in due:
            del self.returned[call.id]
        return due + [call for queue in self.queues.values() for call in queue.expired(now)]

    def charge(self, call: Call, tokens: int) -> None:
        self.queues[call.tier].charge(call.tenant, tokens)

    def retry_after_s(self, tier: Tier) -> int:
        """When a seat can be hoped for, were the call to come back: the queue's length at the pace seen lately."""
        return min(MAX_RETRY_AFTER_S, 1 + int(self._pace_s * len(self.queues[tier])))
