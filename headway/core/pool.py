"""One pool: replicas with the same weights, and the rule by which the calls of its offers board them.

    A replica that carries a stream with a promised floor takes no more streams than that floor allows;
    a stream with a floor boards only a replica that is, and stays, light enough.

An express call makes the replica it boards light (doors.py); the last one to leave lets it be heavy again. Light seats
are kept ready ahead of demand (reserve.py) by closing the doors of the emptiest heavy replica; what is ready beyond the
reserve, standard calls may ride on.

Invariants (tests/core/test_walk.py):
- nobody boards a replica beyond its limit: its seats, or what the strictest floor aboard allows;
- a heavy replica carries no express stream;
- no more replicas are light than the standard share leaves;
- a call is held only while there is no seat that it may take.

Cost: O(1) per call in replicas and held calls (O(log tenants) for fairness): replicas are in buckets by a small number,
and a bit mask says which buckets are not empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from itertools import islice

from headway.core.doors import Doors
from headway.core.fare import SeatTime
from headway.core.feedback import Feedback
from headway.core.prefix_affinity import PrefixAffinity
from headway.core.replicas import ReplicaState, Stream
from headway.core.reserve import Reserve
from headway.core.types import EXPRESS, Call, Offer, PoolPolicy, Replica, Tier
from headway.core.waiting import WaitingRoom

AFFINITY_SLACK = 2  # streams more than on the emptiest replica that a call puts up with for a prompt read before
FLEX_LOOKED_AT = 8  # replicas at most, for flex calls to preempt
FEEDBACK_STEP = 0.01  # caps follow the measured speed in steps of this size


class Pool:
    """The seats of a pool's replicas and the calls that wait for them."""

    def __init__(self, policy: PoolPolicy, offers: dict[str, Offer]) -> None:
        self.policy = policy
        self.offers = offers  # by model
        self._doors = Doors(policy.standard_share)
        self.waiting = WaitingRoom(offers)
        # Paid by the calls of each model and tier that have left.
        self.seat_us: dict[str, dict[Tier, int]] = {name: dict.fromkeys(one.tiers, 0) for name, one in offers.items()}
        self._gone_busy_us = self._gone_reserve_us = 0  # of replicas that are gone
        self._shut_out: OrderedDict[str, ReplicaState] = OrderedDict()  # were suddenly slow; the first due first
        self._leaving = 0  # flex calls that are being preempted
        self._affinity = PrefixAffinity()
        promised = [one.tiers[tier].floor_tps for one in offers.values() for tier in one.tiers if tier in EXPRESS]
        self._floors = sorted(set(promised))
        self._reserve = Reserve(policy.reserve_window_s, policy.reserve_headroom)

    # --- replicas ---

    def replica_up(self, replica: Replica, now: float) -> None:
        state = self._doors.replicas.get(replica.name)
        if state is None:
            state = self._doors.replicas[replica.name] = ReplicaState(replica, SeatTime(replica.seats, now))
            self._set_caps(state)
        else:
            self.replica_changed(replica, now)
        self._doors.open(state, now)

    def replica_changed(self, replica: Replica, now: float) -> None:
        """Streams aboard stay, also beyond a new limit. Another curve starts without what was learnt of the old one."""
        state = self._doors.replicas.get(replica.name)
        if state is None or state.replica == replica:
            return
        if state.replica.curve != replica.curve:
            state.feedback = Feedback()
            self._shut_out.pop(replica.name, None)
        state.change(replica, now)
        self._set_caps(state)
        self._doors.place(state, now)

    def replica_suspect(self, name: str, now: float) -> None:
        if state := self._doors.replicas.get(name):
            self._doors.close(state, now)

    def replica_draining(self, name: str, now: float) -> None:
        if state := self._doors.replicas.get(name):
            self._doors.drain(state, now)

    def replica_gone(self, name: str, now: float) -> list[tuple[str, int]]:
        """Forget the replica; returns the calls that were aboard, each with its seat-time in microseconds."""
        state = self._doors.replicas.get(name)
        if state is None:
            return []
        self._doors.remove(state, now)
        self._shut_out.pop(name, None)
        self._leaving -= len(state.leaving)
        aboard = [(call_id, self._leave(state, call_id, now)[1]) for call_id in list(state.aboard)]
        self._gone_busy_us += state.time.busy_us
        self._gone_reserve_us += state.time.reserve_us
        return aboard

    def replica_state(self, replica: str) -> ReplicaState | None:
        return self._doors.replicas.get(replica)

    @property
    def known_replicas(self) -> int:
        """Those that a call can wait for: all but the draining ones."""
        return self._doors.known_replicas

    @property
    def open_replicas(self) -> int:
        return self._doors.open_replicas

    @property
    def light_replicas(self) -> int:
        return self._doors.light_replicas

    @property
    def streams(self) -> int:
        """Aboard all replicas."""
        return sum(len(state.aboard) for state in self._doors.replicas.values())

    def aboard(self, replica: str) -> int:
        return len(state.aboard) if (state := self.replica_state(replica)) else 0

    def is_open(self, replica: str) -> bool:
        return state.open if (state := self.replica_state(replica)) else False

    def is_any_open(self, avoid: Set[str]) -> bool:
        """Is any replica open but these?"""
        return self._doors.open_replicas > sum(self.is_open(name) for name in avoid)

    def _set_caps(self, state: ReplicaState) -> None:
        """What each floor allows here, by the curve as measured and by what streams have really got since. A replica
        without a curve keeps no promise: nothing is known of its speed."""
        replica, slowness = state.replica, state.feedback.slowness
        state.caps_slowness = slowness
        state.caps = {
            floor_tps: replica.curve.slower(slowness).largest_batch(floor_tps, replica.seats, self.policy.margin)
            if replica.curve is not None and replica.name not in self._shut_out
            else 0
            for floor_tps in self._floors
        }
        self._doors.caps_changed(state)

    def _learn(self, state: ReplicaState, slowness: float, now: float) -> None:
        """An express stream that left was so much slower than the curve had foreseen."""
        feedback = state.feedback
        feedback.observe(slowness, now)
        if feedback.shut_out_until > now:
            self._shut_out[state.replica.name] = state
            self._shut_out.move_to_end(state.replica.name)
            self._set_caps(state)
        elif abs(feedback.slowness / state.caps_slowness - 1.0) > FEEDBACK_STEP:
            self._set_caps(state)

    def _let_back_in(self, now: float) -> None:
        while self._shut_out:
            state = next(iter(self._shut_out.values()))
            if state.feedback.shut_out_until > now:
                return
            del self._shut_out[state.replica.name]
            self._set_caps(state)
            self._doors.place(state, now)

    # --- seats ---

    def floor_tps(self, model: str, tier: Tier) -> float:
        """What the tier promises; 0 for those that promise nothing."""
        return self.offers[model].tiers[tier].floor_tps if tier in EXPRESS else 0.0

    def room(self, model: str, tier: Tier, now: float) -> int:
        """How many such calls would board at once, as far as can be said without trying: prompts and streams
        with a stricter floor are not looked at."""
        if self.waiting.is_anyone_held(tier):
            return 0
        if tier not in EXPRESS:
            reserve = self._reserve.wanted_seats(now) - self._reserve.present
            return self._doors.free_heavy + max(0, self._doors.ready - max(0, reserve))
        room = self._doors.ready
        if self._doors.may_another_be_light and (emptiest := self._doors.emptiest_heavy()) is not None:
            room += max(0, emptiest.caps[self.floor_tps(model, tier)] - len(emptiest.aboard))
        return room

    def seat(self, call: Call, avoid: Set[str], now: float) -> str | None:
        """Give the call a seat; None if there is none that it may take."""
        floor_tps = self.floor_tps(call.model, call.tier)
        if floor_tps:
            state = self._express_seat(call, floor_tps, avoid, now)
        else:
            state = self._heavy_seat(call, avoid) or self._ride(call, avoid, now)
        if state is None:
            return None
        state.board(call, floor_tps, now)
        if floor_tps:
            self._doors.set_light(state, now, value=True)
        self._doors.place(state, now)
        self._affinity.note(call, state.replica.name)
        return state.replica.name

    def _express_seat(self, call: Call, floor_tps: float, avoid: Set[str], now: float) -> ReplicaState | None:
        # Best fit: the light replica with the fewest free seats, so that others stay whole; before it, one that carries
        # express streams already and has read such a prompt.
        known = self._known(call, avoid)
        if known is not None and known.express and known.has_room_for(call, floor_tps, now):
            return known
        fits = self._doors.light.lowest(avoid)
        if fits is not None and fits.has_room_for(call, floor_tps, now):
            return fits
        # A stricter tier than the light seats are made for needs an emptier one, and so may a long prompt.
        for state in self._doors.light.from_highest(avoid):
            if state.has_room_for(call, floor_tps, now):
                return state
        if self._doors.may_another_be_light:
            emptiest = self._doors.emptiest_heavy(avoid)
            if emptiest is not None and len(emptiest.aboard) < emptiest.caps[floor_tps]:
                return emptiest
        return None

    def _heavy_seat(self, call: Call, avoid: Set[str]) -> ReplicaState | None:
        emptiest = self._doors.heavy.lowest(avoid)
        known = self._known(call, avoid)
        if emptiest is None or known is None or known.queue is not self._doors.heavy:
            return emptiest
        return known if len(known.aboard) <= len(emptiest.aboard) + AFFINITY_SLACK else emptiest

    def _known(self, call: Call, avoid: Set[str]) -> ReplicaState | None:
        """The open replica where such a call went last."""
        name = self._affinity.last(call)
        state = self._doors.replicas.get(name) if name is not None and name not in avoid else None
        return state if state is not None and state.open else None

    def _ride(self, call: Call, avoid: Set[str], now: float) -> ReplicaState | None:
        """A light seat for a call without a floor, if more are ready than the reserve."""
        reserve = self._reserve.wanted_seats(now) - self._reserve.present
        if self._doors.ready <= max(0, reserve):
            return None
        fits = self._doors.light.lowest(avoid)
        if fits is None or fits.has_time_for(call, now):
            return fits
        return next((state for state in self._doors.light.from_highest(avoid) if state.has_time_for(call, now)), None)

    def free(self, call_id: str, replica: str, now: float, speed_tps: float | None = None) -> int:
        """The call's stream is over; `speed_tps` is what it got, where that is known. Returns its seat-time in
        microseconds."""
        state = self._doors.replicas.get(replica)
        if state is None or call_id not in state.aboard:
            return 0  # the replica went down in between, and its seats with it
        self._leaving -= call_id in state.leaving
        stream, seat_us = self._leave(state, call_id, now)
        foreseen_s = state.foreseen_s(stream, now)
        if stream.floor_tps and speed_tps and foreseen_s:
            self._learn(state, 1.0 / (speed_tps * foreseen_s), now)
        self._doors.place(state, now)
        self.waiting.seat_freed(now)
        return seat_us

    def _leave(self, state: ReplicaState, call_id: str, now: float) -> tuple[Stream, int]:
        stream, seat_us = state.leave(call_id, now)
        self.seat_us[stream.call.model][stream.call.tier] += seat_us
        return stream, seat_us

    @property
    def busy_us(self) -> int:
        """Time that replicas spent on calls or kept ready for them: what calls paid, will pay, and the reserve."""
        return self._gone_busy_us + sum(state.time.busy_us for state in self._doors.replicas.values())

    @property
    def reserve_us(self) -> int:
        return self._gone_reserve_us + sum(state.time.reserve_us for state in self._doors.replicas.values())

    # --- flex calls make way ---

    def stays(self, call_id: str, replica: str, now: float) -> None:
        """The call's answer is being delivered: it can no longer be preempted."""
        if (state := self._doors.replicas.get(replica)) and call_id in state.flex:
            del state.flex[call_id]
            self._doors.place(state, now)

    def preempt(self, now: float) -> Iterator[str]:
        """Flex calls that must make way: a seat for each express call that is held, where preempting makes one."""
        wanted = self.waiting.held_express - self._leaving
        if wanted <= 0 or not self._doors.light_with_flex:
            return
        for state in list(islice(self._doors.light_with_flex.values(), FLEX_LOOKED_AT)):
            staying = len(state.aboard) - len(state.leaving)
            seats = min(wanted, state.limit - staying + len(state.flex))
            if seats <= 0:
                continue  # even without them it would be full
            wanted -= seats
            for _ in range(staying + seats - state.limit):
                call_id, _ = state.flex.popitem()  # the newest: the least work is lost
                state.leaving.add(call_id)
                self._leaving += 1
                yield call_id
            self._doors.place(state, now)

    # --- doors ---

    def express_present(self, by: int, now: float) -> None:
        """An express call has come (+1) or gone (-1), aboard or held."""
        self._reserve.change(by, now)

    def set_doors(self, now: float) -> None:
        """Have as many light seats, taken and ready, as the reserve wants."""
        self._let_back_in(now)
        self._doors.provide(self._reserve.wanted_seats(now), now)

    # --- held calls ---

    def next_boarding(self, now: float) -> tuple[Call, str] | None:
        """The held call that boards next, and where; None while nobody can."""
        for held in self.waiting.next_in_line():
            replica = self.seat(held.call, held.avoid, now)
            if replica is not None:
                self.waiting.drop(held.call)
                return held.call, replica
        return None
