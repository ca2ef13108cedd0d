"""Boarding for one model: the express rule, and around it where calls go and which doors are closed.

    A replica that carries a stream with a promised floor takes no more streams than that floor allows;
    a stream with a floor boards only a replica that is, and stays, light enough.

A replica is *light* while its doors are closed to streams beyond its light seats (the batch at which its curve keeps
the floor), and *heavy* otherwise. An express call makes the replica it boards light; the last one to leave lets it be
heavy again. Light seats are kept ready ahead of demand (reserve.py) by closing the doors of the emptiest heavy replica;
what is ready beyond the reserve, standard calls may ride on. The standard share bounds how many replicas may be light.

Invariants (tests/core/test_walk.py):
- nobody boards a replica beyond its limit: its seats, or what the strictest floor aboard allows;
- a heavy replica carries no express stream;
- no more replicas are light than the standard share leaves;
- a call is held only while there is no seat that it may take.

Cost: O(1) per call in replicas and held calls (O(log tenants) for fairness): replicas stand in rows by a small number,
and a bit mask says which rows are not empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from itertools import islice

from headway.core.affinity import Trails
from headway.core.carriers import Carrier, Rider, Rows
from headway.core.fare import SeatTime
from headway.core.reserve import Reserve
from headway.core.types import EXPRESS, Call, ModelPolicy, Replica, Tier
from headway.core.waiting import WaitingRoom

AFFINITY_SLACK = 2  # streams more than on the emptiest replica that a call puts up with for a prompt read before
FLEX_LOOKED_AT = 8  # replicas at most, for a flex call to put off
FEEDBACK_STEP = 0.01  # caps follow the measured speed in steps of this size


class Boarding:
    """The seats of one model and the calls that wait for them."""

    def __init__(self, policy: ModelPolicy) -> None:
        self.policy = policy
        self.open_replicas = 0
        self.light_replicas = 0
        self.waiting = WaitingRoom(policy)
        self.seat_us: dict[Tier, int] = dict.fromkeys(policy.tiers, 0)  # paid by the calls of each tier that have left
        self._gone_busy_us = self._gone_reserve_us = 0  # of replicas that are gone
        self._carriers: dict[str, Carrier] = {}
        self._never_light: set[str] = set()  # those that cannot keep any floor: no curve, or too slow
        self._shut_out: OrderedDict[str, Carrier] = OrderedDict()  # those that were suddenly slow, the first due first
        self._heavy = Rows()  # heavy, open and with a free seat, by load
        self._full: OrderedDict[str, Carrier] = OrderedDict()  # heavy, open and full
        self._light = Rows()  # light, open and with a free light seat, by how many
        self._idle_light: OrderedDict[str, Carrier] = OrderedDict()  # light, open, and no express stream aboard
        self._light_with_flex: OrderedDict[str, Carrier] = OrderedDict()  # light, open, and somebody to put off
        self._leaving = 0  # flex calls that are being put off
        self._trails = Trails()
        self._light_capacity = 0
        self._ready = 0
        self._free_heavy = 0  # free seats of open heavy replicas
        self._reserve = Reserve(policy.reserve_window_s, policy.reserve_headroom)

    # --- replicas ---

    def replica_up(self, replica: Replica, now: float) -> None:
        carrier = self._carriers.get(replica.name)
        if carrier is None:
            carrier = self._carriers[replica.name] = Carrier(replica, SeatTime(replica.seats, now))
            self._set_caps(carrier)
        self._set_open(carrier, now, value=True)

    def replica_suspect(self, name: str, now: float) -> None:
        if carrier := self._carriers.get(name):
            self._set_open(carrier, now, value=False)

    def replica_down(self, name: str, now: float) -> list[tuple[str, int]]:
        """Forget the replica; returns the calls that were aboard, each with its seat-time in microseconds."""
        carrier = self._carriers.pop(name, None)
        if carrier is None:
            return []
        self._set_open(carrier, now, value=False)
        self._set_light(carrier, now, value=False)  # whatever it still carries: it counts no more
        self._never_light.discard(name)
        self._shut_out.pop(name, None)
        self._leaving -= len(carrier.leaving)
        aboard = [(call_id, self._leave(carrier, call_id, now)[1]) for call_id in list(carrier.aboard)]
        self._gone_busy_us += carrier.time.busy_us
        self._gone_reserve_us += carrier.time.reserve_us
        return aboard

    @property
    def known_replicas(self) -> int:
        return len(self._carriers)

    def carrier(self, replica: str) -> Carrier | None:
        return self._carriers.get(replica)

    @property
    def streams(self) -> int:
        """Aboard all replicas."""
        return sum(len(carrier.aboard) for carrier in self._carriers.values())

    def aboard(self, replica: str) -> int:
        return len(carrier.aboard) if (carrier := self.carrier(replica)) else 0

    def is_open(self, replica: str) -> bool:
        return carrier.open if (carrier := self.carrier(replica)) else False

    def _set_caps(self, carrier: Carrier) -> None:
        """What each floor allows here, by the curve as measured and by what streams have really got since. A replica
        without a curve keeps no promise: nothing is known of its speed."""
        replica, slowness = carrier.replica, carrier.feedback.slowness
        carrier.caps_slowness = slowness
        carrier.caps = {
            tier: replica.curve.slower(slowness).largest_batch(policy.floor_tps, replica.seats, self.policy.margin)
            if replica.curve is not None and replica.name not in self._shut_out
            else 0
            for tier, policy in self.policy.tiers.items()
            if tier in EXPRESS
        }
        light_seats = max(carrier.caps.values(), default=0)
        if carrier.light:
            self._light_capacity += light_seats - carrier.light_seats
        carrier.light_seats = light_seats
        if light_seats:
            self._never_light.discard(replica.name)
        else:
            self._never_light.add(replica.name)

    def _learn(self, carrier: Carrier, slowness: float, now: float) -> None:
        """An express stream that left was so much slower than the curve had foreseen."""
        feedback = carrier.feedback
        feedback.observe(slowness, now)
        if feedback.shut_out_until > now:
            self._shut_out[carrier.replica.name] = carrier
            self._shut_out.move_to_end(carrier.replica.name)
            self._set_caps(carrier)
        elif abs(feedback.slowness / carrier.caps_slowness - 1.0) > FEEDBACK_STEP:
            self._set_caps(carrier)

    def _let_back_in(self, now: float) -> None:
        while self._shut_out:
            carrier = next(iter(self._shut_out.values()))
            if carrier.feedback.shut_out_until > now:
                return
            del self._shut_out[carrier.replica.name]
            self._set_caps(carrier)
            self._place(carrier, now)

    # --- seats ---

    def room(self, tier: Tier, now: float) -> int:
        """How many calls of the tier would board at once, as far as can be said without trying: prompts and streams
        with a stricter floor are not looked at."""
        if self.waiting.is_anyone_held(tier):
            return 0
        if tier not in EXPRESS:
            reserve = self._reserve.wanted_seats(now) - self._reserve.present
            return self._free_heavy + max(0, self._ready - max(0, reserve))
        room = self._ready
        if self.light_replicas < self.max_light_replicas and (lightest := self._lightest_heavy()) is not None:
            room += max(0, lightest.caps[tier] - len(lightest.aboard))
        return room

    def seat(self, call: Call, avoid: Set[str], now: float) -> str | None:
        """Give the call a seat; None if there is none that it may take."""
        if call.tier in EXPRESS:
            carrier = self._express_seat(call, avoid, now)
        else:
            carrier = self._heavy_seat(call, avoid) or self._ride(call, avoid, now)
        if carrier is None:
            return None
        carrier.board(call, now)
        if call.tier in EXPRESS:
            self._set_light(carrier, now, value=True)
        self._place(carrier, now)
        self._trails.note(call.affinity, carrier.replica.name)
        return carrier.replica.name

    def _express_seat(self, call: Call, avoid: Set[str], now: float) -> Carrier | None:
        # Best fit: the light replica with the fewest free seats, so that others stay whole; before it, one that carries
        # express streams already and has read such a prompt.
        known = self._known(call, avoid)
        if known is not None and known.express and known.has_room_for(call, now):
            return known
        fits = self._light.lowest(avoid)
        if fits is not None and fits.has_room_for(call, now):
            return fits
        # A stricter tier than the light seats are made for needs an emptier one, and so may a long prompt.
        for carrier in self._light.from_highest(avoid):
            if carrier.has_room_for(call, now):
                return carrier
        if self.light_replicas < self.max_light_replicas:
            lightest = self._lightest_heavy(avoid)
            if lightest is not None and len(lightest.aboard) < lightest.caps[call.tier]:
                return lightest
        return None

    def _heavy_seat(self, call: Call, avoid: Set[str]) -> Carrier | None:
        emptiest = self._heavy.lowest(avoid)
        known = self._known(call, avoid)
        if emptiest is None or known is None or known.rows is not self._heavy:
            return emptiest
        return known if len(known.aboard) <= len(emptiest.aboard) + AFFINITY_SLACK else emptiest

    def _known(self, call: Call, avoid: Set[str]) -> Carrier | None:
        """The open replica where such a call went last."""
        name = self._trails.last(call.affinity) if call.affinity else None
        carrier = self._carriers.get(name) if name is not None and name not in avoid else None
        return carrier if carrier is not None and carrier.open else None

    def _lightest_heavy(self, avoid: Set[str] = frozenset()) -> Carrier | None:
        """The emptiest heavy replica that could be light."""
        if len(self._never_light) == len(self._carriers):
            return None
        return self._heavy.lowest(self._never_light | avoid if avoid else self._never_light)

    def _ride(self, call: Call, avoid: Set[str], now: float) -> Carrier | None:
        """A light seat for a call without a floor, if more are ready than the reserve."""
        reserve = self._reserve.wanted_seats(now) - self._reserve.present
        if self._ready <= max(0, reserve):
            return None
        fits = self._light.lowest(avoid)
        if fits is None or fits.has_time_for(call, now):
            return fits
        return next((carrier for carrier in self._light.from_highest(avoid) if carrier.has_time_for(call, now)), None)

    def free(self, call_id: str, replica: str, now: float, speed_tps: float | None = None) -> int:
        """The call's stream is over; `speed_tps` is what it got, where that is known. Returns its seat-time in
        microseconds."""
        carrier = self._carriers.get(replica)
        if carrier is None or call_id not in carrier.aboard:
            return 0  # the replica went down in between, and its seats with it
        self._leaving -= call_id in carrier.leaving
        rider, seat_us = self._leave(carrier, call_id, now)
        foreseen_s = carrier.foreseen_s(rider, now)
        if rider.tier in EXPRESS and speed_tps and foreseen_s:
            self._learn(carrier, 1.0 / (speed_tps * foreseen_s), now)
        self._place(carrier, now)
        self.waiting.seat_freed(now)
        return seat_us

    def _leave(self, carrier: Carrier, call_id: str, now: float) -> tuple[Rider, int]:
        rider, seat_us = carrier.leave(call_id, now)
        self.seat_us[rider.tier] += seat_us
        return rider, seat_us

    @property
    def busy_us(self) -> int:
        """Time that replicas spent on calls or kept ready for them: what calls paid, will pay, and the reserve."""
        return self._gone_busy_us + sum(carrier.time.busy_us for carrier in self._carriers.values())

    @property
    def reserve_us(self) -> int:
        return self._gone_reserve_us + sum(carrier.time.reserve_us for carrier in self._carriers.values())

    # --- flex calls make way ---

    def stays(self, call_id: str, replica: str, now: float) -> None:
        """The call's answer is being delivered: it can no longer be put off."""
        if (carrier := self._carriers.get(replica)) and call_id in carrier.flex:
            del carrier.flex[call_id]
            self._place(carrier, now)

    def put_off(self, now: float) -> Iterator[str]:
        """Flex calls that must make way: a seat for each express call that is held, where putting off makes one."""
        wanted = self.waiting.held_express - self._leaving
        if wanted <= 0 or not self._light_with_flex:
            return
        for carrier in list(islice(self._light_with_flex.values(), FLEX_LOOKED_AT)):
            staying = len(carrier.aboard) - len(carrier.leaving)
            seats = min(wanted, carrier.limit - staying + len(carrier.flex))
            if seats <= 0:
                continue  # even without them it would be full
            wanted -= seats
            for _ in range(staying + seats - carrier.limit):
                call_id, _ = carrier.flex.popitem()  # the newest: the least work is lost
                carrier.leaving.add(call_id)
                self._leaving += 1
                yield call_id
            self._place(carrier, now)

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
        self._let_back_in(now)
        wanted = self._reserve.wanted_seats(now)
        while self._light_capacity < wanted and self.light_replicas < self.max_light_replicas:
            full = (carrier for name, carrier in self._full.items() if name not in self._never_light)
            carrier = self._lightest_heavy() or next(full, None)
            if carrier is None:
                break
            self._set_light(carrier, now, value=True)
            self._place(carrier, now)
        while self._idle_light:
            carrier = next(iter(self._idle_light.values()))
            spare = self._light_capacity - carrier.light_seats >= wanted
            if not spare and self.light_replicas <= self.max_light_replicas:
                break
            self._set_light(carrier, now, value=False)
            self._place(carrier, now)

    def _set_light(self, carrier: Carrier, now: float, *, value: bool) -> None:
        if carrier.light != value:
            carrier.advance(now)
            carrier.light = value
            change = 1 if value else -1
            self.light_replicas += change
            self._light_capacity += change * carrier.light_seats

    def _set_open(self, carrier: Carrier, now: float, *, value: bool) -> None:
        if carrier.open != value:
            carrier.open = value
            self.open_replicas += 1 if value else -1
            if not value and not carrier.express:
                self._set_light(carrier, now, value=False)
        self._place(carrier, now)

    def _place(self, carrier: Carrier, now: float) -> None:
        """Put the carrier where it belongs after any change, and count what it has ready."""
        name, load = carrier.replica.name, len(carrier.aboard)
        if carrier.rows is not None:
            if carrier.rows is self._heavy:
                self._free_heavy -= carrier.replica.seats - carrier.row
            carrier.rows.take(carrier)
        self._full.pop(name, None)
        self._idle_light.pop(name, None)
        self._light_with_flex.pop(name, None)
        self._ready -= carrier.ready
        carrier.ready = 0
        if carrier.light and not carrier.light_seats and not carrier.express:
            self._set_light(carrier, now, value=False)
        if not carrier.open:
            return
        if carrier.light:
            carrier.ready = max(0, carrier.limit - load)
            self._ready += carrier.ready
            if carrier.ready:
                self._light.put(carrier, carrier.ready)
            if carrier.flex:
                self._light_with_flex[name] = carrier
            if not carrier.express:
                self._idle_light[name] = carrier
        elif load < carrier.replica.seats:
            self._heavy.put(carrier, load)
            self._free_heavy += carrier.replica.seats - load
        else:
            self._full[name] = carrier

    # --- held calls ---

    def next_boarding(self, now: float) -> tuple[Call, str] | None:
        """The held call that boards next, and where; None while nobody can."""
        for held in self.waiting.next_in_line():
            replica = self.seat(held.call, held.avoid, now)
            if replica is not None:
                self.waiting.drop(held.call)
                return held.call, replica
        return None
