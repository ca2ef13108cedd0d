"""One pool: replicas with the same weights, and the rule by which the calls of its offers board them.

    A replica that carries a stream with a promised floor takes no more streams than that floor allows;
    a stream with a floor boards only a replica that is, and stays, light enough.

An express call makes the replica it boards light (doors.py); after the last express stream has left, the replica may
become heavy again. Light seats are kept ready ahead of demand (reserve.py) by closing the doors of the emptiest heavy
replica. Standard calls may ride on the light seats that are ready beyond the reserve, and on replicas that retire.

Invariants (invariants.py, tests/core/test_walk.py):
- no call boards a replica beyond its limit: its seats, or the number that the strictest floor aboard allows;
- no call boards where it lacks memory for its prompt and a mean answer, or its context breaks a floor (replicas.py);
- a heavy replica carries no express stream;
- no replica becomes light beyond the number that the standard share allows;
- a call is held only while there is no seat that it may take. Seats that become available because other replicas closed
  are found at the next tick. If some replicas have no memory for the call, or no time for its prompt, another one that
  has may be missed: of replicas with the same number of free seats only the first few are looked at.

Cost: O(1) per call in the number of replicas and held calls, and O(log held) for fairness and deadlines. Replicas are
in buckets by load or free seats, and a bit mask says which buckets are not empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from math import inf
from typing import Final

from headway.core.adapter_affinity import AdapterAffinity
from headway.core.caps import Caps
from headway.core.doors import Doors
from headway.core.fare import SeatTime
from headway.core.finder import Finder
from headway.core.learnt import LearntPool
from headway.core.offers import adapters_of, loosest_floors, targets_of, with_withdrawn
from headway.core.pace import Pace
from headway.core.preemption import Preemption
from headway.core.prefix_index import PrefixIndex
from headway.core.replica_queues import NOBODY
from headway.core.replicas import ReplicaState, Stream
from headway.core.reserve import Reserve
from headway.core.seat_cost import SeatCosts, cost_of_light_seat
from headway.core.types import EXPRESS, Call, Offer, PoolPolicy, Replica, Tier
from headway.core.waiting import WaitingRoom

MOVED_WAIT_S: Final = 0.18  # for which calls with a floor should wait at most if streams make way, within 0.15 s


class Pool:
    """The seats of a pool's replicas and the calls that wait for them."""

    def __init__(self, policy: PoolPolicy, offers: dict[str, Offer]) -> None:
        self.policy = policy
        self.offers = offers  # by model
        self.doors = Doors(policy.standard_share, moves_streams=policy.moves_streams)
        self.waiting = WaitingRoom(offers)
        # The seat-time charged to calls that have left, by model and tier.
        self.seat_us: dict[str, dict[Tier, int]] = {}
        self._count_seat_time()
        self.taken: Counter[tuple[str, Tier]] = Counter()  # seats of the calls aboard, by model and tier
        self._gone_busy_us = self._gone_reserve_us = 0  # of replicas that were removed
        self.pace = Pace()
        self.preemption = Preemption(self.doors, self.waiting, self.pace)
        self._adapters = AdapterAffinity(adapters_of(offers))
        self.prefixes = PrefixIndex()
        self.loosest = loosest_floors(offers)
        self._caps = Caps(targets_of(offers), policy, self.doors)
        self._seat_costs = SeatCosts()
        self.reserve = Reserve(_express_wait_s(policy))
        self.finder = Finder(self.doors, self.reserve, self._adapters, self.prefixes)

    def change(self, policy: PoolPolicy, offers: dict[str, Offer], in_use: Set[tuple[str, Tier]], now: float) -> None:
        """Another policy and other offers from now on. `in_use` has the model and the tier of each call that is here:
        if these are not offered any more, they stay as they were for these calls."""
        self.policy = policy
        self.offers = with_withdrawn(offers, self.offers, in_use)
        self.doors.standard_share, self.doors.moves_streams = policy.standard_share, policy.moves_streams
        self.waiting.change(self.offers)
        self._count_seat_time()
        self.loosest = loosest_floors(self.offers)
        self._adapters.change(adapters_of(self.offers))
        targets = targets_of(offers)
        aboard = {floor_tps for state in self.doors.replicas.values() for floor_tps in state.express}
        self._caps.change(targets, (targets_of(self.offers).keys() | aboard) - targets.keys(), policy, now)
        self._rank(list(self.doors.replicas.values()), now)
        self.reserve.allow(_express_wait_s(policy))

    def _count_seat_time(self) -> None:
        for model, offer in self.offers.items():
            self.seat_us[model] = dict.fromkeys(offer.tiers, 0) | self.seat_us.get(model, {})

    # --- replicas ---

    def replica_up(self, replica: Replica, now: float) -> None:
        self.replica_known(replica, now)
        self.replica_changed(replica, now)
        self.doors.open(self.doors.replicas[replica.name], now)
        self._caps.fleet_changed()

    def replica_known(self, replica: Replica, now: float) -> None:
        if replica.name in self.doors.replicas:
            return
        prefixes = self.prefixes.add(replica.name)
        state = ReplicaState(replica, SeatTime(replica.seats, now), self.pace, self._caps.unmeasured(), prefixes)
        self.doors.replicas[replica.name] = state
        self._caps.refresh(state)
        self._rank([state], now)

    def replica_strangers(self, name: str, streams: int, now: float) -> None:
        if state := self.doors.replicas.get(name):
            state.advance(now)
            state.load += streams - state.strangers
            state.strangers = streams
            self.doors.place(state, now)

    def replica_changed(self, replica: Replica, now: float) -> None:
        """Streams aboard stay, even beyond a lower limit. If the curve changed, the measured slowness is reset."""
        state = self.doors.replicas.get(replica.name)
        if state is None or state.replica == replica:
            return
        if state.replica.curve != replica.curve:
            self._caps.forget(state)
        state.change(replica, now)
        self._caps.refresh(state)
        self.doors.place(state, now)
        self._rank([state], now)
        self._caps.fleet_changed()

    def replica_cache_lost(self, name: str, keys: list[int] | None) -> None:
        if (state := self.doors.replicas.get(name)) is None:
            return
        if keys is None:
            self.prefixes.remove(name)
            state.prefixes = self.prefixes.add(name)
        else:
            self.prefixes.lose(name, keys)

    def replica_suspect(self, name: str, now: float) -> None:
        if state := self.doors.replicas.get(name):
            self.doors.close(state, now)

    def replica_draining(self, name: str, now: float) -> None:
        if state := self.doors.replicas.get(name):
            self.doors.drain(state, now)
            self._caps.fleet_changed()

    def replica_gone(self, name: str, now: float) -> list[tuple[str, int]]:
        """Remove the replica. Returns the calls that were aboard, each with its seat-time in microseconds."""
        state = self.doors.replicas.get(name)
        if state is None:
            return []
        self.doors.remove(state, now)
        self.prefixes.remove(name)
        if self._seat_costs.drop(name):
            self._set_ranks(list(self.doors.replicas.values()), now)
        self._caps.forget(state)
        self._caps.fleet_changed()
        aboard = [(call_id, self._leave(state, call_id, now)[1]) for call_id in list(state.aboard)]
        self._gone_busy_us += state.time.busy_us
        self._gone_reserve_us += state.time.reserve_us
        return aboard

    def _rank(self, states: list[ReplicaState], now: float) -> None:
        """Find out what light seats of these replicas cost, compared with those of others."""
        is_other_cheapest = False
        for state in states:
            cost = cost_of_light_seat(state.replica, self._caps.usual_light_seats(state.replica))
            is_other_cheapest |= self._seat_costs.set(state.replica.name, cost)
        self._set_ranks(list(self.doors.replicas.values()) if is_other_cheapest else states, now)

    def _set_ranks(self, states: list[ReplicaState], now: float) -> None:
        for state in states:
            self.doors.set_rank(state, self._seat_costs.rank(state), now)

    def replica_state(self, replica: str) -> ReplicaState | None:
        return self.doors.replicas.get(replica)

    @property
    def known_replicas(self) -> int:
        """The number of replicas that a call can wait for: all except the draining ones."""
        return self.doors.known_replicas

    @property
    def open_replicas(self) -> int:
        return self.doors.open_replicas

    @property
    def light_replicas(self) -> int:
        return self.doors.light_replicas

    @property
    def streams(self) -> int:
        """The number of streams aboard all replicas."""
        return sum(state.load for state in self.doors.replicas.values())

    def aboard(self, replica: str) -> int:
        """The number of streams aboard, which is the number of seats taken."""
        return state.load if (state := self.replica_state(replica)) else 0

    def is_open(self, replica: str) -> bool:
        return state.open if (state := self.replica_state(replica)) else False

    def is_any_open(self, avoid: Set[str]) -> bool:
        """Whether any replica other than these is open."""
        return self.doors.open_replicas > sum(self.is_open(name) for name in avoid)

    # --- seats ---

    @property
    def promised_floors(self) -> Set[float]:
        """The floors that light seats are for."""
        return self._caps.floors

    def offers_tier(self, model: str, tier: Tier) -> bool:
        return model in self.offers and tier in self.offers[model].tiers

    def floor_tps(self, model: str, tier: Tier) -> float:
        """The floor that the tier promises; 0 if it promises none."""
        return self.offers[model].tiers[tier].floor_tps if tier in EXPRESS else 0.0

    def could_seat(self, call: Call) -> bool:
        """Whether any replica could carry all choices of the call if it were empty. Also True if no replica keeps the
        floor even for a single stream: then fewer choices would not help, and the call waits like any other."""
        most = self._caps.most_streams(self.floor_tps(call.model, call.tier)) if call.choices > 1 else 0
        return most == 0 or call.choices <= most

    def room(self, model: str, tier: Tier, now: float) -> int:
        """Estimate how many such calls could board now, ignoring prompts and stricter floors of streams aboard."""
        if self.waiting.is_anyone_held(tier):
            return 0
        if tier not in EXPRESS:
            return self.doors.free_heavy + self.doors.free_retiring + self.finder.spare(now)
        room = self.doors.ready
        if self.doors.may_another_be_light:
            floor_tps = self.floor_tps(model, tier)
            emptiest = [queue.lowest(NOBODY) for queue in self.doors.heavy.ranks]
            room += max([0, *(state.caps[floor_tps] - state.load for state in emptiest if state is not None)])
        return room

    def seat(self, call: Call, avoid: Set[str], now: float) -> str | None:
        """Board the call and return its replica; None if there are no seats that it may take."""
        floor_tps = self.floor_tps(call.model, call.tier)
        state = self._find(call, floor_tps, avoid, now)
        if state is None:
            return None
        if state.light and not state.retiring and not floor_tps:
            self.reserve.ridden(now)
        self._take_seats(state, call, now)
        return state.replica.name

    def adopt(self, call: Call, replica: str, now: float, *, is_delivering: bool) -> bool:
        """Give the call its seats on the replica that runs it, whatever the limits. False if it is not known. If it is
        delivering, its prompt has been read and takes no more time from the others."""
        state = self.doors.replicas.get(replica)
        if state is None:
            return False
        self._take_seats(state, call, now, is_read=is_delivering)
        return True

    def _take_seats(self, state: ReplicaState, call: Call, now: float, *, is_read: bool = False) -> None:
        floor_tps = self.floor_tps(call.model, call.tier)
        state.board(call, floor_tps, now, is_read=is_read)
        if floor_tps:
            self.doors.set_light(state, now, value=True)
            state.retiring = False
        self.taken[call.model, call.tier] += call.choices
        self.doors.place(state, now)
        self._adapters.note(call.model, state.replica.name, now)
        if call.prefix_keys:
            answer_tokens = call.choices * round(self.pace.answer_tokens)
            self.prefixes.boarded(call, state.replica.name, state.replica.kv_tokens, answer_tokens)

    def _find(self, call: Call, floor_tps: float, avoid: Set[str], now: float) -> ReplicaState | None:
        if floor_tps:
            return self.finder.express_seat(call, floor_tps, avoid, now)
        return self.finder.heavy_seat(call, avoid, now) or self.finder.ride(call, avoid, now)

    def free(
        self, call_id: str, replica: str, now: float, speed_tps: float | None = None, *, has_ended: bool = False
    ) -> int:
        """Free the call's seats. `speed_tps` is the measured speed of its stream, if known. Returns its seat-time in
        microseconds."""
        state = self.doors.replicas.get(replica)
        if state is None or call_id not in state.aboard:
            return 0  # the replica was removed meanwhile, with its seats
        stream, seat_us = self._leave(state, call_id, now)
        if stream.floor_tps and speed_tps and (slowness := state.slowness_of(stream, speed_tps, now)):
            self._caps.learn(state, slowness, now, is_missed=speed_tps < stream.floor_tps)
        self.doors.place(state, now)
        self.waiting.seat_freed(now)
        if has_ended:
            self.preemption.ended(state, stream.call.choices, now)
        return seat_us

    def tokens_given(self, call_id: str, replica: str, now: float) -> int:
        """The output tokens that the call was given where it sits: by the replica's curve, else by the pool's pace."""
        state = self.doors.replicas.get(replica)
        if state is None or call_id not in state.aboard:
            return 0
        if state.replica.curve is None:
            return self.pace.tokens(state.seat_s(call_id, now))
        return state.tokens_given(call_id, now)

    def _leave(self, state: ReplicaState, call_id: str, now: float) -> tuple[Stream, int]:
        self.preemption.left(state.aboard[call_id], state)
        stream, seat_us = state.leave(call_id, now)
        self.taken[stream.call.model, stream.call.tier] -= stream.call.choices
        self.seat_us[stream.call.model][stream.call.tier] += seat_us
        return stream, seat_us

    @property
    def busy_us(self) -> int:
        """Time that replicas spent on calls, whether charged already or not, or kept seats in reserve."""
        return self._gone_busy_us + sum(state.time.busy_us for state in self.doors.replicas.values())

    @property
    def reserve_us(self) -> int:
        return self._gone_reserve_us + sum(state.time.reserve_us for state in self.doors.replicas.values())

    # --- calls that are taken off their replica ---

    def stays(self, call_id: str, replica: str, now: float) -> None:
        """The call's answer is being delivered, and it cannot go on elsewhere."""
        if state := self.doors.replicas.get(replica):
            self.preemption.stays(call_id, state, now)

    def preempt(self, now: float) -> Iterator[str]:
        """Choose calls to take off, for the held express calls and because replicas drain; yields their ids."""
        if self.waiting.express_seats and self.doors.removable:
            yield from self.preemption.make_room(self.waiting.express_seats, self.waiting.fewest_express_choices, now)
        if self.doors.moves_streams and self.doors.retiring_by_express:
            yield from self.preemption.leave_retiring(now)
        if self.doors.draining_movable:
            yield from self.preemption.leave_draining(self.finder.spare(now), self._find, now)

    # --- the pace of running streams ---

    def replica_behind(self, name: str, now: float) -> Iterator[str]:
        """A stream with a floor falls behind: no call boards until it recovers. Yields the flex calls to preempt."""
        if (state := self.doors.replicas.get(name)) and state.express_seats:
            self._caps.falls_behind(state)
            yield from self.preemption.all_of(state, now)

    def replica_recovered(self, name: str, now: float) -> None:
        if (state := self.doors.replicas.get(name)) and state.is_behind:
            self._caps.recovered(state, now)
            self.doors.place(state, now)

    # --- doors ---

    def express_waited(self, waited_s: float, now: float) -> None:
        self.reserve.waited(waited_s, now)

    def answer_seen(self, replica: str, now: float) -> None:
        """An answer has ended: the mean length of answers has changed, and with it how long replicas take to empty."""
        state = self.doors.replicas.get(replica)
        if state is not None and state.replica.curve is not None and state.light_seats:
            emptying_s = state.replica.curve.emptying_s(state.replica.seats, state.light_seats)
            self.reserve.lead_s = self.preemption.lead_s(state, self.pace.answer_tokens * emptying_s, now)

    def express_present(self, by: int, now: float) -> None:
        """Change the number of streams with a floor that are aboard or held."""
        self.reserve.change(by, now)

    @property
    def express_streams(self) -> int:
        """The number of streams with a floor that are aboard or held."""
        return self.reserve.present

    def set_doors(self, now: float) -> None:
        """Provide as many light seats, taken or ready, as the reserve wants."""
        self._caps.let_back_in(now)
        self._caps.catch_up(now)
        self.doors.provide(self.reserve.wanted_seats(now), now)

    # --- what another core learns or has learnt ---

    def learnt(self, name: str, max_tenants: int, now: float) -> LearntPool:
        """`max_tenants` is for each queue."""
        waiting = self.waiting.learnt(max_tenants, now)
        return LearntPool(name, self.pace.learnt(), self._caps.learnt(now), self.reserve.learnt(now), waiting)

    def recall(self, learnt: LearntPool, age_s: float, now: float) -> None:
        self.pace.recall(learnt.pace)
        self._caps.recall(learnt.caps, age_s, now)
        self.reserve.recall(learnt.reserve, age_s, now)
        self.waiting.recall(learnt.waiting, age_s, now)


def _express_wait_s(policy: PoolPolicy) -> float:
    is_shorter = policy.moves_streams and policy.express_wait_s < inf
    return min(policy.express_wait_s, MOVED_WAIT_S) if is_shorter else policy.express_wait_s
